"""Increments that are overdue, in a pass of the reconciler on a real ledger."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import text
from tests.fixtures.streams import continuous_stream
from tests.integration.supervision.test_reconcile_all import WANTED, _alert_events, declared, let_pass, passed

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.stream_declaration import ScheduleDeclaration
from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import admit_run, record_end
from sluice.supervision.alerts import report_good_increment
from sluice.supervision.supervisor import Supervisor


def incremental(**schedule: object) -> LoadedStream:
    """An incremental stream of this schedule."""
    change = {"mode": "incremental", "schedule": ScheduleDeclaration.model_validate(schedule)}
    return replace(WANTED, declaration=WANTED.declaration.model_copy(update=change))


def test_an_increment_that_never_runs_again_is_alerted_once(supervisor: Supervisor, ledger: Ledger) -> None:
    """Its DAG was made again and is paused, or its pool has no free slot: Airflow says nothing."""
    wanted = incremental(cron="@hourly")
    report_good_increment(ledger, "flights", by="airflow: flights, r1")
    assert passed(supervisor, declared(wanted)) == {}
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.newest_increments SET ended_at = ended_at - interval '30 days'"))
        connection.execute(text("UPDATE sluice.dag_pauses SET since = since - interval '30 days'"))
    alerts = [passed(supervisor, declared(wanted))["flights"] for _ in range(2)]
    assert [(alert.reason, alert.is_new) for alert in alerts] == [("late", True), ("late", False)]
    report_good_increment(ledger, "flights", by="airflow: flights, r2")
    assert passed(supervisor, declared(wanted)) == {}
    assert _alert_events(ledger) == [("recover", "late"), ("alert", "late")]


@pytest.mark.parametrize(
    ("mode", "batch", "is_late"),
    [
        ("continuous", {"snapshot_ids": {"rows": 7}}, True),
        ("continuous", {}, False),
        ("continuous", {"snapshot_ids": {"another": 7}}, False),
        ("continuous", {"snapshot_ids": {"rows": 7}, "is_rejected": True}, False),
        ("incremental", {"published_rows": {"rows": 1}}, True),
        ("incremental", {"published_rows": {"rows": 0}, "snapshot_ids": {"rows": 7}}, False),
    ],
    ids=["a snapshot", "nothing visible", "another table's", "rejected", "rows of an increment", "an empty increment"],
)
def test_rows_that_no_increment_reads_are_alerted(
    supervisor: Supervisor, ledger: Ledger, mode: str, batch: dict[str, Any], is_late: bool
) -> None:
    """What is announced to Airflow counts: nothing else would start the increment."""
    wanted = incremental(tables=["bronze.clicks"])
    writer = continuous_stream("clicks")
    if mode == "incremental":
        writer = continuous_stream("clicks", mode="incremental", trigger=None, schedule={"cron": "@yearly"})
    report_good_increment(ledger, "flights", by="airflow: flights, r1")
    assert passed(supervisor, declared(wanted)) == {}, "there is nothing to read"
    key = PublicationKey(stream="clicks", generation=1, batch=0)
    parts: dict[str, Any] = {"input_rows": 1, "published_rows": {}, **batch}
    record_batch(
        ledger, BatchObservation(key=key, run_id="r", started_at=database_time(ledger), duration_ms=1, **parts)
    )
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.newest_increments SET ended_at = ended_at - interval '2 hours'"))
        connection.execute(text("UPDATE sluice.dag_pauses SET since = since - interval '2 hours'"))
        connection.execute(text("UPDATE sluice.batches SET recorded_at = recorded_at - interval '1 hour'"))
    alert = passed(supervisor, declared(wanted, writer)).get("flights")
    assert (None if alert is None else alert.reason) == ("late" if is_late else None)


def test_a_failed_increment_that_its_task_could_not_report_is_reported_by_the_reconciler(
    supervisor: Supervisor, ledger: Ledger
) -> None:
    run = admit_run(ledger, stream="flights", mode="incremental", declaration_digest="d", launched_by="a test")
    record_end(ledger, run.run_id, state=RunState.FAILED, exit_code=1, reason="boom")
    wanted = incremental(cron="@hourly")
    assert passed(supervisor, declared(wanted)) == {}, "its task tries again, or reports it"
    let_pass(ledger, timedelta(minutes=10))
    assert passed(supervisor, declared(wanted))["flights"].reason == "failed"
