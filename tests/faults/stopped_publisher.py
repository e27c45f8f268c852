"""A driver is stopped for more than a minute between its check and its commit; another takes the stream over.

    python -m tests.faults.stopped_publisher --seconds 65

Prints a table and ends with 1 when the stopped one published anything.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from rich.console import Console
from rich.table import Table as ReportTable
from tests.faults.publishing_races import catalog_places
from tests.fixtures.publication import CatalogPlace, Workbench, open_catalog_at
from tests.fixtures.stack import stack_in

from sluice.publication.mark_moves import take_over
from sluice.publication.staged_batch import StagedOutput

BATCHES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ZombieReport:
    """What came of one stopped driver. outcome: what it ended with. ids: what the target holds."""

    catalog: str
    outcome: str
    ids: tuple[int, ...]

    @property
    def is_right(self) -> bool:
        """Whether the stopped driver gave up by name, and every batch is there once."""
        return self.outcome == "StaleTokenError" and self.ids == tuple(range(BATCHES))


def stop_and_replace(place: CatalogPlace, *, name: str, seconds: float) -> ZombieReport:
    """Stop a driver at its first batch; let the next one publish it and those after it, all the while."""
    catalog = open_catalog_at(place)
    stream = f"zombie_{uuid4().hex[:8]}"
    output = StagedOutput(stream=stream, output="main", target=f"{stream}.rows")
    old = Workbench(open_catalog=lambda: catalog, catalog=catalog, output=output, place=place)
    old.declare()
    old.begin()
    old.stage(0, [0])
    with old.process(0, signal_at_check=signal.SIGSTOP) as zombie:
        zombie.await_stop()
        new = old.as_run(2)
        take_over(new.catalog, new.output, token=new.run)
        new.recover()
        for number in range(1, BATCHES):
            new.publish(new.stage(number, [number]))
            time.sleep(seconds / BATCHES)  # how long it stands still is what is tested
        zombie.go_on()
        _, answer = zombie.result()
    ids = tuple(new.ids_by_duckdb())
    catalog.close()
    return ZombieReport(catalog=name, outcome=answer.get("outcome", "no answer"), ids=ids)


def main(arguments: Sequence[str] | None = None) -> int:
    """Stop one driver on each catalog and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=65)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, stack_in(Path(folder) / "data") as stack:
        stack.up(("postgres", "seaweedfs"))
        places = catalog_places(stack.environment(), Path(folder))
        reports = [stop_and_replace(place, name=name, seconds=options.seconds) for name, place in places]
    table = ReportTable(title=f"A driver stopped for {options.seconds:.0f} s between check and commit")
    for heading in ("catalog", "ended with", "batches", "verdict"):
        table.add_column(heading)
    for seen in reports:
        table.add_row(seen.catalog, seen.outcome, str(len(seen.ids)), "right" if seen.is_right else "WRONG")
    Console(width=120).print(table)
    return 0 if all(report.is_right for report in reports) else 1


if __name__ == "__main__":
    sys.exit(main())
