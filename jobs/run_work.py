"""Does the bounded work of one pool: increments, intervals, refreshes, gap searches, maintenance and checks of tables.

    spark-submit --master 'local[*]' jobs/run_work.py --application-id=8c1d7f0e-… --pool=spark_default-1f0a77c2 …

The settings come from the environment (`SLUICE_*`), what there is to do from the queue in the ledger. It is started by
`sluice.work.start_application`, for the task or command whose item waits, and ends when nothing has come for a while.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from sluice.launching.spark_submit import RunWork, parse_arguments
from sluice_spark.run.job import run_job
from sluice_spark.work.work_job import run_work


def main(argv: Sequence[str]) -> int:
    """Run the job and return its exit status."""
    return run_job(partial(run_work, parse_arguments(RunWork, argv)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
