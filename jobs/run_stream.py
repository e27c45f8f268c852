"""Runs a continuous stream as the run that the ledger has admitted, until it is asked to stop.

    spark-submit --master 'local[*]' jobs/run_stream.py --stream=bronze_flights --run-id=8c1d7f0e-…

The settings come from the environment (`SLUICE_*`), the run from `sluice stream start` or the stream's DAG. It ends
between two batches when the ledger asks for it, or at SIGTERM.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from functools import partial

from sluice.declarations.load_declarations import load_declarations
from sluice.errors import LeaseLostError, UsageError
from sluice.launching.spark_submit import RunStream, parse_arguments
from sluice.ledger.connection import open_ledger
from sluice.ledger.runs import find_run
from sluice.settings import load_settings
from sluice_spark.run.job import recorded_end, run_job
from sluice_spark.run.run_start import require_same_files
from sluice_spark.run.supervised_run import SupervisedRun
from sluice_spark.session.session import new_ui_key


def main(argv: Sequence[str]) -> int:
    """Run the job and return its exit status."""
    return run_job(partial(_run, parse_arguments(RunStream, argv)))


def _run(command: RunStream) -> None:
    settings = load_settings()
    with (
        open_ledger(settings.ledger_url) as ledger,
        recorded_end(ledger, command.run_id) as say_reason,
    ):
        run = find_run(ledger, command.run_id)
        if run.stream != command.stream:
            raise UsageError(f"Run {run.run_id} belongs to stream {run.stream}, got {command.stream}.")
        if not run.is_live:  # a cluster gave this driver its place too late
            raise LeaseLostError(f"Run {run.run_id} of {run.stream} has ended: {run.reason}. Its driver does nothing.")
        stream = load_declarations(settings.pipelines, only=command.stream).stream(command.stream)
        require_same_files(stream, run, host=socket.gethostname())
        key = new_ui_key(is_declared=stream.declaration.engine.ui)
        say_reason(SupervisedRun(settings=settings, ledger=ledger, stream=stream, run=run, ui_key=key).work())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
