"""The DAGs with a job for each table."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import pytest
from airflow.providers.standard.operators.python import BranchPythonOperator
from airflow.sdk import DAG, AssetAny, AssetOrTimeSchedule, CronTriggerTimetable
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.types import TaskInstanceKey
from tests.fixtures.sample_declarations import write_continuous_stream, write_table

from sluice.declarations.load_declarations import load_declarations
from sluice.work.requests import CheckTable, MaintainTable
from sluice_airflow.dag_builders.table_jobs import chosen, data_quality_dag, table_jobs_dag, table_maintenance_dag
from sluice_airflow.operators import WorkOperator
from sluice_airflow.triggers.publication_trigger import table_asset

QUALITY = "quality: {expectations: [{type: expect_column_values_to_not_be_null, kwargs: {column: id}}]}\n"
NO_MAINTENANCE = "maintenance: {compaction: null, manifest_rewrite: null, expiry: null}\n"


def _jobs(dag: DAG) -> dict[str, WorkOperator]:
    return {task.task_id: task for task in dag.tasks if isinstance(task, WorkOperator)}


def test_every_table_that_asks_for_it_is_maintained(tmp_path: Path) -> None:
    write_table(tmp_path, "bronze.flights")
    write_table(tmp_path, "reference.airlines", more=NO_MAINTENANCE)
    jobs = _jobs(table_maintenance_dag(load_declarations(tmp_path)))
    assert list(jobs) == ["bronze.flights"]
    job = jobs["bronze.flights"]
    assert (job.pool, job.owner) == ("spark", "table-owner")
    assert (job.request, job.asked_by) == (
        MaintainTable(table="bronze.flights"),
        "airflow: {{ dag.dag_id }}, {{ run_id }}",
    )


def test_the_quarantine_of_a_stream_is_maintained_too(tmp_path: Path) -> None:
    write_table(tmp_path, "bronze.flights")
    write_table(tmp_path, "silver.flights")
    stream = write_continuous_stream(tmp_path, "silver_flights", more="quarantine: true\n")
    (tmp_path / "rows.py").write_text("def rows(**inputs):\n    pass\n")
    stream.write_text(stream.read_text().replace("sql: rows.sql", "python: rows.py:rows"))
    jobs = _jobs(table_maintenance_dag(load_declarations(tmp_path)))
    assert set(jobs) >= {"bronze.flights", "silver.flights", "quarantine.silver_flights"}
    assert jobs["quarantine.silver_flights"].request == MaintainTable(table="quarantine.silver_flights")


def test_every_table_with_expectations_is_checked(tmp_path: Path) -> None:
    write_table(tmp_path, "bronze.flights")
    write_table(tmp_path, "silver.flights", more=QUALITY)
    jobs = _jobs(data_quality_dag(load_declarations(tmp_path)))
    assert list(jobs) == ["silver.flights"]
    job = jobs["silver.flights"]
    assert job.request == CheckTable(table="silver.flights")
    (link,) = job.operator_extra_links
    key = TaskInstanceKey(dag_id="data_quality", task_id=job.task_id, run_id="a run")
    assert link.get_link(job, ti_key=key) == "/plugin/streams/sluice/tables/silver.flights/quality"


def test_a_table_that_asks_for_it_is_checked_after_publications_into_it_and_no_other_is(tmp_path: Path) -> None:
    write_table(tmp_path, "gold.first", more=QUALITY)
    write_table(tmp_path, "gold.second", more=QUALITY.replace("{exp", "{on_publication: true, exp"))
    dag = data_quality_dag(load_declarations(tmp_path))
    choose = dag.get_task("choose_tables")
    assert isinstance(choose, BranchPythonOperator)

    assert isinstance(dag.schedule, AssetOrTimeSchedule)
    assert dag.schedule.asset_condition == AssetAny(table_asset("gold.second"))
    published = {table_asset("gold.second"): ["an event"]}
    assert choose.python_callable({}, "asset_triggered__1", published) == ["gold.second"]
    assert choose.python_callable({}, "scheduled__1", {}) == ["gold.first", "gold.second"]
    assert choose.python_callable({"tables": ["gold.first"]}, "manual__1", None) == ["gold.first"]


def test_the_form_offers_the_tables_and_refuses_others(tmp_path: Path) -> None:
    write_table(tmp_path, "bronze.flights")
    write_table(tmp_path, "silver.flights")
    param = table_maintenance_dag(load_declarations(tmp_path)).params.get_param("tables")
    assert param.value == []
    assert param.schema["examples"] == ["bronze.flights", "silver.flights"]
    assert param.schema["items"] == {"type": "string", "enum": ["bronze.flights", "silver.flights"]}


def test_the_tables_that_were_not_chosen_take_no_slot(tmp_path: Path) -> None:
    write_table(tmp_path, "bronze.flights")
    dag = table_maintenance_dag(load_declarations(tmp_path))
    assert dag.get_task("bronze.flights").upstream_task_ids == {"choose_tables"}
    assert dag.get_task("choose_tables").pool == "default_pool"


def test_the_chosen_tables_are_planned_together_and_those_with_nothing_due_take_no_slot(tmp_path: Path) -> None:
    for table in ("gold.first", "gold.second", "gold.third"):
        write_table(tmp_path, table)
    planned: list[tuple[list[str], str]] = []

    def due(names: Sequence[str], run_id: str) -> list[str]:
        planned.append((list(names), run_id))
        return ["gold.third"]

    dag = table_jobs_dag(
        "sample",
        description="",
        document="",
        cron="17 * * * *",
        tables=[table.declaration for table in load_declarations(tmp_path).tables.values()],
        request=lambda table: MaintainTable(table=table),
        retries=1,
        due=due,
    )
    choose = dag.get_task("choose_tables")
    assert isinstance(choose, BranchPythonOperator)

    assert choose.python_callable({"tables": ["gold.first", "gold.third"]}, "manual__1") == ["gold.third"]
    assert planned == [(["gold.first", "gold.third"], "manual__1")]


def test_unpausing_starts_no_run_of_all_tables(tmp_path: Path) -> None:
    schedule = table_maintenance_dag(load_declarations(tmp_path)).schedule
    assert schedule == CronTriggerTimetable("17 * * * *", timezone="UTC", run_immediately=timedelta(seconds=1))


def test_without_tables_the_dag_is_there_and_empty(tmp_path: Path) -> None:
    assert list(table_maintenance_dag(load_declarations(tmp_path)).task_dict) == ["choose_tables"]


@pytest.mark.parametrize(
    ("wanted", "result"), [([], ["a", "b"]), (["b"], ["b"]), (["b", "a"], ["a", "b"]), (["a", "a"], ["a"])]
)
def test_none_chosen_means_all(wanted: list[str], result: list[str]) -> None:
    assert chosen("tables", wanted=wanted, among=["a", "b"]) == result


def test_an_unknown_choice_fails_with_what_is_allowed() -> None:
    with pytest.raises(AirflowFailException, match=r"^The parameter tables names c; allowed are a, b\.$"):
        chosen("tables", wanted=["a", "c"], among=["a", "b"])
