"""Builds the content of a stream's table again from its sources, and replaces it in one commit.

    spark-submit --master 'local[*]' jobs/refresh_stream.py --stream=silver_flights --keep-days=7 --asked-by=me

The live stream goes on meanwhile. A job that is repeated goes on where an earlier one ended. The settings come from the
environment (`SLUICE_*`). A plan that is refused ends the job before a session is opened. The last line of its output is
the refresh as JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from pyspark.sql import SparkSession

from sluice.declarations.load_declarations import load_declarations
from sluice.launching.job_command import RefreshStream, parse_arguments
from sluice.launching.job_output import json_line
from sluice.ledger.connection import open_ledger
from sluice.settings import load_settings
from sluice_spark.refresh.refresh_run import RefreshRun
from sluice_spark.run.job import run_job
from sluice_spark.session.session import open_session


def main(argv: Sequence[str]) -> int:
    """Run the job and return its exit status."""
    return run_job(partial(_run, parse_arguments(RefreshStream, argv)))


def _run(command: RefreshStream) -> None:
    settings = load_settings()
    declarations = load_declarations(settings.pipelines)
    stream = declarations.stream(command.stream)

    def session() -> SparkSession:
        return open_session(
            settings,
            name=f"refresh {command.stream}",
            state=stream.declaration.state,
            with_delta=stream.declaration.uses_delta,
            cores=stream.declaration.engine.cores,
            deletes_files=False,
        )

    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        refreshed = RefreshRun(
            settings=settings,
            ledger=ledger,
            declarations=declarations,
            stream=stream,
            asked_by=command.asked_by,
            keeps=timedelta(days=float(command.keep_days)),
            open_session=session,
        ).work()
    sys.stdout.write(f"{json_line(refreshed)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
