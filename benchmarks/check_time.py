"""How long it takes to compare the positions of many streams with all their witnesses.

    .venv/bin/python -m benchmarks.check_time [--streams 200] [--batches 2]

Every fourth stream keeps state. The checkpoints lie in the object store of the stack; each stream has run, so that its
ledger, its table and its source are real. Every check is compared with *healthy* before its time counts: a check that
ends early would be the fastest. Ends with 1 when all together take more than a minute, or one takes more than a second.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.delivery_time import Bench, open_bench
from rich.console import Console
from rich.progress import track
from tests.fixtures.workshop import Workshop

from sluice.declarations.load_declarations import load_declarations
from sluice.positions.check_checkpoints import check_checkpoints
from sluice.stack.environment import LANDING_BUCKET

MOST_SECONDS = 60.0
MOST_SECONDS_OF_ONE = 1.0
COLUMNS = {"id": "long", "word": "string"}
EVERY_FOURTH: dict[str, Any] = {
    "python": "def transform(rows):\n    return rows.dropDuplicates(['id'])",
    "state": {"provider": "hdfs", "shuffle_partitions": 2},
}


def declared(workshop: Workshop, *, streams: int) -> Iterator[str]:
    """Streams that copy one table, each into its own."""
    source = workshop.declare_table("source", COLUMNS)
    for number in range(streams):
        name = f"s{workshop.namespace}{number}"
        how: dict[str, Any] = {"sql": "SELECT * FROM rows"} if number % 4 else EVERY_FOURTH
        workshop.declare_stream(
            name,
            inputs={"rows": {"stream": {"iceberg": {"table": source}}}},
            outputs={"copies": {"iceberg": {"table": workshop.declare_table(f"copies{number}", COLUMNS)}}},
            **how,
        )
        yield name


def seconds_of(workshop: Workshop, names: Sequence[str]) -> float:
    """How long it takes to check some streams, which are all healthy."""
    declarations, began = load_declarations(workshop.folder), time.monotonic()
    found = check_checkpoints(workshop.ledger, declarations, workshop.settings, streams=names)
    seconds = time.monotonic() - began
    if [one.stream for one in found if one.healthy] != list(names):
        problems = [finding.message for one in found for finding in one.problems]
        raise SystemExit(f"{len(found)} of {len(names)} streams were checked; not healthy: {problems}")
    return seconds


def measure(bench: Bench, *, streams: int, batches: int) -> bool:
    """Measure and print; whether the limits are kept."""
    workshop = bench.workshop()
    checkpoints = f"s3a://{LANDING_BUCKET}/checkpoints/{workshop.namespace}"
    workshop = replace(workshop, settings=workshop.settings.model_copy(update={"checkpoints": checkpoints}))
    names = list(declared(workshop, streams=streams))
    for batch in range(batches):
        workshop.append("source", [{"id": one, "word": "w"} for one in range(100 * batch, 100 * batch + 100)])
        for name in track(names, f"batch {batch + 1} of {batches}", console=Console(stderr=True)):
            workshop.run(name, is_recorded=True)
    together = seconds_of(workshop, names)
    alone = [seconds_of(workshop, [name]) for name in names[:20]]
    is_met = together <= MOST_SECONDS and max(alone) <= MOST_SECONDS_OF_ONE
    Console(width=140).print(
        f"{streams} streams together: {together:.1f} s (at most {MOST_SECONDS:.0f} s); one: "
        f"{statistics.median(alone):.2f} s, {max(alone):.2f} s at most of {len(alone)} (at most "
        f"{MOST_SECONDS_OF_ONE:.0f} s): {'met' if is_met else 'MISSED'}"
    )
    return is_met


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; ends with 1 when a stream is not healthy, or a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--batches", type=int, default=2, help="of each stream")
    options = parser.parse_args(arguments)
    with open_bench(rows=1, batches=1) as bench:
        return 0 if measure(bench, streams=options.streams, batches=options.batches) else 1


if __name__ == "__main__":
    sys.exit(main())
