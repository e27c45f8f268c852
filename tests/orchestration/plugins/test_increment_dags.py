"""The DAG of an incremental stream."""

from __future__ import annotations

from pathlib import Path

import pytest
from airflow.sdk import DAG, AssetAll, AssetOrTimeSchedule, CronTriggerTimetable
from tests.fixtures.sample_declarations import write_incremental_stream

from sluice.declarations.load_declarations import load_declarations
from sluice.work.requests import Increment
from sluice_airflow.dag_builders.increments import IncrementOperator, incremental_stream_dag
from sluice_airflow.triggers.publication_trigger import table_asset

BRONZE = table_asset("bronze.flights")
HOURLY = CronTriggerTimetable("@hourly", timezone="UTC")


def _dag(folder: Path, schedule: str = "{cron: '@hourly'}") -> DAG:
    write_incremental_stream(folder, "daily_flights", schedule=schedule)
    return incremental_stream_dag(load_declarations(folder).stream("daily_flights"))


def test_one_task_asks_for_what_is_new(folder: Path) -> None:
    (task,) = _dag(folder).tasks
    assert isinstance(task, IncrementOperator)
    assert (task.task_id, task.pool, task.request) == ("run", "spark", Increment(stream="daily_flights"))
    assert task.priority_weight > 1, "ahead of maintenance in the pool"
    assert task.asked_by == "airflow: {{ dag.dag_id }}, {{ run_id }}"


@pytest.mark.parametrize(
    ("declared", "schedule"),
    [
        ("{cron: '@hourly'}", HOURLY),
        ("{tables: [bronze.flights]}", AssetAll(BRONZE)),
        ("{cron: '@hourly', tables: [bronze.flights]}", AssetOrTimeSchedule(timetable=HOURLY, assets=AssetAll(BRONZE))),
    ],
)
def test_it_runs_by_the_clock_by_tables_or_by_both(folder: Path, declared: str, schedule: object) -> None:
    assert _dag(folder, declared).schedule == schedule


def test_runs_never_overlap_and_nothing_is_caught_up(folder: Path) -> None:
    dag = _dag(folder)
    assert (dag.catchup, dag.max_active_runs) == (False, 1)


def test_it_carries_owner_tags_and_assets(folder: Path) -> None:
    dag = _dag(folder)
    (task,) = dag.tasks
    assert (dag.owner, dag.tags) == ("stream-owner", {"sample", "incremental", "stream"})
    assert task.inlets == [BRONZE]
    assert task.outlets == [table_asset("silver.flights")]


def test_its_page_shows_when_it_runs(folder: Path) -> None:
    document = str(_dag(folder, "{cron: '@hourly', tables: [bronze.flights]}").doc_md)
    assert "by the clock, `@hourly` (UTC), or when `bronze.flights` has new rows" in document
