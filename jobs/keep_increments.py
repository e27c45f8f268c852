"""Runs the increments of a stream, each when it is asked for, and ends when none is asked for a while.

    spark-submit --master 'local[*]' jobs/keep_increments.py --stream=bronze_weather --socket=/… --kept-seconds=600

The settings come from the environment (`SLUICE_*`). Who asks, and how, is in `sluice.launching.kept_driver`. Each
increment admits its run in the ledger, as `run_increment.py` does.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from sluice.launching.job_command import KeepIncrements, RunIncrement, parse_arguments
from sluice.launching.kept_driver import deployment_digest
from sluice.settings import load_settings
from sluice_spark.run.increment_job import run_increment
from sluice_spark.run.job import run_job
from sluice_spark.run.kept_increments import KeptIncrements
from sluice_spark.run.stop_request import StopRequest
from sluice_spark.session.run_sessions import KeptApplication


def main(argv: Sequence[str]) -> int:
    """Run the job and return its exit status."""
    return run_job(partial(_serve, parse_arguments(KeepIncrements, argv)))


def _serve(command: KeepIncrements) -> None:
    digest = deployment_digest(load_settings())
    application = KeptApplication()

    def run(launched_by: str, stop: StopRequest) -> int:
        increment = RunIncrement(stream=command.stream, launched_by=launched_by)
        return run_job(partial(run_increment, increment, sessions=application.session, stop=stop))

    try:
        KeptIncrements(
            address=Path(command.socket),
            digest=digest,
            kept_seconds=float(command.kept_seconds),
            application=application,
            run=run,
        ).serve()
    finally:
        application.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
