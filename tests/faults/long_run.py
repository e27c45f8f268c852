"""Lets one driver work batch after batch for a long time and looks whether it leaks.

    .venv/bin/python -m tests.faults.long_run [--batches 1500]

A stream with state and a quarantine, from numbers that are made up, batch after batch without a pause. Prints what the
driver holds as it goes: heap after a collection, classes and code beside it, the whole process, open files, threads,
temporary views, kept frames; and which of them still grow when everything has long been warm.
Ends with 1 when one of them grew by more than it may (`tests/fixtures/leaks.py`).
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from tests.fixtures.leaks import ALLOWED_GROWTH, LeakWatch, stopping_after
from tests.fixtures.stack import stack_in
from tests.fixtures.workshop import Workshop

from sluice.declarations.run_declaration import EngineDeclaration, StateDeclaration
from sluice.launching.launch_settings import launch_conf
from sluice.ledger.connection import open_ledger
from sluice.settings import Settings
from sluice_spark.session.session import open_session

SAMPLES = 30

TRANSFORMATION = """
    from pyspark.sql import functions as fn

    def transform(numbers):
        once = numbers.withWatermark("timestamp", "10 seconds").dropDuplicatesWithinWatermark(["value"])
        refused = numbers.where("value % 100 = 0").selectExpr(
            "'a hundred' AS reason", "to_json(struct(value)) AS position", "CAST(timestamp AS string) AS payload"
        )
        return {"kept": once.select("value", "timestamp"), "quarantine": refused}
"""


def declare(workshop: Workshop, name: str) -> None:
    """The stream that works: state, and two outputs."""
    columns = {"value": "long", "timestamp": "timestamptz"}
    workshop.declare_stream(
        name,
        python=TRANSFORMATION,
        mode="continuous",
        trigger={"processing_time": "10 milliseconds"},
        inputs={"numbers": {"stream": {"rate": {"rows_per_second": 100}}}},
        outputs={"kept": {"iceberg": {"table": workshop.declare_table("kept", columns)}}},
        quarantine=True,
    )


def main(arguments: list[str]) -> int:
    """Run it and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=1500)
    batches: int = parser.parse_args(arguments).batches
    with tempfile.TemporaryDirectory() as folder, stack_in(Path(folder) / "data") as stack:
        stack.up(("postgres", "seaweedfs"))
        watch = _run(stack.settings(), Path(folder), batches=batches)
    _print(watch)
    return 1 if watch.leaks() else 0


def _run(settings: Settings, folder: Path, *, batches: int) -> LeakWatch:
    conf = launch_conf(home=settings.home, jars=settings.jars, engine=EngineDeclaration(), is_bounded=False)
    words = ["--master", "local[2]", *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}"))]
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": shlex.join([*words, "pyspark-shell"])}
    pipelines = folder / "pipelines"
    pipelines.mkdir()
    own: dict[str, Any] = {"pipelines": pipelines, "checkpoints": (folder / "checkpoints").as_uri()}
    spark = open_session(settings, name="long run", state=StateDeclaration())
    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        workshop = Workshop(spark=spark, settings=settings.model_copy(update=own), ledger=ledger, namespace="long")
        watch = LeakWatch(spark=spark, every=max(1, batches // SAMPLES))
        declare(workshop, "long_run")
        workshop.run("long_run", stop_when=stopping_after(watch, batches))
    spark.stop()
    return watch


def _print(watch: LeakWatch) -> None:
    table = Table(*watch.samples[0], title=f"What a driver holds over {watch.batches} batches")
    for sample in watch.samples:
        table.add_row(*(f"{value:.0f}" for value in sample.values()))
    console = Console(width=120)
    console.print(table)
    slopes = watch.slopes()
    for name, grown in watch.growth().items():
        verdict = "leaks" if grown > ALLOWED_GROWTH[name] else "flat"
        console.print(
            f"{name}: {grown:+.1f} from the second quarter to the last, {ALLOWED_GROWTH[name]:.0f} allowed: {verdict}; "
            f"{slopes[name]:+.1f} for 1,000 batches in the second half"
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
