"""The DAGs of the platform itself: all of them are known by name, and none waits for a person to unpause it."""

from __future__ import annotations

from pathlib import Path

from tests.fixtures.sample_declarations import write_table

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.stream_declaration import PLATFORM_DAGS
from sluice.supervision.platform_dags import MISSED_WHILE_PAUSED
from sluice_airflow.dag_builders.backfills import backfill_gaps_dag
from sluice_airflow.dag_builders.platform_dags import (
    checkpoint_health_dag,
    copy_rehearsals_dag,
    ledger_upkeep_dag,
    stream_reconciler_dag,
)
from sluice_airflow.dag_builders.table_jobs import data_quality_dag, table_maintenance_dag


def test_each_runs_on_a_new_deployment_without_being_unpaused(tmp_path: Path) -> None:
    write_table(tmp_path, "bronze.flights")
    declarations = load_declarations(tmp_path)
    dags = [
        builder(declarations)
        for builder in (
            data_quality_dag,
            table_maintenance_dag,
            checkpoint_health_dag,
            backfill_gaps_dag,
            copy_rehearsals_dag,
        )
    ]
    dags += [ledger_upkeep_dag(), stream_reconciler_dag()]

    assert {dag.dag_id: dag.is_paused_upon_creation for dag in dags} == dict.fromkeys(MISSED_WHILE_PAUSED, False)


def test_what_is_missed_is_said_of_each_that_runs_by_a_schedule() -> None:
    assert set(MISSED_WHILE_PAUSED) == PLATFORM_DAGS - {"stream_control"}
