"""Drivers are killed at every named place, in every way of publishing, on a quiet table and on a busy one.

    python -m tests.faults.crash_table [--only merge] [--points staged checked]

Prints a table and ends with 1 when a batch was lost or doubled. Each driver is a process of its own under SIGKILL; the
next one works in this process. On a busy table either Sluice's upkeep compacts and expires all the time, with one
snapshot left, or another writer appends rows of a partition of its own.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from uuid import uuid4

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import track
from rich.table import Table as ReportTable
from tests.faults.dying_driver import submit_arguments
from tests.fixtures.crash_scenarios import FOREIGN, Scenario, Way
from tests.fixtures.stack import Stack, stack_in
from tests.fixtures.workshop import Workshop

from sluice.declarations.streams import StateDeclaration
from sluice.ledger.connection import Ledger, open_ledger
from sluice_spark.session import open_session

PAUSE_SECONDS = 0.5
"""Between two turns of whoever else works on the table."""


class Surroundings(StrEnum):
    """Who else works on the table."""

    QUIET = "quiet"
    UPKEEP = "compaction and expiry"
    WRITER = "second writer"


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashReport:
    """What came of one driver's death. problem: what ended the check itself; empty when nothing did."""

    scenario: Scenario
    surroundings: Surroundings
    lost: int
    doubled: int
    turns: int
    seconds: float
    problem: str = ""

    @property
    def is_right(self) -> bool:
        """Whether every batch is in its table once."""
        return not self.lost and not self.doubled and not self.problem


def crash(workshop: Workshop, stack: Stack, scenario: Scenario, surroundings: Surroundings) -> CrashReport:
    """Kill one driver, let another do the rest, and count."""
    began = time.monotonic()
    stream = f"s{workshop.namespace}"
    lost = doubled = 0
    problem = ""
    turns: list[int] = []
    scenario.declare(workshop, stream)
    try:
        with working_beside(workshop, surroundings, turns):
            scenario.crash_and_recover(workshop, stack.environment(), stream)
        seen = Counter(tuple(row.values()) for row in workshop.rows("target") if row["word"] != FOREIGN)
        wanted = Counter(tuple(row.values()) for row in scenario.expected())
        lost, doubled = (wanted - seen).total(), (seen - wanted).total()
        if scenario.way is Way.TWO:
            words, rows = len(workshop.rows("words")), len(scenario.expected())
            lost, doubled = lost + max(0, rows - words), doubled + max(0, words - rows)
    except Exception as error:  # noqa: BLE001  # one row of the table; the others are to be seen all the same
        problem = f"{type(error).__name__}: {str(error).splitlines()[0][:120] if str(error) else ''}"
    return CrashReport(
        scenario=scenario,
        surroundings=surroundings,
        lost=lost,
        doubled=doubled,
        turns=len(turns),
        seconds=time.monotonic() - began,
        problem=problem,
    )


@contextmanager
def working_beside(workshop: Workshop, surroundings: Surroundings, turns: list[int]) -> Iterator[None]:
    """Let somebody else work on the table, turn by turn, while the block runs."""
    work: dict[Surroundings, Callable[[], None]] = {
        Surroundings.QUIET: lambda: None,
        Surroundings.UPKEEP: lambda: _keep_up(workshop),
        Surroundings.WRITER: lambda: workshop.append("target", [{"id": -1, "word": FOREIGN}]),
    }
    over = threading.Event()

    def turn_by_turn() -> None:
        while not over.wait(PAUSE_SECONDS):
            work[surroundings]()
            turns.append(1)

    thread = threading.Thread(target=turn_by_turn, daemon=True)
    if surroundings is not Surroundings.QUIET:
        thread.start()
    try:
        yield
    finally:
        over.set()
        if surroundings is not Surroundings.QUIET:
            thread.join()


def _keep_up(workshop: Workshop) -> None:
    """Compact the table and leave one snapshot. A writer that commits first wins, as it is to be."""
    table = workshop.table_name("target")
    session = workshop.spark.newSession()
    catalog = workshop.settings.catalog.name
    for call in (
        f"rewrite_data_files(table => '{catalog}.{table}', options => map('min-input-files', '2'))",
        f"expire_snapshots(table => '{catalog}.{table}', older_than => timestamp '2099-01-01', retain_last => 1)",
    ):
        try:
            session.sql(f"CALL {catalog}.system.{call}").collect()
        except Exception as error:  # py4j's errors have many faces; all of them are lost races here
            if not isinstance(error, PySparkException) and "Py4J" not in type(error).__name__:
                raise


def scenarios(only: Sequence[str], points: Sequence[str]) -> list[tuple[Scenario, Surroundings]]:
    """Every way with every place that it passes, quiet and busy."""
    return [
        (Scenario(way=way, point=point), surroundings)
        for surroundings in Surroundings
        for way in Way
        for point in way.points
        if (not only or way.value in only) and (not points or point.value in points)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill all drivers, one after the other, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="ways of publishing: append, merge, …")
    parser.add_argument("--points", nargs="*", default=[], help="places: staged, checked, …")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, stack_in(Path(folder) / "data") as stack:
        stack.up(("postgres", "seaweedfs"))
        reports = _all_reports(Path(folder), stack, scenarios(options.only, options.points))
    _print(reports)
    return 0 if all(report.is_right for report in reports) else 1


def _all_reports(folder: Path, stack: Stack, chosen: Sequence[tuple[Scenario, Surroundings]]) -> list[CrashReport]:
    settings = stack.settings()
    os.environ["PYSPARK_SUBMIT_ARGS"] = submit_arguments(settings)
    spark = open_session(settings, name="drill", state=StateDeclaration())
    console = Console(stderr=True)
    try:
        with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
            reports = []
            for scenario, surroundings in track(chosen, "drivers killed", console=console):
                workshop = _workshop(folder, spark, stack, ledger)
                report = crash(workshop, stack, scenario, surroundings)
                reports.append(report)
                console.print(_line(report))
            return reports
    finally:
        spark.stop()


def _workshop(folder: Path, spark: SparkSession, stack: Stack, ledger: Ledger) -> Workshop:
    namespace = f"n{uuid4().hex[:12]}"
    pipelines = folder / namespace / "pipelines"
    pipelines.mkdir(parents=True)
    checkpoints = (folder / namespace / "checkpoints").as_uri()
    settings = stack.settings().model_copy(update={"pipelines": pipelines, "checkpoints": checkpoints})
    return Workshop(spark=spark, settings=settings, ledger=ledger, namespace=namespace)


def _line(report: CrashReport) -> str:
    verdict = "right" if report.is_right else f"WRONG {report.problem}"
    return (
        f"{report.scenario.way} · {report.scenario.point} · {report.surroundings}: lost {report.lost}, doubled "
        f"{report.doubled}, {report.seconds:.0f} s: {verdict}"
    )


def _print(reports: Sequence[CrashReport]) -> None:
    table = ReportTable(title=f"{len(reports)} drivers killed")
    for heading in ("way", "place", "table", "lost", "doubled", "turns beside", "seconds", "verdict"):
        table.add_column(heading)
    for report in reports:
        table.add_row(
            report.scenario.way,
            report.scenario.point,
            report.surroundings,
            str(report.lost),
            str(report.doubled),
            str(report.turns),
            f"{report.seconds:.0f}",
            "right" if report.is_right else f"WRONG {report.problem}",
        )
    Console(width=140).print(table)


if __name__ == "__main__":
    sys.exit(main())
