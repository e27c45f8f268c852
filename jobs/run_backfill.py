"""Computes an interval of a stream again, as one batch, and replaces it in the target beside the live stream.

    spark-submit --master 'local[*]' jobs/run_backfill.py --stream=silver_flights --start=2013-01-05 --end=2013-01-08 \\
        --launched-by=me

The streams that follow the backfills of this one compute the interval again after it. When a run of the DAG has started
the application, it goes on with the intervals that other runs of the DAG ask for. The settings come from the
environment (`SLUICE_*`). A plan that is refused ends the job before a session is opened. Each line of its output is the
result of an interval as JSON.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from pyspark.sql import SparkSession

from sluice.backfill.followers import followers_of
from sluice.backfill.intervals import parse_interval
from sluice.backfill.observe_backfill import backfill_of
from sluice.declarations.load_declarations import load_declarations
from sluice.launching.job_command import RunBackfill, parse_arguments
from sluice.launching.job_output import json_line
from sluice.ledger.connection import open_ledger
from sluice.settings import load_settings
from sluice_spark.backfill.backfill_run import BackfillRun
from sluice_spark.backfill.interval_replacing import BackfillResult
from sluice_spark.backfill.requested_intervals import RequestedIntervals
from sluice_spark.run.job import run_job
from sluice_spark.session.session import open_session
from sluice_spark.session.thread_sessions import ThreadSessions


def main(argv: Sequence[str]) -> int:
    """Run the job and return its exit status."""
    return run_job(partial(_run, parse_arguments(RunBackfill, argv)))


def _run(command: RunBackfill) -> None:
    settings = load_settings()
    declarations = load_declarations(settings.pipelines)
    stream, interval = declarations.stream(command.stream), parse_interval(command.start, command.end)

    def session() -> SparkSession:
        followed = [stream, *(one.stream for one in followers_of(declarations, stream, interval))]
        return open_session(
            settings,
            name=f"backfill {command.stream}",
            state=stream.declaration.state,
            with_delta=any(one.declaration.uses_delta for one in followed),
            cores=stream.declaration.engine.cores,
        )

    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        run = BackfillRun(
            settings=settings,
            ledger=ledger,
            declarations=declarations,
            stream=stream,
            interval=interval,
            launched_by=command.launched_by,
            open_session=ThreadSessions(session, stream.declaration.state),
        )
        at_once = backfill_of(stream).at_once
        RequestedIntervals(run=run, digest=declarations.digest, at_once=at_once, report=_report).work()


def _report(result: BackfillResult) -> None:
    sys.stdout.write(f"{json_line(result)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
