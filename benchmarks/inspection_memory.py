"""How much memory and time the inspection of a large table takes, compared with holding every file entry at once.

    .venv/bin/python -m benchmarks.inspection_memory [--files 200000] [--per-manifest 1000]

The table has real manifests and no data files: an inspection opens none. Each way works in a process of its own, whose
peak of resident memory beyond the peak before it is what it cost.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table as IcebergTable
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import IntegerType, LongType, NestedField
from rich.console import Console
from rich.table import Table

from sluice.tables.inspection import observe_table
from sluice.tables.manifest_reading import READERS

NAME = "bench.rows"
PARTITIONS = 200
MOST_MB = 500.0
"""What an inspection may take for a million files; the memory does not follow their number."""

WAYS = ("streamed", "held")


def main() -> int:
    """Fill a table, inspect it in both ways, and print a table. Returns 1 when an inspection takes too much."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=200_000)
    parser.add_argument("--per-manifest", type=int, default=1_000)
    parser.add_argument("--way", choices=WAYS)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    if given.way is not None:
        sys.stdout.write(json.dumps(_inspected(given.folder, given.way)))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        _fill(Path(folder), files=given.files, per_manifest=given.per_manifest)
        results = {way: _in_a_process(Path(folder), way) for way in WAYS}
    shown = Table("way", "files", "memory MB", "seconds", title=f"inspection of {given.files:,} files")
    for way, found in results.items():
        shown.add_row(way, f"{found['files']:,.0f}", f"{found['memory_mb']:,.0f}", f"{found['seconds']:.1f}")
    Console().print(shown)
    return int(results["streamed"]["memory_mb"] > MOST_MB)


def _in_a_process(folder: Path, way: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.inspection_memory", f"--folder={folder}", f"--way={way}"]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603  # our own program
    found: dict[str, float] = json.loads(ended.stdout)
    return found


def _inspected(folder: Path, way: str) -> dict[str, float]:
    table = _catalog(folder).load_table(NAME)
    before, started = _peak_mb(), time.perf_counter()
    files = _streamed(table) if way == "streamed" else _held(table)
    return {"files": files, "memory_mb": _peak_mb() - before, "seconds": time.perf_counter() - started}


def _streamed(table: IcebergTable) -> int:
    seen = observe_table(table, name=NAME, small_file_bytes=1, now=datetime.now(UTC))
    return sum(partition.data_files for partition in seen.partitions)


def _held(table: IcebergTable) -> int:
    """As it was done before: a list of all entries, with the path of the partition of each."""
    newest, specs, schema = table.current_snapshot(), table.specs(), table.schema()
    if newest is None:
        return 0

    with ThreadPoolExecutor(READERS) as pool:
        entries = pool.map(lambda manifest: list(manifest.fetch_manifest_entry(table.io)), newest.manifests(table.io))
        held = [
            (specs[file.spec_id].partition_to_path(file.partition, schema), file)
            for found in entries
            for file in (entry.data_file for entry in found)
        ]
    return len(held)


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _catalog(folder: Path) -> SqlCatalog:
    return SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=folder.as_uri())


def _fill(folder: Path, *, files: int, per_manifest: int) -> None:
    catalog = _catalog(folder)
    catalog.create_namespace("bench")
    schema = Schema(
        NestedField(1, "id", LongType(), required=False), NestedField(2, "part", IntegerType(), required=False)
    )
    spec = PartitionSpec(PartitionField(source_id=2, field_id=1000, transform=IdentityTransform(), name="part"))
    table = catalog.create_table(NAME, schema, partition_spec=spec)
    for first in range(0, files, per_manifest):
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
            for number in range(first, min(first + per_manifest, files)):
                append.append_data_file(_file(number, folder))


def _file(number: int, folder: Path) -> DataFile:
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{folder.as_uri()}/data/part={number % PARTITIONS}/{number:032d}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(number % PARTITIONS),
        record_count=1000,
        file_size_in_bytes=1_000_000,
        column_sizes={1: 4000, 2: 100},
        value_counts={1: 1000, 2: 1000},
        null_value_counts={1: 0, 2: 0},
        nan_value_counts={},
        lower_bounds={1: number.to_bytes(8, "little")},
        upper_bounds={1: number.to_bytes(8, "little")},
        split_offsets=[4],
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
    )
    file.spec_id = 0
    return file


if __name__ == "__main__":
    sys.exit(main())
