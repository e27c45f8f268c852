"""What an increment of few rows takes beside the same one with plain `spark-submit`, and an increment of none.

    .venv/bin/python -m benchmarks.increment_time [--rows 100] [--rounds 5] [--json]

*Small increment*: a few rows are appended to a table; the seconds from its start to the commit that makes them visible
in another table, by turns with a script of PySpark and Iceberg's sink under plain `spark-submit`. Sluice runs it in two
ways: by an application that is started for it, and by one that is at work since the increment before
(`engine.kept_minutes`). Each has tables of its own with the same rows, which are compared before any time counts; the
first round is a warm-up, starts the warm application, and does not count. *Empty increment*: the same stream without
new rows, as a task of a real Airflow; the seconds of the task, as Airflow counts them. That no Spark was started is
read in its log.

Ends with 1 when tables differ, an empty increment starts Spark or takes more than 3 s, or a small one by a warm
application is not visible 5 times sooner.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
import yaml
from benchmarks.asked_work import AskedWork, asked_work
from benchmarks.backfill_time import COLUMNS, QUERY, content_of, rows_of
from benchmarks.paired_turns import Limit, Spread, Turn, over_rounds, speed, take_turns
from rich.console import Console
from rich.table import Table
from tests.fixtures.stack import Stack, stack_in

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import all_tables
from sluice.demo.airflow_api import AirflowAccess, AirflowApi, open_airflow_api
from sluice.launching.launch_settings import class_path
from sluice.processes.deadline import wait_until
from sluice.settings import Settings
from sluice.stack.credentials import AIRFLOW_USER, read_credentials
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import create_or_evolve_table
from sluice.work.requests import Increment

STREAM = "increments"
PLAIN, COLD, WARM = "plain spark-submit", "sluice, an application for it", "sluice, a warm application"
STREAMS = {COLD: STREAM, WARM: "increments_warm"}
TABLES = {
    PLAIN: ("bench.plain_source", "bench.plain_target"),
    COLD: ("bench.source", "bench.target"),
    WARM: ("bench.warm_source", "bench.warm_target"),
}
ENGINES: Mapping[str, Any] = {COLD: {"driver_memory": "1025MiB"}, WARM: {"kept_minutes": 10}}
"""Streams of different engine settings share no application."""

LIMIT = Limit(way=WARM, what="times sooner visible", figure=speed, least=5.0)
MOST_EMPTY_SECONDS = 3.0
JOB_SECONDS = 300.0
_NO_SPARK = "Spark is not started"


def declaration_of(way: str) -> Mapping[str, Any]:
    """The stream of one of Sluice's ways."""
    source, target = TABLES[way]
    return {
        "stream": STREAMS[way],
        "description": "few rows",
        "owner": "benchmark",
        "mode": "incremental",
        "schedule": {"cron": "0 0 1 1 *"},
        "inputs": {"records": {"stream": {"iceberg": {"table": source}}}},
        "transformation": {"sql": "increments.sql"},
        "outputs": {"rows": {"iceberg": {"table": target}}},
        "engine": ENGINES[way],
    }


@dataclass(slots=True, kw_only=True)
class Bench:
    """Where the ways run.

    rows: of each increment. turns: how many increments each way has had.
    cold, warm: the applications of these two ways.
    """

    settings: Settings
    stack: Stack
    cold: AskedWork
    warm: AskedWork
    folder: Path
    rows: int
    turns: dict[str, int]

    def create_tables(self) -> None:
        """Create the sources and the targets."""
        catalog = open_catalog(self.settings)
        for declaration in all_tables(load_declarations(self.settings.pipelines)).values():
            create_or_evolve_table(catalog, declaration)

    def plain(self) -> Turn:
        """The increment as one writes it."""
        source, target = TABLES[PLAIN]
        checkpoint = (self.folder / "plain-checkpoint").as_uri()
        script = Path(__file__).with_name("plain_increment.py")
        jars = f"spark.driver.extraClassPath={class_path(self.settings.jars, home=self.settings.home)}"
        words = ["--master", "local[2]", "--conf", jars, "--conf", "spark.ui.enabled=false", str(script)]
        options = [f"--source={source}", f"--target={target}", f"--checkpoint={checkpoint}"]
        binary = str(Path(sys.executable).with_name("spark-submit"))
        environment = {**os.environ, **self.stack.environment()}
        self.append(PLAIN)
        began = time.time()
        log = self.folder / "plain.log"
        with log.open("wb") as output:
            ended = subprocess.run(  # noqa: S603  # our own script
                [binary, *words, *options],
                env=environment,
                stdout=output,
                stderr=output,
                timeout=JOB_SECONDS,
                check=False,
            )
        if ended.returncode:
            raise SystemExit(f"the plain increment failed:\n{log.read_text()[-4000:]}")
        return self.turn(PLAIN, began=began)

    def by_cold(self) -> Turn:
        """The declared stream, by an application that is started for it."""
        self.cold.end_applications()
        return self.asked(COLD, self.cold)

    def by_warm(self) -> Turn:
        """The declared stream, by an application that is at work; the first turn starts that."""
        turn = self.asked(WARM, self.warm)
        if self.warm.applications != 1:
            raise SystemExit(f"{self.warm.applications} applications were started for {STREAMS[WARM]} instead of one")
        return turn

    def asked(self, way: str, work: AskedWork) -> Turn:
        """An increment of a declared stream."""
        self.append(way)
        began = time.time()
        work.have_done(Increment(stream=STREAMS[way]))
        return self.turn(way, began=began)

    def append(self, way: str) -> None:
        """Append the rows of the next increment to the source of a way."""
        source = open_catalog(self.settings).load_table(TABLES[way][0])
        source.append(rows_of(self.turns[way], count=self.rows).to_arrow().cast(source.schema().as_arrow()))
        self.turns[way] += 1

    def turn(self, way: str, *, began: float) -> Turn:
        """What was measured. began: the start of the job, in seconds since the epoch."""
        ended = time.time()
        target = open_catalog(self.settings).load_table(TABLES[way][1])
        newest = target.current_snapshot()
        visible_at = newest.timestamp_ms / 1000 if newest is not None else began
        if visible_at < began:
            raise SystemExit(f"the increment of {way} has made nothing visible")
        content = content_of(pl.DataFrame(target.scan().to_arrow()))
        seconds = ended - began
        return Turn(batches_ms=((visible_at - began) * 1000,), busy_seconds=seconds, seconds=seconds, content=content)


def empty_increments(airflow: AirflowApi, *, number: int) -> list[float]:
    """The seconds of tasks that find no new rows."""
    wait_until(lambda: airflow.is_known(STREAM), bool, seconds=JOB_SECONDS)
    airflow.unpause(STREAM)
    seconds = []
    for _ in range(number):
        begun = airflow.trigger(STREAM, conf={})
        run = wait_until(partial(airflow.find_run, begun), lambda seen: seen.has_ended, seconds=JOB_SECONDS)
        if run.state != "success":
            raise SystemExit(f"the empty increment {run.run_id} is {run.state}: {airflow.explain_failure(run)}")
        path = f"/api/v2/dags/{STREAM}/dagRuns/{run.run_id}/taskInstances"
        (task,) = airflow.request("GET", path)["task_instances"]
        log = airflow.request("GET", f"{path}/{task['task_id']}/logs/1", params={"full_content": True})
        if _NO_SPARK not in str(log):
            raise SystemExit(f"the empty increment {run.run_id} has started Spark: {str(log)[-4000:]}")
        seconds.append(float(task["duration"]))
    return seconds


@contextmanager
def running_bench(folder: Path, *, rows: int) -> Iterator[Bench]:
    """A whole stack with the declared stream and the tables of both ways."""
    pipelines = folder / "pipelines"
    pipelines.mkdir()
    for name in (name for both in TABLES.values() for name in both):
        declared = {"table": name, "description": name, "owner": "benchmark", "columns": COLUMNS}
        (pipelines / f"{name}.table.yaml").write_text(yaml.safe_dump(declared))
    for way, stream in STREAMS.items():
        (pipelines / f"{stream}.stream.yaml").write_text(yaml.safe_dump(dict(declaration_of(way))))
    (pipelines / "increments.sql").write_text(QUERY)
    with stack_in(folder / "data", SLUICE_PIPELINES=str(pipelines)) as stack:
        stack.up()
        settings = stack.settings()
        environment = stack.environment()
        with asked_work(settings, environment) as cold, asked_work(settings, environment) as warm:
            turns = dict.fromkeys(TABLES, 0)
            bench = Bench(settings=settings, stack=stack, cold=cold, warm=warm, folder=folder, rows=rows, turns=turns)
            bench.create_tables()
            yield bench


def airflow_of(stack: Stack) -> AirflowAccess:
    """The login to the Airflow of a stack."""
    password = read_credentials(stack.data / "credentials.json").airflow_admin_password
    return AirflowAccess(url=stack.environment()["AIRFLOW__API__BASE_URL"], user=AIRFLOW_USER, password=password)


def show(
    turns: Mapping[str, Sequence[Turn]], sooner: Mapping[str, Spread], empty: Sequence[float], *, rows: int
) -> None:
    """Print what each way took."""
    table = Table(title=f"Increments of {rows} rows and of none, {os.cpu_count()} cores")
    for heading in ("increment", "rows visible after", "job", "times sooner", "asked", ""):
        table.add_column(heading, justify="left" if heading in {"increment", ""} else "right")
    for name, of_way in turns.items():
        visible_ms = statistics.median(turn.batch_ms for turn in of_way)
        job = statistics.median(turn.seconds for turn in of_way)
        limits = (str(LIMIT), _verdict(LIMIT.is_met(sooner[name]))) if name == WARM else ("", "")
        figures = (str(sooner.get(name, 1)), *limits)
        table.add_row(name, f"{visible_ms / 1000:.1f} s", f"{job:.1f} s", *figures)
    slowest, median = max(empty), statistics.median(empty)
    asked = f"at most {MOST_EMPTY_SECONDS:g} s"
    task = f"{median:.1f} s (at most {slowest:.1f})"
    table.add_row("none, a task of Airflow", "", task, "", asked, _verdict(slowest <= MOST_EMPTY_SECONDS))
    Console(width=140).print(table)


def _verdict(is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print. Returns 1 when tables differ or a figure is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100, help="rows of an increment")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, running_bench(Path(folder), rows=options.rows) as bench:
        measured = take_turns({PLAIN: bench.plain, COLD: bench.by_cold, WARM: bench.by_warm}, rounds=options.rounds + 1)
        with open_airflow_api(airflow_of(bench.stack)) as airflow:
            empty = empty_increments(airflow, number=options.rounds)
    turns = {name: of_way[1:] for name, of_way in measured.items()}
    if any(
        [turn.content for turn in measured[PLAIN]] != [turn.content for turn in of_way] for of_way in measured.values()
    ):
        sys.stderr.write("The tables of the ways differ: no time counts.\n")
        return 1
    sooner = {way: over_rounds(speed, turns[PLAIN], turns[way]) for way in STREAMS}
    if options.json:
        visible_ms = {name: [turn.batch_ms for turn in of_way] for name, of_way in turns.items()}
        times = {way: spread.median for way, spread in sooner.items()}
        figures = {"visible_ms": visible_ms, "times_sooner": times, "empty_task_seconds": empty}
        sys.stdout.write(f"{json.dumps(figures)}\n")
    else:
        show(turns, sooner, empty, rows=options.rows)
    return 0 if LIMIT.is_met(sooner[WARM]) and max(empty) <= MOST_EMPTY_SECONDS else 1


if __name__ == "__main__":
    sys.exit(main())
