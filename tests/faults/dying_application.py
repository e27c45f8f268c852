"""A real application for work items that is killed, with its JVM, at a named step of one of them.

    python -m tests.faults.dying_application --step staged --time 2 --application-id … (as `run_work.py`)

The settings come from the environment, as for any job. `--time 2` kills it when the step is reached for the second
time, by whatever item.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from itertools import count

import psutil
from tests.fixtures.spark_submit import submit_arguments

from run_work import run_work
from sluice.launching.spark_submit import RunWork, parse_arguments
from sluice.ledger.work_values import WorkItem
from sluice.publication.crash_points import CrashPoint
from sluice.settings import load_settings
from sluice_spark.run.job import run_job
from sluice_spark.work.item_work import ReachedOfItem


def main(arguments: Sequence[str] | None = None) -> int:
    """Do work items until the signal, or until there are none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--step", choices=[str(point) for point in CrashPoint], required=True)
    parser.add_argument("--time", type=int, default=1)
    options, of_application = parser.parse_known_args(arguments)
    command = parse_arguments(RunWork, of_application)
    os.environ["PYSPARK_SUBMIT_ARGS"] = submit_arguments(load_settings())
    return run_job(partial(run_work, command, reached=_killing(CrashPoint(options.step), time=options.time)))


def _killing(step: CrashPoint, *, time: int) -> ReachedOfItem:
    times = count(1)

    def reached(here: CrashPoint, item: WorkItem) -> None:
        del item
        if here is step and next(times) == time:
            for child in psutil.Process().children(recursive=True):
                child.kill()
            os.kill(os.getpid(), signal.SIGKILL)

    return reached


if __name__ == "__main__":
    sys.exit(main())
