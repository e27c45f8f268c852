"""How long a publication takes, beside a bare append of the same file, as the table's history grows.

    .venv/bin/python -m benchmarks.publication_time [--snapshots 20 200]

Both are measured by turns on a stack of their own, so that the ratio holds on any machine. The bare append is
pyiceberg's, into a table of the same history: load the table, add a file that is written already, commit; no check, no
mark, no chain. *Staging at hand* is a publication whose caller has the staging table loaded since the batch was staged,
as a driver has; its last column is the ratio to one that loads it. The object store and the catalog are those of the
local stack.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from uuid import uuid4

from rich.console import Console
from rich.table import Table
from tests.fixtures.publication import CatalogPlace, Workbench, open_catalog_at
from tests.fixtures.stack import stack_in

from sluice.publication.file_preparation import fit_files
from sluice.publication.staged_batch import StagedBatch, StagedOutput
from sluice.publication.staging_table import load_staging_table, staged_files

TURNS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Times at one length of history, in milliseconds."""

    snapshots: int
    publications_ms: Sequence[float]
    at_hand_ms: Sequence[float]
    bare_appends_ms: Sequence[float]


def measure(bench: Workbench, bare: Workbench, histories: Sequence[int]) -> list[Measured]:
    """Measure at each length of history; between them the histories grow by empty commits."""
    found = []
    number = 0
    for snapshots in histories:
        for each in (bench, bare):
            while len(each.target().snapshots()) < snapshots - TURNS // 2:
                each.write_as_another()
        publications, at_hand, appends = [], [], []
        for _ in range(TURNS):
            batch = bench.stage(number, [number])
            appends.append(_milliseconds(partial(_append, bench, bare, batch)))
            publications.append(_milliseconds(partial(bench.publish, batch)))
            second = bench.stage(number + 1, [number + 1])
            staging = load_staging_table(bench.catalog, bench.output)
            at_hand.append(_milliseconds(partial(bench.publish, second, staging=staging)))
            bench.clear()
            number += 2
        found.append(
            Measured(snapshots=snapshots, publications_ms=publications, at_hand_ms=at_hand, bare_appends_ms=appends)
        )
    return found


def _append(bench: Workbench, bare: Workbench, batch: StagedBatch) -> None:
    staging = load_staging_table(bench.catalog, bench.output)
    table = bare.catalog.load_table(bare.output.target)
    files = fit_files(staged_files(staging, [batch])[batch.snapshot_id], staging=staging, target=table)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as append:
        for file in files:
            append.append_data_file(file)


def _milliseconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return (time.perf_counter() - began) * 1000


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--snapshots", type=int, nargs="+", default=[20, 200])
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, stack_in(Path(folder) / "data") as stack:
        stack.up(("postgres", "seaweedfs"))
        place = CatalogPlace(environment=stack.environment())
        catalog = open_catalog_at(place)
        name = f"s{uuid4().hex[:8]}"
        output = StagedOutput(stream=name, output="main", target=f"{name}.published")
        bench = Workbench(open_catalog=lambda: catalog, catalog=catalog, output=output, place=place)
        bare = replace(bench, output=replace(output, target=f"{name}.appended"))
        for each in (bench, bare):
            each.declare()
        bench.begin()
        found = measure(bench, bare, options.snapshots)
        catalog.close()
    _print(found)
    return 0


def _print(found: Sequence[Measured]) -> None:
    table = Table(title="One batch of one file: publication beside a bare append of pyiceberg")
    headings = ("snapshots", "publication, median", "slowest", "staging at hand", "bare append, median", "slowest")
    for heading in (*headings, "ratio", "at hand"):
        table.add_column(heading, justify="right")
    for seen in found:
        own, bare = statistics.median(seen.publications_ms), statistics.median(seen.bare_appends_ms)
        at_hand = statistics.median(seen.at_hand_ms)
        times = (own, max(seen.publications_ms), at_hand, bare, max(seen.bare_appends_ms))
        ratios = (own / bare, at_hand / own)
        cells = (*(f"{one:.0f} ms" for one in times), *(f"{one:.2f}" for one in ratios))
        table.add_row(str(seen.snapshots), *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main())
