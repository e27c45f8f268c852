"""Increments, maintenance, quality and broken declarations in a real Airflow; the Spark applications are fakes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.fakes.behaviour import Behaviour, tell_drivers
from tests.fixtures.airflow import RunningAirflow
from tests.fixtures.queued_work import applications_of, items_of

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.applications import find_application, recent_applications
from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.events import Actor, Event, EventAction, EventSubject, recent_events
from sluice.ledger.generations import current_generation, record_query_id
from sluice.ledger.held_batches import HeldBatch, HeldDecision, decide_held, find_held, hold_batch, let_go
from sluice.ledger.maintenance_runs import recent_maintenance
from sluice.ledger.recorded_checks import newest_checkpoint_check
from sluice.ledger.work_values import ApplicationState, WorkKind
from sluice.settings import load_settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import create_or_evolve_table
from sluice_airflow.adapters.execution_api import run_id_of


def _ended(airflow: RunningAirflow, dag_id: str, run_id: str) -> str:
    """The state in which a run ends."""

    def state() -> str:
        return str(airflow.get(f"dags/{dag_id}/dagRuns/{run_id}")["state"])

    airflow.wait(lambda: state() in ("success", "failed"), within_seconds=400, what=state)
    return state()


@pytest.mark.full  # every run starts one by what a stream publishes (`test_publications.py`)
def test_an_increment_that_wrote_a_table_starts_the_one_that_waits_for_it(airflow: RunningAirflow) -> None:
    airflow.unpause("by_table")
    airflow.unpause("by_clock")
    run = airflow.trigger("by_clock")
    assert _ended(airflow, "by_clock", run) == "success"
    assert "increment of by_clock is done" in airflow.log("by_clock", "run", run), "the log of its item"
    airflow.wait(lambda: bool(airflow.runs("by_table")), within_seconds=180)
    (follower,) = airflow.runs("by_table")
    assert follower["run_type"] == "asset_triggered"
    assert _ended(airflow, "by_table", follower["dag_run_id"]) == "success"
    (event,) = airflow.get("assets/events", source_dag_id="by_clock")["asset_events"]
    payload = event["extra"]["payload"]
    assert (payload["stream"], payload["publication_key"], payload["rows"]) == ("by_clock", "by_clock:1:0", 1)

    tell_drivers(airflow.behaviours, "by_clock", Behaviour(publishes=False))
    assert _ended(airflow, "by_clock", empty := airflow.trigger("by_clock")) == "success"
    assert "no asset event is raised" in airflow.log("by_clock", "run", empty)
    assert len(airflow.get("assets/events", source_dag_id="by_clock")["asset_events"]) == 1

    # A run that fails after it has published announces nothing; the next one that succeeds does.
    _publish(airflow.ledger, "by_clock", batch=1)
    assert _ended(airflow, "by_clock", airflow.trigger("by_clock")) == "success"
    newest, _ = airflow.get("assets/events", source_dag_id="by_clock", order_by="-timestamp")["asset_events"]
    assert newest["extra"]["payload"]["publication_key"] == "by_clock:1:1"


@pytest.mark.full  # every run: `test_decided_increments.py`
def test_what_is_decided_about_a_held_batch_gets_one_run_where_no_clock_starts_one(airflow: RunningAirflow) -> None:
    airflow.unpause("by_table")
    key = PublicationKey(stream="by_table", generation=1, batch=0)
    hold_batch(airflow.ledger, HeldBatch(key=key, reason="a rule by 1 of 2 rows", rows={"main": 2}))
    event = Event(
        name="by_table", actor=Actor.person("ann"), action=EventAction.RELEASE_BATCH, reason="requested", explanation=""
    )
    assert decide_held(airflow.ledger, key, HeldDecision.RELEASED, event, by="ann")
    held = find_held(airflow.ledger, "by_table")
    assert held is not None

    for _ in range(2):
        assert _ended(airflow, "stream_reconciler", airflow.trigger("stream_reconciler")) in ("success", "failed")

    (run,) = [one for one in airflow.runs("by_table") if one["dag_run_id"].startswith("decision__")]
    assert run["dag_run_id"] == run_id_of(held)
    assert "ann has released batch 1:0" in run["note"]
    assert _ended(airflow, "by_table", run["dag_run_id"]) == "success"
    let_go(airflow.ledger, key)


@pytest.mark.full  # every run: `test_work_application.py`, on Spark
def test_an_application_that_lingers_runs_the_increments_of_its_stream_and_stays_when_one_fails(
    airflow: RunningAirflow,
) -> None:
    airflow.unpause("lingering")
    for _ in range(2):
        assert _ended(airflow, "lingering", airflow.trigger("lingering")) == "success"
    tell_drivers(airflow.behaviours, "lingering", Behaviour(fails_with="SchemaError: a column is missing"))
    failed = airflow.trigger("lingering")
    assert _ended(airflow, "lingering", failed) == "failed"

    (application,) = applications_of(airflow.ledger, "lingering")
    assert find_application(airflow.ledger, application).state is ApplicationState.RUNNING
    assert airflow.task("lingering", "run", failed)["try_number"] == 1
    log = airflow.log("lingering", "run", failed)
    assert "sluice: failed: SchemaError: a column is missing" in log, "the log of its item"
    events = airflow.get("assets/events", source_dag_id="lingering")["asset_events"]
    assert sorted(event["extra"]["payload"]["publication_key"] for event in events) == [
        "lingering:1:0",
        "lingering:1:1",
    ]


def _publish(ledger: Ledger, stream: str, *, batch: int) -> None:
    record_batch(
        ledger,
        BatchObservation(
            key=PublicationKey(stream=stream, generation=1, batch=batch),
            run_id="a run that failed later",
            started_at=datetime.now(UTC),
            duration_ms=1,
            input_rows=1,
            published_rows={"main": 1},
        ),
    )


@pytest.mark.full  # every run: `test_table_job_dags.py`
def test_tables_with_nothing_due_take_no_task_and_no_application(
    airflow: RunningAirflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in airflow.environment.items():
        monkeypatch.setenv(name, value)
    declarations, tables = load_declarations(airflow.pipelines), ["gold.first", "gold.second"]
    for table in tables:
        create_or_evolve_table(open_catalog(load_settings()), declarations.table(table).declaration)
    known = len(recent_applications(airflow.ledger, limit=1000))
    airflow.unpause("table_maintenance")

    run = airflow.trigger("table_maintenance", tables=tables)

    assert _ended(airflow, "table_maintenance", run) == "success"
    states = airflow.tasks("table_maintenance", run)
    assert {task for task, state in states.items() if state == "success"} == {"choose_tables"}
    assert set(states.values()) == {"success", "skipped"}
    assert len(recent_applications(airflow.ledger, limit=1000)) == known
    for table in tables:
        asked_by = [seen.launched_by for seen in recent_maintenance(airflow.ledger, table, limit=9)]
        assert asked_by.count(f"airflow: table_maintenance, {run}") == 1, "what was observed is recorded"


@pytest.mark.full  # every run: `test_table_job_dags.py`
def test_only_the_chosen_table_is_checked(airflow: RunningAirflow) -> None:
    airflow.unpause("data_quality")
    run = airflow.trigger("data_quality", tables=["gold.first"])
    assert _ended(airflow, "data_quality", run) == "success"
    states = airflow.tasks("data_quality", run)
    assert [task for task, state in states.items() if state == "success"] == ["choose_tables", "gold.first"]
    item = items_of(airflow.ledger, "gold.first")[0]
    assert (item.kind, item.asked_by) == (WorkKind.CHECK_TABLE, f"airflow: data_quality, {run}")


def test_a_table_that_does_not_exist_cannot_be_chosen(airflow: RunningAirflow) -> None:
    airflow.unpause("table_maintenance")
    with pytest.raises(AssertionError, match=r"gold\.absent"):
        airflow.trigger("table_maintenance", tables=["gold.absent"])


@pytest.mark.full  # every run: a lost checkpoint is red, with its words
def test_bad_data_is_red_with_the_reason_and_is_not_tried_again(airflow: RunningAirflow) -> None:
    reason = "Table gold.second: expect_column_values_to_not_be_null(id) does not hold. Report: /reports/gold.html"
    tell_drivers(airflow.behaviours, "gold.second", Behaviour(fails_with=f"UnhealthyError: {reason}"))
    airflow.unpause("data_quality")
    run = airflow.trigger("data_quality", tables=["gold.second"])
    assert _ended(airflow, "data_quality", run) == "failed"
    assert airflow.task("data_quality", "gold.second", run)["try_number"] == 1
    assert (
        f"ERROR [{items_of(airflow.ledger, 'gold.second')[0].item[:8]}] sluice: failed: UnhealthyError: {reason}"
        in (airflow.log("data_quality", "gold.second", run))
    )


def test_a_lost_checkpoint_is_red_and_named(airflow: RunningAirflow) -> None:
    generation = current_generation(
        airflow.ledger, "left_alone", checkpoints_root=airflow.environment["SLUICE_CHECKPOINTS"]
    )
    record_query_id(airflow.ledger, "left_alone", generation.generation, "a-query-that-once-ran")
    airflow.unpause("checkpoint_health")
    run = airflow.trigger("checkpoint_health", streams=["left_alone"])
    assert _ended(airflow, "checkpoint_health", run) == "failed"
    log = airflow.log("checkpoint_health", "check", run)
    assert "Checkpoint of left_alone, generation 1: exists: " in log
    assert "is empty, though generation 1 has a query" in log
    check = newest_checkpoint_check(airflow.ledger, "left_alone")
    assert check is not None
    assert not check.healthy


def test_a_broken_declaration_is_a_red_dag_that_shows_file_and_line(airflow: RunningAirflow) -> None:
    dag_id = "broken__broken_one.stream"
    airflow.unpause(dag_id)
    line = len((airflow.pipelines / "broken_one.stream.yaml").read_text().splitlines())
    place = f"{airflow.pipelines}/broken_one.stream.yaml:{line}"
    assert place in airflow.get(f"dags/{dag_id}/details")["doc_md"]
    run = airflow.trigger(dag_id)
    assert _ended(airflow, dag_id, run) == "failed"
    assert place in airflow.log(dag_id, "problem", run)
    assert airflow.get("importErrors")["total_entries"] == 0


@pytest.mark.full
def test_a_red_increment_is_an_alert_in_the_ledger_until_one_succeeds(airflow: RunningAirflow) -> None:
    def alerts() -> list[tuple[str, str]]:
        events = recent_events(airflow.ledger, EventSubject.STREAM, "by_clock", limit=9)
        return [(event.action, event.reason) for event in events if event.action in ("alert", "recover")]

    tell_drivers(airflow.behaviours, "by_clock", Behaviour(fails_with="SchemaError: the table has other columns"))
    airflow.unpause("by_clock")
    assert _ended(airflow, "by_clock", airflow.trigger("by_clock")) == "failed"
    (alert,) = recent_events(airflow.ledger, EventSubject.STREAM, "by_clock", limit=1)
    assert (alerts(), "the table has other columns" in alert.explanation) == ([("alert", "failed")], True)
    tell_drivers(airflow.behaviours, "by_clock", Behaviour())
    assert _ended(airflow, "by_clock", airflow.trigger("by_clock")) == "success"
    assert alerts() == [("recover", "failed"), ("alert", "failed")]
