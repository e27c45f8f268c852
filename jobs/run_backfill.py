"""Computes an interval of a stream again, as one batch, and replaces it in the target beside the live stream.

    spark-submit --master 'local[*]' jobs/run_backfill.py --stream=silver_flights --start=2013-01-05 --end=2013-01-08 \\
        --launched-by=me

The settings come from the environment (`SLUICE_*`). A plan that is refused ends the job before a session is opened. The
last line of its output is the result as JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache, partial

from pyspark.sql import SparkSession

from sluice.backfill.intervals import parse_interval
from sluice.declarations.load_declarations import load_declarations
from sluice.launching.job_command import RunBackfill, parse_arguments
from sluice.launching.job_output import json_line
from sluice.ledger.connection import open_ledger
from sluice.settings import load_settings
from sluice_spark.backfill.backfill_run import BackfillRun
from sluice_spark.run.job import run_job
from sluice_spark.session.session import open_session


def main(argv: Sequence[str]) -> int:
    """Run the job and return its exit status."""
    return run_job(partial(_run, parse_arguments(RunBackfill, argv)))


def _run(command: RunBackfill) -> None:
    settings = load_settings()
    declarations = load_declarations(settings.pipelines)
    stream = declarations.stream(command.stream)

    @cache
    def session() -> SparkSession:
        declaration = stream.declaration
        return open_session(
            settings,
            name=f"backfill {command.stream}",
            state=declaration.state,
            with_delta=declaration.uses_delta,
            cores=declaration.engine.cores,
        )

    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        result = BackfillRun(
            settings=settings,
            ledger=ledger,
            declarations=declarations,
            stream=stream,
            interval=parse_interval(command.start, command.end),
            launched_by=command.launched_by,
            open_session=session,
        ).work()
    sys.stdout.write(f"{json_line(result)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
