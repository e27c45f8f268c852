"""A real refresh whose process is killed, with its JVM, at a named step.

    python -m tests.faults.dying_refresh --stream NAME --step committed

The settings come from the environment, as for any job.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence

import psutil
from tests.fixtures.spark_submit import submit_arguments

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.connection import open_ledger
from sluice.refresh.refresh_steps import RefreshStep
from sluice.settings import Settings, load_settings
from sluice_spark.refresh.refresh_run import RefreshRun
from sluice_spark.run.job import run_job
from sluice_spark.session.session import open_session


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the refresh until the signal, or to its end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--step", type=RefreshStep, required=True)
    options = parser.parse_args(arguments)
    settings = load_settings()
    os.environ["PYSPARK_SUBMIT_ARGS"] = submit_arguments(settings)
    return run_job(lambda: _work(settings, options))


def _work(settings: Settings, options: argparse.Namespace) -> None:
    declarations = load_declarations(settings.pipelines)
    stream = declarations.stream(options.stream)

    def reached(step: RefreshStep) -> None:
        if step is options.step:
            for child in psutil.Process().children(recursive=True):
                child.kill()
            os.kill(os.getpid(), signal.SIGKILL)

    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        RefreshRun(
            settings=settings,
            ledger=ledger,
            declarations=declarations,
            stream=stream,
            asked_by="a fault",
            open_session=lambda: open_session(settings, name="refresh", state=stream.declaration.state),
            reached=reached,
        ).work()


if __name__ == "__main__":
    sys.exit(main())
