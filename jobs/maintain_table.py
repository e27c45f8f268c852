"""Maintains one table: compacts it, rewrites its manifests, pins what readers need and expires the rest.

    spark-submit --master 'local[*]' jobs/maintain_table.py --table=bronze.flights --launched-by=me

The settings come from the environment (`SLUICE_*`). What there is to do is decided from the metadata first; when Spark
has nothing to do, no session is opened. Exit status 1 means that a step failed, was refused, gave way to writers in two
runs in a row, or was blocked for days (`sluice.maintenance.run_verdict`).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache, partial

from pyspark.sql import SparkSession

from sluice.declarations.engine_declaration import StateDeclaration
from sluice.errors import UnhealthyError
from sluice.launching.job_command import MaintainTable, parse_arguments
from sluice.launching.job_output import json_line
from sluice.ledger.connection import open_ledger
from sluice.ledger.maintenance_runs import recent_maintenance
from sluice.maintenance.maintenance_records import run_sentences
from sluice.maintenance.run_verdict import RUNS_JUDGED, problems_of_run
from sluice.settings import load_settings
from sluice_spark.maintenance.maintenance_run import maintain_table
from sluice_spark.run.job import run_job
from sluice_spark.session.session import open_session


def main(argv: Sequence[str]) -> int:
    """Run the job and return its exit status."""
    return run_job(partial(_run, parse_arguments(MaintainTable, argv)))


def _run(command: MaintainTable) -> None:
    settings = load_settings()

    @cache
    def session() -> SparkSession:
        return open_session(settings, name=f"maintain {command.table}", state=StateDeclaration())

    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        earlier = recent_maintenance(ledger, command.table, limit=RUNS_JUDGED)
        run = maintain_table(command, settings, ledger, open_session=session)
    sys.stdout.writelines(f"{sentence}\n" for sentence in (*run_sentences(run), json_line(run)))
    sys.stdout.flush()
    if problems := problems_of_run(run, earlier):
        raise UnhealthyError("; ".join(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
