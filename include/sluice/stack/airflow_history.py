"""Keeps Airflow's own database small: deletes old runs of the platform's DAGs that end within minutes.

No DAG can do it: a task of Airflow 3 has no access to the metadata database.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime

from sluice.errors import StackError, UsageError

DATABASE_SETTING = "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"

_TABLES = ("dag_run", "log")
"""The deletion of a run deletes its tasks, their history and their XComs, too."""

_NOT_CLEANED = re.compile(r"did not clean them: \[(?P<tables>[^\]]*)\]")

_NEVER_CLEANED = "'deadline'"
"""Airflow 3.3 cleans it with the runs, by a column `dag_id` which that table does not have, so that it always fails
when DAGs are named. The short DAGs have no deadlines. Source: https://github.com/apache/airflow/issues/69030"""


def clean_airflow_history(
    environment: Mapping[str, str], *, dag_ids: Sequence[str], before: datetime, dry_run: bool
) -> str:
    """Delete the runs of some DAGs that began before a time, with all that belongs to them; Airflow keeps the newest
    scheduled run of each DAG.

    Parameters
    ----------
    dag_ids: DAGs whose tasks end within minutes.
    environment: of a process of Airflow that may write to the metadata database.
    dry_run: show only what would be deleted.

    Returns
    -------
    What Airflow reports.

    Raises
    ------
    UsageError: when the environment names no metadata database.
    StackError: when Airflow could not clean it.

    Source: https://airflow.apache.org/docs/apache-airflow/3.3.2/cli-and-env-variables-ref.html#clean
    """
    if DATABASE_SETTING not in environment:
        raise UsageError(
            f"Airflow's database is not known here: {DATABASE_SETTING} is not set.",
            next_step="Start the stack with `sluice stack up`, or run this where the scheduler runs.",
        )
    command = [sys.executable, "-m", "airflow", "db", "clean", "--yes", "--skip-archive", "--error-on-cleanup-failure"]
    command += ["--tables", ",".join(_TABLES), "--dag-ids", ",".join(dag_ids)]
    command += ["--clean-before-timestamp", before.isoformat(), *(["--dry-run"] if dry_run else [])]
    ended = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)  # noqa: S603  # our own
    not_cleaned = _NOT_CLEANED.search(ended.stderr)
    if ended.returncode != 0 and (not_cleaned is None or not_cleaned["tables"] != _NEVER_CLEANED):
        raise StackError(
            f"Airflow could not clean its database: it ended with {ended.returncode}.\n{ended.stderr[-2000:]}".rstrip(),
            next_step="See that its PostgreSQL runs, then run this again.",
        )
    return ended.stdout
