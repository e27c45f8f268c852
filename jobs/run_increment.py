"""Runs an incremental stream over everything that is there now, then ends.

    spark-submit --master 'local[*]' jobs/run_increment.py --stream=bronze_weather --launched-by=me

The settings come from the environment (`SLUICE_*`). The job admits its run in the ledger; while another run of the
stream is live it fails and says which.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from sluice.launching.job_command import RunIncrement, parse_arguments
from sluice_spark.run.increment_job import run_increment
from sluice_spark.run.job import run_job


def main(argv: Sequence[str]) -> int:
    """Run the job and return its exit status."""
    return run_job(partial(run_increment, parse_arguments(RunIncrement, argv)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
