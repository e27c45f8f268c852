"""The DAG of a continuous stream."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

from airflow.sdk import DAG, CronTriggerTimetable
from tests.fixtures.sample_declarations import write_continuous_stream, write_table

from sluice.declarations.load_declarations import load_declarations
from sluice_airflow.dag_builders.broken_declarations import build_stream_dags
from sluice_airflow.dag_builders.streams import StreamOperator, continuous_stream_dag
from sluice_airflow.triggers.publication_trigger import PublicationTrigger, table_asset


def _dag(folder: Path) -> DAG:
    write_continuous_stream(folder, "silver_flights", more="supervision: {restart: {attempts: 3}}\n")
    return continuous_stream_dag(load_declarations(folder).stream("silver_flights"))


def test_one_deferring_task_supervises_the_stream(folder: Path) -> None:
    dag = _dag(folder)
    (task,) = dag.tasks
    assert isinstance(task, StreamOperator)
    assert (dag.dag_id, task.task_id, task.stream) == ("silver_flights", "supervise", "silver_flights")


def test_it_starts_when_unpaused_and_never_twice_at_once(folder: Path) -> None:
    dag = _dag(folder)
    assert dag.schedule == CronTriggerTimetable("* * * * *", timezone="UTC", run_immediately=True)
    assert (dag.catchup, dag.max_active_runs, dag.start_date) == (False, 1, None)


def test_a_red_run_pauses_the_dag(folder: Path) -> None:
    assert _dag(folder).max_consecutive_failed_dag_runs == 1


def test_what_is_not_the_streams_failure_is_tried_again_within_a_minute(folder: Path) -> None:
    (task,) = _dag(folder).tasks
    assert isinstance(task, StreamOperator)
    assert (task.retries, task.max_retry_delay) == (1000, timedelta(minutes=1))


def test_it_carries_owner_tags_and_assets(folder: Path) -> None:
    dag = _dag(folder)
    (task,) = dag.tasks
    assert dag.owner == "stream-owner"
    assert dag.tags == {"sample", "continuous", "stream"}
    assert task.inlets == [table_asset("bronze.flights")]
    assert task.outlets == [], "its end says nothing of new rows: the watchers of its tables' assets do"


def test_every_use_of_a_tables_asset_names_the_same_watcher() -> None:
    asset = table_asset("bronze.flights")
    assert (asset.name, asset.uri) == ("bronze.flights", "sluice://lakehouse/bronze/flights")
    (watcher,) = asset.watchers
    assert watcher.trigger == PublicationTrigger(table="bronze.flights")
    assert asset == table_asset("bronze.flights")
    assert asset != table_asset("bronze.weather")


def test_its_page_shows_what_it_is_and_how_it_is_operated(folder: Path) -> None:
    document = _dag(folder).doc_md
    assert document is not None
    for part in (
        "what silver_flights does",
        "| Input `rows` (stream) | iceberg: table `bronze.flights` |",
        "| Output `main` | iceberg: table `silver.flights` |",
        "continuously, a batch every 2 seconds",
        "`sluice stream stop silver_flights`",
        "after 3 restarts in a row",
        "stays up for 10 minutes",
    ):
        assert part in document


def test_a_declaration_that_airflow_refuses_hides_no_other(folder: Path) -> None:
    write_continuous_stream(folder, "first")
    write_table(folder, "gold.flights")
    write_continuous_stream(folder, "second", writes="gold.flights")

    def build(loaded: object) -> DAG:
        if getattr(loaded, "name", None) == "first":
            raise ValueError("Airflow does not like it")
        return continuous_stream_dag(loaded)  # type: ignore[arg-type]  # the builder is called with loaded streams only

    dags = build_stream_dags(load_declarations(folder).streams.values(), build)
    assert list(dags) == ["broken__first.stream", "second"]
    assert "Airflow does not like it" in str(dags["broken__first.stream"].doc_md)
