"""Whatever ran before in this ring: no secret of the deployment lies in Airflow's database or logs.

Every run searches the whole platform behind its demo, with Airflow's database and logs (`test_demo.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool
from tests.fixtures.airflow import RunningAirflow

from sluice.ledger.runs import newest_run


@pytest.mark.full
def test_no_secret_is_in_the_database_of_airflow_or_in_any_log(airflow: RunningAirflow) -> None:
    airflow.unpause("left_alone")
    airflow.await_task("left_alone", "supervise", "deferred")
    run = newest_run(airflow.ledger, "left_alone")
    assert run is not None
    names = ("SLUICE_OBJECT_STORE__SECRET_ACCESS_KEY", "SLUICE_CATALOG__CREDENTIAL", "SLUICE_LEDGER_URL")
    secrets = [secret for name in names if (secret := airflow.environment.get(name))]
    tables = _everything_in(airflow.metadata_url)
    assert any(run.run_id in row for row in tables["trigger"]), "the trigger's arguments can be read here"
    assert {"xcom", "rendered_task_instance_fields", "serialized_dag"} <= set(tables)
    rows = [row for table in tables.values() for row in table]
    logs = [file.read_text(errors="replace") for file in airflow.folder.rglob("*.log")]
    assert any("reason=never_started" in log for log in logs), "the task's log was looked at"
    found = [secret for secret in secrets if any(secret in told for told in (*rows, *logs))]
    assert found == []


def _everything_in(database_url: str) -> dict[str, Sequence[str]]:
    """Every row of every table, as text."""
    engine = create_engine(database_url, poolclass=NullPool)
    with engine.connect() as connection:
        tables = connection.execute(text("select tablename from pg_tables where schemaname = 'public'")).scalars().all()
        return {
            table: connection.execute(text(f'select t::text from "{table}" t')).scalars().all()  # noqa: S608  # Airflow's
            for table in tables
        }
