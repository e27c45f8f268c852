"""A real backfill whose process gets a signal at a named step.

    python -m tests.faults.dying_backfill --stream NAME --start 2013-01-05 --end 2013-01-08 --step staged

The settings come from the environment, as for any job. SIGKILL ends the process with its JVM. With `--asked-by` the
process is the application of that run, which goes on with the intervals of others; `--time 2` kills it when it reaches
the step for the second time, and `--at-once 6` lets it compute three intervals together.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from functools import cache

import psutil
from pyspark.sql import SparkSession
from sluice_spark.backfill.requested_intervals import RequestedIntervals
from tests.fixtures.spark_submit import submit_arguments

from sluice.backfill.backfill_steps import BackfillStep
from sluice.backfill.intervals import parse_interval
from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.connection import open_ledger
from sluice.settings import Settings, load_settings
from sluice_spark.backfill.backfill_run import BackfillRun
from sluice_spark.run.job import run_job
from sluice_spark.session.session import open_session


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the backfill until the signal, or to its end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--start", required=True)
    parser.add_argument("--end", required=True)
    parser.add_argument("--step", type=BackfillStep, required=True)
    parser.add_argument("--asked-by", default="a fault")
    parser.add_argument("--time", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=1)
    options = parser.parse_args(arguments)
    settings = load_settings()
    os.environ["PYSPARK_SUBMIT_ARGS"] = submit_arguments(settings)
    return run_job(lambda: _work(settings, options))


def _work(settings: Settings, options: argparse.Namespace) -> None:
    declarations = load_declarations(settings.pipelines)
    stream = declarations.stream(options.stream)

    @cache
    def session() -> SparkSession:
        return open_session(settings, name=f"backfill {options.stream}", state=stream.declaration.state)

    times = Counter[BackfillStep]()

    def reached(step: BackfillStep) -> None:
        times[step] += 1
        if step is options.step and times[step] == options.time:
            for child in psutil.Process().children(recursive=True):
                child.kill()
            os.kill(os.getpid(), signal.SIGKILL)

    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        run = BackfillRun(
            settings=settings,
            ledger=ledger,
            declarations=declarations,
            stream=stream,
            interval=parse_interval(options.start, options.end),
            launched_by=options.asked_by,
            open_session=session,
            reached=reached,
        )
        RequestedIntervals(run=run, digest=declarations.digest, at_once=options.at_once).work()


if __name__ == "__main__":
    sys.exit(main())
