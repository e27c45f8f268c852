"""The reconciler is watched by its newest pass, and a metadata database by whether it knows that."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text
from tests.integration.supervision.test_overdue_increments import incremental
from tests.integration.supervision.test_reconcile_all import declared, passed

from sluice.ledger.airflow_owner import MISSING_AFTER, begin_pass, end_pass, missing_for
from sluice.ledger.connection import Ledger
from sluice.ledger.stream_records import read_stream
from sluice.supervision.alerts import report_good_increment
from sluice.supervision.supervisor import Supervisor


def test_the_pass_before_is_known_by_its_dag_run(ledger: Ledger) -> None:
    assert begin_pass(ledger, "run-1") is None
    first = begin_pass(ledger, "run-2")
    assert first is not None
    assert (first.dag_run, first.ended_at) == ("run-1", None), "it broke off"
    end_pass(ledger, "run-2")
    second = begin_pass(ledger, "run-3")
    assert second is not None
    assert second.ended_at is not None


def test_a_reconciler_that_makes_no_passes_is_missing(ledger: Ledger) -> None:
    assert missing_for(ledger) is None, "it was never there: nothing is supervised yet"
    begin_pass(ledger, "run-1")
    assert missing_for(ledger) is None
    age(ledger, MISSING_AFTER + timedelta(seconds=1))
    missing = missing_for(ledger)
    assert missing is not None
    assert missing > MISSING_AFTER


def age(ledger: Ledger, by: timedelta) -> None:
    """Let time pass since the newest pass."""
    with ledger.transaction() as connection:
        moved = text("UPDATE sluice.reconciler_passes SET began_at = began_at - :by, up_since = up_since - :by")
        connection.execute(moved, {"by": by})


def test_it_is_up_since_the_first_pass_after_a_standstill(ledger: Ledger) -> None:
    assert read_stream(ledger, "flights").up_since is None
    begin_pass(ledger, "run-1")
    first = read_stream(ledger, "flights").up_since
    assert first is not None
    age(ledger, timedelta(minutes=1))
    begin_pass(ledger, "run-2")
    assert read_stream(ledger, "flights").up_since == first - timedelta(minutes=1), "it was there all the time"
    age(ledger, timedelta(hours=9))
    begin_pass(ledger, "run-3")
    again = read_stream(ledger, "flights").up_since
    assert again is not None
    assert again >= first


def test_a_morning_start_finds_no_increment_late(supervisor: Supervisor, ledger: Ledger) -> None:
    """The stack was down overnight: Airflow starts what is due, and the first pass may come before that."""
    wanted = incremental(cron="@hourly")
    begin_pass(ledger, "yesterday")
    report_good_increment(ledger, "flights", by="airflow: flights, r1")
    assert passed(supervisor, declared(wanted)) == {}
    age(ledger, timedelta(hours=9))
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.newest_increments SET ended_at = ended_at - interval '9 hours'"))
        connection.execute(text("UPDATE sluice.dag_pauses SET since = since - interval '9 hours'"))
    begin_pass(ledger, "this-morning")
    assert passed(supervisor, declared(wanted)) == {}
