"""Old runs of the platform's short DAGs leave Airflow's database; the runs of streams stay, however old they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import URL
from tests.fixtures.airflow import prepare_airflow
from tests.fixtures.dag_persistence import store_dags
from tests.fixtures.declaration_mutations import SOUND_DAGS, write_sound_declarations

STREAM = sorted(SOUND_DAGS)[0]

_RUN = """
INSERT INTO dag_run (dag_id, run_id, run_type, state, logical_date, run_after, start_date, queued_at, clear_number)
VALUES (:dag, :run, 'manual', 'success', :began, :began, :began, :began, 0)
"""


def _began(connection: Connection, dag: str, *, days_ago: int) -> None:
    began = datetime.now(UTC) - timedelta(days=days_ago)
    connection.execute(text(_RUN), {"dag": dag, "run": f"{days_ago} days ago", "began": began})


def _clean(environment: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "sluice.cli.app", "stack", "clean-airflow", "--kept-days", "10", *words]
    return subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)  # noqa: S603  # ours


@pytest.mark.full  # it shows what Airflow's own command does
def test_old_runs_of_short_dags_are_deleted_and_no_others(tmp_path: Path, postgres_url: URL) -> None:
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    write_sound_declarations(pipelines)
    prepared = prepare_airflow(tmp_path, postgres_url, pipelines=pipelines)
    store_dags([pipelines], environment=prepared.environment)
    environment = {**prepared.environment, "SLUICE_DATA": str(tmp_path / "no-stack")}
    engine = create_engine(prepared.metadata_url)
    with engine.begin() as connection:
        for dag in ("stream_reconciler", STREAM):
            for days_ago in (40, 3):
                _began(connection, dag, days_ago=days_ago)

    def runs() -> set[tuple[str, str]]:
        with engine.connect() as connection:
            return {(row.dag_id, row.run_id) for row in connection.execute(text("SELECT dag_id, run_id FROM dag_run"))}

    every = runs()
    dry = _clean(environment, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert runs() == every
    cleaned = _clean(environment, "--json")
    assert cleaned.returncode == 0, cleaned.stderr
    assert not json.loads(cleaned.stdout)["dry_run"]
    assert runs() == every - {("stream_reconciler", "40 days ago")}
    engine.dispose()


def test_without_a_database_the_way_to_one_is_named(tmp_path: Path) -> None:
    environment = {"PATH": os.environ["PATH"], "SLUICE_DATA": str(tmp_path)}
    ended = _clean(environment)
    assert ended.returncode == 2
    assert "sluice stack up" in ended.stderr
