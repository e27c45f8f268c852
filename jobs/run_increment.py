"""Runs an incremental stream over everything that is there now, then ends.

    spark-submit --master 'local[*]' jobs/run_increment.py --stream=bronze_weather --launched-by=me

The settings come from the environment (`SLUICE_*`). The job admits its run in the ledger; while another run of the
stream is live it fails and says which.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from sluice.declarations.load_declarations import load_declarations
from sluice.errors import UsageError
from sluice.launching.job_command import RunIncrement, parse_arguments
from sluice.ledger.connection import open_ledger
from sluice.settings import load_settings
from sluice_spark.run.admission import admit_increment
from sluice_spark.run.job import recorded_end, run_job
from sluice_spark.run.supervised_run import SupervisedRun


def main(argv: Sequence[str]) -> int:
    """Run the job and return its exit status."""
    return run_job(partial(_run, parse_arguments(RunIncrement, argv)))


def _run(command: RunIncrement) -> None:
    settings = load_settings()
    stream = load_declarations(settings.pipelines, only=command.stream).stream(command.stream)
    if stream.declaration.mode != "incremental":
        raise UsageError(
            f"{stream.name} is a {stream.declaration.mode} stream.",
            next_step=f"Start it with `sluice stream start {stream.name}`.",
        )
    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        run = admit_increment(ledger, stream, launched_by=command.launched_by)
        with recorded_end(ledger, run.run_id) as say_reason:
            say_reason(SupervisedRun(settings=settings, ledger=ledger, stream=stream, run=run).work())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
