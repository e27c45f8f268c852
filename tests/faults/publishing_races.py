"""Races of publishers: several processes publish the same batch at once, beside a writer that never rests.

    python -m tests.faults.publishing_races --rounds 200

Prints a table and ends with 1 when a batch did not become visible exactly once. Each publisher is a process of its own
with a catalog of its own; in every round all of them are let go at the same time. DuckDB reads the result.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path
from uuid import uuid4

from rich.console import Console
from rich.table import Table as ReportTable
from tests.fixtures.publication import CatalogPlace, Workbench, open_catalog_at
from tests.fixtures.stack import stack_in

from sluice.publication.crash_points import CrashPoint
from sluice.publication.staged_batch import StagedOutput

LONGEST_SECONDS = 300
"""How long a round may take on a machine that is busy with other things."""

WRITER_PAUSE_SECONDS = 0.2
OTHERS_ID = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceReport:
    """What came of the races on one catalog.

    winners: the rounds in which exactly one publisher said that it had published.
    lost_races: commits that were sent and refused. foreign_commits: what the steady writer landed meanwhile.
    lost, duplicated: rows of batches that are not there, or more than once.
    """

    catalog: str
    rounds: int
    publishers: int
    winners: int
    lost_races: int
    foreign_commits: int
    lost: int
    duplicated: int
    seconds: float

    @property
    def is_right(self) -> bool:
        """Whether every batch became visible exactly once, by exactly one publisher."""
        return self.winners == self.rounds and not self.lost and not self.duplicated


@dataclass(frozen=True, slots=True, kw_only=True)
class _Racer:
    """What a process needs to take part."""

    place: CatalogPlace
    output: StagedOutput
    rounds: int

    def bench(self) -> Workbench:
        catalog = open_catalog_at(self.place)
        return Workbench(open_catalog=lambda: catalog, catalog=catalog, output=self.output, place=self.place)


def run_races(place: CatalogPlace, *, name: str, rounds: int, publishers: int = 3) -> RaceReport:
    """Let publishers race for so many batches, beside a steady writer.

    Parameters
    ----------
    name: the catalog's, for the report.
    """
    stream = f"races_{uuid4().hex[:8]}"
    racer = _Racer(
        place=place, output=StagedOutput(stream=stream, output="main", target=f"{stream}.rows"), rounds=rounds
    )
    bench = racer.bench()
    bench.declare()
    bench.begin()
    context = multiprocessing.get_context("spawn")
    start, said, over = context.Barrier(publishers + 1), context.Queue(), context.Event()
    processes: list[BaseProcess] = [
        context.Process(target=_publish_all, args=(racer, start, said), daemon=True) for _ in range(publishers)
    ]
    processes.append(context.Process(target=_write_steadily, args=(racer, over), daemon=True))
    began = time.monotonic()
    with _running(processes):
        outcomes = [_round(bench, number, start, said, publishers) for number in range(rounds)]
        over.set()
        for process in processes:
            process.join(LONGEST_SECONDS)
    seconds = time.monotonic() - began
    seen = Counter(bench.ids_by_duckdb())
    foreign = seen.pop(OTHERS_ID, 0)
    bench.catalog.close()
    return RaceReport(
        catalog=name,
        rounds=rounds,
        publishers=publishers,
        winners=sum(sum(published for published, _ in round_) == 1 for round_ in outcomes),
        lost_races=sum(refused for round_ in outcomes for _, refused in round_),
        foreign_commits=foreign,
        lost=sum(number not in seen for number in range(rounds)),
        duplicated=sum(count - 1 for count in seen.values()),
        seconds=seconds,
    )


def _round(
    bench: Workbench, number: int, start: Barrier, said: Queue[tuple[int, int]], publishers: int
) -> list[tuple[int, int]]:
    bench.stage(number, [number])
    start.wait(LONGEST_SECONDS)
    outcomes = [said.get(timeout=LONGEST_SECONDS) for _ in range(publishers)]
    if number % 10 == 9:
        bench.clear()
    return outcomes


def _publish_all(racer: _Racer, start: Barrier, said: Queue[tuple[int, int]]) -> None:
    bench = racer.bench()
    for number in range(racer.rounds):
        start.wait(LONGEST_SECONDS)
        (batch,) = [batch for batch in bench.staged() if batch.summary.key.batch == number]
        sent = Counter[CrashPoint]()
        publication = bench.publish(batch, reached=lambda point, sent=sent: sent.update([point]))
        published = int(not publication.was_published_before)
        said.put((published, sent.total() - published))


def _write_steadily(racer: _Racer, over: Event) -> None:
    bench = racer.bench()
    while not over.wait(WRITER_PAUSE_SECONDS):
        bench.write_as_another(OTHERS_ID)


@contextmanager
def _running(processes: Sequence[BaseProcess]) -> Iterator[None]:
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join(LONGEST_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the races on both catalogs and print what came of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--publishers", type=int, default=3)
    options = parser.parse_args(arguments)
    reports = []
    with tempfile.TemporaryDirectory() as folder, stack_in(Path(folder) / "data") as stack:
        stack.up(("postgres", "seaweedfs"))
        for name, place in catalog_places(stack.environment(), Path(folder)):
            reports.append(run_races(place, name=name, rounds=options.rounds, publishers=options.publishers))
    _print(reports)
    return 0 if all(report.is_right for report in reports) else 1


def catalog_places(environment: dict[str, str], folder: Path) -> Iterator[tuple[str, CatalogPlace]]:
    """The two catalogs of a stack that runs in a folder, with their names."""
    yield "REST on SeaweedFS", CatalogPlace(environment=environment)
    url = environment["SLUICE_LEDGER_URL"]
    yield "SQL on PostgreSQL", CatalogPlace(sql_url=url, warehouse=f"file://{folder}/warehouse")


def _print(reports: Sequence[RaceReport]) -> None:
    table = ReportTable(title="Publishers racing for the same batches")
    for heading in ("catalog", "rounds", "publishers", "one winner", "lost races", "foreign commits"):
        table.add_column(heading, justify="left" if heading == "catalog" else "right")
    for heading in ("lost", "duplicated", "s a round", "verdict"):
        table.add_column(heading, justify="right")
    for seen in reports:
        counts = (seen.rounds, seen.publishers, seen.winners, seen.lost_races, seen.foreign_commits)
        table.add_row(
            seen.catalog,
            *map(str, counts),
            str(seen.lost),
            str(seen.duplicated),
            f"{seen.seconds / seen.rounds:.2f}",
            "right" if seen.is_right else "WRONG",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    sys.exit(main())
