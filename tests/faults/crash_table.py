"""Drivers are killed at every named place, in every way of publishing, on a quiet table and on a busy one.

    python -m tests.faults.crash_table [--only merge] [--points staged checked] [--beside quiet repeating] [--json]

Prints a table and ends with 1 when a batch was lost or doubled. Each driver is a process of its own under SIGKILL; the
next one works in this process. On a busy table either somebody compacts and expires all the time, without asking
Sluice, and leaves one snapshot; or another writer appends rows of a partition of its own, of which none may be lost.
Or both drivers reach the catalog through a gateway that repeats every commit, so that the answer to one that landed is
a refusal; or through one that answers 503 to every commit that landed.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyiceberg.exceptions import CommitFailedException
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from rich.console import Console
from rich.progress import track
from rich.table import Table as ReportTable
from tests.fixtures.crash_scenarios import FOREIGN, Scenario, Way
from tests.fixtures.spark_submit import submit_arguments
from tests.fixtures.stack import Stack, stack_in
from tests.fixtures.tampering import ALWAYS, Fault, FaultyProxy, faulty_proxy
from tests.fixtures.workshop import Workshop

from sluice.declarations.run_declaration import StateDeclaration
from sluice.ledger.connection import Ledger, open_ledger
from sluice.settings import Settings
from sluice_spark.session.session import open_session

FOREIGN_ROW: Mapping[str, Any] = {"id": -1, "word": FOREIGN, "brought_by": None}

PAUSE_SECONDS = 0.5
"""Between two turns of whoever else works on the table."""


class Surroundings(StrEnum):
    """Who else works on the table, or what is between the drivers and the catalog."""

    QUIET = "quiet"
    UPKEEP = "compaction and expiry"
    WRITER = "second writer"
    REPEATING = "gateway that repeats commits"
    FAILING = "gateway that fails after commits"


BY_INCREMENTS = frozenset({Way.APPEND, Way.MERGE})
"""The ways that are also tried as increments, on a quiet table: a batch passes the same places in both modes."""

GATEWAYS = {Surroundings.REPEATING: Fault.REPEATED, Surroundings.FAILING: Fault.FAILED_AFTER}
"""What befalls every commit of both drivers behind a gateway."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashReport:
    """What came of one driver's death.

    turns: what somebody else committed to the table meanwhile, or how many commits the gateway spoiled.
    lost, doubled: rows, those of the other writer among them.
    problem: what ended the check itself; empty when nothing did.
    """

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


def crash(drill: Drill, scenario: Scenario, surroundings: Surroundings) -> CrashReport:
    """Kill one driver, let another do the rest, and count."""
    began, workshop = time.monotonic(), drill.workshop()
    stream = f"s{workshop.namespace}"
    lost = doubled = 0
    problem = ""
    turns: list[int] = []
    try:
        scenario.declare(workshop, stream)
        with working_beside(workshop, surroundings, turns), drill.behind(GATEWAYS.get(surroundings), turns):
            scenario.crash_and_recover(workshop, drill.environment(), stream)
        seen = Counter(tuple(row.values()) for row in workshop.rows("target"))
        foreign = [FOREIGN_ROW] * (len(turns) if surroundings is Surroundings.WRITER else 0)
        wanted = Counter(tuple(row.values()) for row in [*scenario.expected(), *foreign])
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
    """Let somebody else work on the table, turn by turn, while the block runs.

    Parameters
    ----------
    turns: gets an entry for each commit of theirs. A race that they lose is none.

    Raises
    ------
    Exception: what ended their work early, when it was no lost race.
    """
    work: dict[Surroundings, Callable[[], int]] = {
        Surroundings.UPKEEP: lambda: _keep_up(workshop),
        Surroundings.WRITER: lambda: _write(workshop),
    }
    if surroundings not in work:
        yield
        return
    over, errors = threading.Event(), list[Exception]()

    def turn_by_turn() -> None:
        try:
            while not over.wait(PAUSE_SECONDS):
                turns.extend([1] * work[surroundings]())
        except Exception as error:  # noqa: BLE001  # raised below: a table that is quiet after all proves nothing
            errors.append(error)

    thread = threading.Thread(target=turn_by_turn, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if errors:
        raise errors[0]


def _write(workshop: Workshop) -> int:
    """Append a row. Returns whether it was faster than the others."""
    try:
        workshop.append("target", [FOREIGN_ROW])
    except CommitFailedException:
        return 0
    return 1


def _keep_up(workshop: Workshop) -> int:
    """Compact the table and leave one snapshot. A writer that commits first wins, as it is to be. Returns what was
    done."""
    table = workshop.table_name("target")
    session, catalog = workshop.spark.newSession(), workshop.settings.catalog.name
    session.conf.set(f"spark.sql.catalog.{catalog}.s3.delete-enabled", "true")  # unlike a driver
    done = 0
    for call in (
        f"rewrite_data_files(table => '{catalog}.{table}', options => map('min-input-files', '2'))",
        f"expire_snapshots(table => '{catalog}.{table}', older_than => timestamp '2099-01-01', retain_last => 1)",
    ):
        try:
            session.sql(f"CALL {catalog}.system.{call}").collect()
        except Exception as error:  # py4j's errors have many faces; all of them are lost races here
            if not isinstance(error, PySparkException) and "Py4J" not in type(error).__name__:
                raise
        else:
            done += 1
    return done


def scenarios(only: Sequence[str], points: Sequence[str], beside: Sequence[str]) -> list[tuple[Scenario, Surroundings]]:
    """Every way with every place that it passes, quiet and busy, some by increments; those that are asked for."""
    return [
        (Scenario(way=way, point=point, is_increment=is_increment), surroundings)
        for surroundings in Surroundings
        if not beside or surroundings.name.lower() in beside
        for way in Way
        for point in way.points
        if (not only or way.value in only) and (not points or point.value in points)
        for is_increment in ((False, True) if surroundings is Surroundings.QUIET and way in BY_INCREMENTS else (False,))
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Kill all drivers, one after the other, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=[], help="ways of publishing: append, merge, …")
    parser.add_argument("--points", nargs="*", default=[], help="places: staged, checked, …")
    parser.add_argument("--beside", nargs="*", default=[], help="quiet, upkeep, writer, repeating, failing")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args(arguments)
    chosen = scenarios(options.only, options.points, options.beside)
    if not chosen:
        parser.error("no driver is to be killed: no way, place and surroundings of these names go together")
    console = Console(stderr=True)
    with drill_workshops() as drill:
        reports = []
        for scenario, surroundings in track(chosen, "drivers killed", console=console):
            reports.append(crash(drill, scenario, surroundings))
            console.print(_line(reports[-1]), soft_wrap=True)
    if options.json:
        print(json.dumps([asdict(report) for report in reports], indent=1))  # noqa: T201  # the answer of the program
    else:
        _print(reports)
    return 0 if all(report.is_right for report in reports) else 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    """A stack of its own with one Spark session, in which the drivers work that are neither killed nor stopped.

    proxy: through which all of them reach the catalog.
    """

    stack: Stack
    proxy: FaultyProxy
    spark: SparkSession
    ledger: Ledger
    folder: Path

    def workshop(self) -> Workshop:
        """Tables, declarations and checkpoints for one fault."""
        namespace = f"n{uuid4().hex[:12]}"
        pipelines = self.folder / namespace / "pipelines"
        pipelines.mkdir(parents=True)
        checkpoints = (self.folder / namespace / "checkpoints").as_uri()
        settings = behind(self.proxy, self.stack.settings())
        settings = settings.model_copy(update={"pipelines": pipelines, "checkpoints": checkpoints})
        return Workshop(spark=self.spark, settings=settings, ledger=self.ledger, namespace=namespace)

    def environment(self) -> dict[str, str]:
        """The settings of the services for a driver of its own process."""
        return {**self.stack.environment(), "SLUICE_CATALOG__URI": self.proxy.address}

    @contextmanager
    def behind(self, fault: Fault | None, turns: list[int]) -> Iterator[None]:
        """Let a fault befall every commit while the block runs. turns: gets an entry for each."""
        self.proxy.befallen.clear()
        if fault is not None:
            self.proxy.faults[fault] = ALWAYS
        try:
            yield
        finally:
            self.proxy.faults.clear()
            turns.extend([1] * self.proxy.befallen.total())


def behind(proxy: FaultyProxy, settings: Settings) -> Settings:
    """Settings with which a program reaches the catalog through a proxy."""
    through = settings.catalog.model_copy(update={"uri": proxy.address})
    return settings.model_copy(update={"catalog": through})


@contextmanager
def drill_workshops(services: Sequence[str] = ("postgres", "seaweedfs"), *, memory_gib: int = 1) -> Iterator[Drill]:
    """Start services and a session; they end with the block. memory_gib: the session's heap."""
    with tempfile.TemporaryDirectory() as folder, stack_in(Path(folder) / "data") as stack:
        stack.up(services)
        settings = stack.settings()
        os.environ["PYSPARK_SUBMIT_ARGS"] = submit_arguments(settings, memory_gib=memory_gib)
        with faulty_proxy(settings.catalog.uri) as proxy:
            proxy.spared = frozenset({"source"})  # no writer under test writes what the streams read
            spark = open_session(behind(proxy, settings), name="drill", state=StateDeclaration(), deletes_files=False)
            try:
                with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
                    yield Drill(stack=stack, proxy=proxy, spark=spark, ledger=ledger, folder=Path(folder))
            finally:
                spark.stop()


def _line(report: CrashReport) -> str:
    verdict = "right" if report.is_right else f"WRONG {report.problem}"
    return (
        f"{report.scenario.name} · {report.scenario.point} · {report.surroundings}: lost {report.lost}, doubled "
        f"{report.doubled}, {report.seconds:.0f} s: {verdict}"
    )


def _print(reports: Sequence[CrashReport]) -> None:
    table = ReportTable(title=f"{len(reports)} drivers killed")
    for heading in ("way", "place", "table", "lost", "doubled", "turns beside", "seconds", "verdict"):
        table.add_column(heading)
    for report in reports:
        table.add_row(
            report.scenario.name,
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
