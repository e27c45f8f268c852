"""What the look at the heads of files costs a batch of many small ones, by turns on one stack.

    .venv/bin/python -m benchmarks.small_files [--files 1000] [--rows 100] [--format parquet] [--rounds 3]

Each turn reads the same files in one batch into a table, from a folder of this machine and from the object store. *Not
looked at* is the same stream without the look: its time is what the batch took before files were held to what is
declared. What the tables hold is compared before any time counts.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pyarrow as pa
from benchmarks.delivery_time import Bench, open_bench
from benchmarks.paired_turns import Limit, Trigger, Turn, print_turns, processor_seconds, take_turns, trigger_part
from pyarrow import orc, parquet
from tests.fixtures.workshop import Workshop

from sluice.checkpoints.s3_checkpoint_files import s3_client
from sluice.settings import FilesConnection
from sluice.stack.environment import LANDING_BUCKET
from sluice_spark.session.columns import sums_of_rows

_COLUMNS = {"id": "long", "word": "string", "amount": "double"}
_NOT_LOOKED_AT, _LOOKED_AT = "not looked at", "looked at"
_LIMITS = (Limit(way=_LOOKED_AT, what="time of the batch", figure=trigger_part, most=1.1),)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallFiles:
    """Files of one format in one place. root: of the connection."""

    bench: Bench
    root: str
    file_format: str

    def turn(self, *, is_looked_at: bool) -> Turn:
        """Read them all in one batch."""
        workshop = self.bench.workshop()
        connections = {"benchmark": FilesConnection(kind="files", root=self.root), **workshop.settings.connections}
        settings = workshop.settings.model_copy(update={"connections": connections})
        workshop, stream = replace(workshop, settings=settings), f"s{workshop.namespace}"
        target = workshop.declare_table("target", _COLUMNS)
        columns = [{"name": name, "type": kind} for name, kind in _COLUMNS.items()]
        source = {"connection": "benchmark", "path": "in", "format": self.file_format, "columns": columns}
        workshop.declare_stream(
            stream,
            sql=f"SELECT {', '.join(_COLUMNS)} FROM rows",  # noqa: S608  # names of this module
            inputs={"rows": {"stream": {"files": source}}},
            outputs={"copies": {"iceberg": {"table": target}}},
        )
        began, used = time.monotonic(), processor_seconds()
        if is_looked_at:
            batches = workshop.run(stream).batches
        else:
            with patch("sluice_spark.query.file_watch.require_declared_columns"):
                batches = workshop.run(stream).batches
        seconds, used = time.monotonic() - began, processor_seconds() - used
        (batch,) = batches
        trigger = Trigger(number=0, started_at=batch.started_at, duration_ms=float(batch.duration_ms))
        return Turn(
            batches_ms=(trigger.duration_ms,),
            busy_seconds=trigger.duration_ms / 1000,
            seconds=seconds,
            content=self._content(workshop, target),
            processor_seconds=used,
        )

    def _content(self, workshop: Workshop, target: str) -> tuple[object, ...]:
        table = self.bench.spark.table(f"{workshop.settings.catalog.name}.{target}")
        return tuple(table.agg(*sums_of_rows(table)).collect()[0])


def written(bench: Bench, *, options: argparse.Namespace) -> dict[str, SmallFiles]:
    """The files, by where they are."""
    here, s3 = bench.folder / "small", s3_client(bench.stack.settings().object_store)
    (here / "in").mkdir(parents=True)
    for number in range(options.files):
        ids = range(number * options.rows, (number + 1) * options.rows)
        columns: dict[str, list[Any]] = {
            "id": list(ids),
            "word": [f"word {one % 97}" for one in ids],
            "amount": [one / 7 for one in ids],
        }
        file = here / "in" / f"{number}.{options.format}"
        (parquet if options.format == "parquet" else orc).write_table(pa.table(columns), file)
        s3.put_object(Bucket=LANDING_BUCKET, Key=f"small/in/{file.name}", Body=file.read_bytes())
    places = {"a folder": here.as_uri(), "the object store": f"s3a://{LANDING_BUCKET}/small"}
    return {name: SmallFiles(bench=bench, root=root, file_format=options.format) for name, root in places.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; ends with 1 when two ways leave different tables, or the limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=1000)
    parser.add_argument("--rows", type=int, default=100, help="of a file")
    parser.add_argument("--format", choices=("parquet", "orc"), default="parquet")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    met = []
    with open_bench(rows=options.rows, batches=1) as bench:
        for place, small in written(bench, options=options).items():
            ways: dict[str, Callable[[], Turn]] = {
                _NOT_LOOKED_AT: partial(small.turn, is_looked_at=False),
                _LOOKED_AT: partial(small.turn, is_looked_at=True),
            }
            for turn in ways.values():
                turn()
            title = f"{options.files} {options.format} files in {place}"
            met.append(print_turns(title, take_turns(ways, rounds=options.rounds), _LIMITS))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
