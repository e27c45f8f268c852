"""The clock of the ledger's server is set back by an hour, in a real PostgreSQL: all that was recorded lies ahead."""

from __future__ import annotations

import importlib
import pkgutil
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

from sqlalchemy import DateTime, func, text, update
from tests.fakes.launcher import FakeLauncher
from tests.fixtures.streams import continuous_stream
from tests.integration.supervision.test_reconcile_all import declared, passed, started

from sluice import ledger
from sluice.ledger import run_leases
from sluice.ledger.clock_jumps import SIGNS, follow_clock
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.control_requests import find_control_request, record_control_request
from sluice.ledger.control_values import Person
from sluice.ledger.desired_states import find_desired_state, set_desired_state
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.run_leases import Run
from sluice.ledger.run_values import DesiredState, RunState
from sluice.ledger.runs import beat, find_run
from sluice.processes.deadline import wait_until
from sluice.supervision.limits import HEARD_WITHIN
from sluice.supervision.supervisor import Supervisor, plan_supervision

WANTED = continuous_stream()
HOUR = timedelta(hours=1)

NO_SIGNS = {
    "announcements": {"announced_at"},
    "applications": {"ended_at"},
    "archived_runs": {"ended_at", "archived_at"},
    "backfill_attempts": {"interval_start", "interval_end", "started_at", "ended_at"},
    "batches": {"started_at", "watermark"},
    "control_requests": {"used_at", "answered_at"},
    "checkpoint_checks": {"checked_at", "recorded_at"},
    "driver_passes": {"given_at"},
    "driver_uis": {"recorded_at"},
    "events": {"recorded_at"},
    "generations": {"begun_at", "opened_at"},
    "held_batches": {"held_at", "decided_at"},
    "hourly_columns": {"hour"},
    "hourly_rows": {"hour"},
    "ledger_owner": {"claimed_at"},
    "leases": {"expires_at"},
    "maintenance_runs": {"started_at", "ended_at", "recorded_at", "oldest_snapshot_at"},
    "progress_samples": {"observed_at"},
    "rule_results": {"recorded_at"},
    "quality_results": {"checked_at", "recorded_at", "snapshot_committed_at"},
    "refreshes": {"began_at", "ended_at", "keeps_until"},
    "source_schemas": {"seen_at"},
    "undeclared_fields": {"first_seen_at", "last_seen_at"},
    "work_items": {"not_before", "waits_until", "ended_at"},
}
"""Times by which nothing is decided, which belong to the rows of a source, or which are treated apart."""


def set_back(ledger: Ledger, by: timedelta) -> None:
    """Let the database's clock go back: what it has recorded lies ahead. Negative: let time pass."""
    with ledger.transaction() as connection:
        signs = {table.__tablename__: columns for table, columns in SIGNS.items()}
        for table, columns in {**signs, "leases": ("renewed_at", "expires_at")}.items():
            change = ", ".join(f"{column} = {column} + :by" for column in columns)
            connection.execute(text(f"UPDATE sluice.{table} SET {change}"), {"by": by})  # noqa: S608  # our own names


def test_every_time_of_the_ledger_is_a_sign_or_is_none() -> None:
    for module in pkgutil.iter_modules(ledger.__path__):
        if module.name != "migrations":
            importlib.import_module(f"{ledger.__name__}.{module.name}")
    signs = {table.__tablename__: columns for table, columns in SIGNS.items()}
    for table in LedgerTable.metadata.tables.values():
        times = {column.name for column in table.columns if isinstance(column.type, DateTime)}
        assert times == {*signs.get(table.name, ())} | NO_SIGNS.get(table.name, set()), table.name


def test_a_driver_that_is_lost_with_the_old_clock_is_no_healthy_one(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    run = started(supervisor)
    assert passed(supervisor, declared(WANTED)) == {}
    assert run.process is not None
    launcher.hide(run.process)
    set_back(ledger, HOUR)
    decided = plan_supervision(WANTED, ledger=ledger, launcher=launcher).decision
    assert not decided.is_healthy, "a sign from the future is no sign"
    assert "was set back" in decided.explanation

    alert = passed(supervisor, declared(WANTED))["the ledger's clock"]
    assert alert.is_new
    assert re.search("set back by (1 h|59 min)", alert.sentence), "a slow pass takes some of the hour"
    assert "the ledger's clock" not in passed(supervisor, declared(WANTED)), "it happened once"
    set_back(ledger, -HEARD_WITHIN - timedelta(seconds=5))
    assert not plan_supervision(WANTED, ledger=ledger, launcher=launcher).decision.is_healthy
    set_back(ledger, -timedelta(minutes=4))
    passed(supervisor, declared(WANTED))
    assert find_run(ledger, run.run_id).state is RunState.LOST, "its lease is over after its usual time"


def test_a_driver_that_lives_goes_on(supervisor: Supervisor, ledger: Ledger) -> None:
    run = started(supervisor)
    set_back(ledger, HOUR)
    assert follow_clock(ledger) > timedelta(minutes=59)
    assert follow_clock(ledger) == timedelta(0)
    assert beat(ledger, run.run_id).holds_lease
    known = find_run(ledger, run.run_id)
    assert replace(known, state=RunState.RUNNING).is_live
    assert "the ledger's clock" not in passed(supervisor, declared(WANTED))


def test_a_driver_that_lives_hides_no_request_that_lies_ahead(supervisor: Supervisor, ledger: Ledger) -> None:
    """Found by the model: with a request from the future no failure counts, and each one is restarted at once."""
    set_desired_state(ledger, "flights", DesiredState.RUNNING, requested_by="ann")
    run = started(supervisor)
    set_back(ledger, HOUR)
    beat(ledger, run.run_id)
    assert follow_clock(ledger) > timedelta(minutes=59)
    requested_at = find_desired_state(ledger, "flights").requested_at
    assert requested_at is not None
    assert requested_at <= database_time(ledger)


def test_a_request_of_a_person_does_not_stay_good_for_longer(supervisor: Supervisor, ledger: Ledger) -> None:
    started(supervisor)
    record_control_request(ledger, "r", stream="flights", verb="stop", by=Person(person_id="1", name="ann"))
    set_back(ledger, HOUR)
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.control_requests SET requested_at = now() + interval '1 hour'"))
    assert follow_clock(ledger) > timedelta(minutes=59)
    request = find_control_request(ledger, "r")
    assert request is not None
    assert request.requested_at <= database_time(ledger)


def test_it_takes_its_locks_in_the_order_of_a_heartbeat(supervisor: Supervisor, ledger: Ledger) -> None:
    """In the other order each waits for the other, and PostgreSQL ends one of the two as a deadlock."""
    run = started(supervisor)
    set_back(ledger, HOUR)
    with ThreadPoolExecutor(1) as pool:
        with ledger.transaction() as connection:  # the two statements of `beat`
            connection.execute(update(Run).where(Run.run_id == run.run_id).values(heartbeat_at=func.now()))
            following = pool.submit(follow_clock, ledger)
            assert wait_until(lambda: waits_for_a_lock(ledger), bool, seconds=10)
            assert run_leases.renew(connection, run_id=run.run_id)
        assert following.result(timeout=10) > timedelta(minutes=59)


def waits_for_a_lock(ledger: Ledger) -> bool:
    """Whether a connection to this ledger waits for a lock."""
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with ledger.transaction() as connection:
        return bool(connection.execute(text(waits)).scalar_one())
