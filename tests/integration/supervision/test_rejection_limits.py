"""A stream that rejects more than `max_rejected`, or holds a batch: alerted to, stopped where that is declared."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fakes.launcher import FakeLauncher
from tests.fixtures.streams import continuous_stream
from tests.integration.supervision.test_reconcile_all import declared, passed, started
from tests.integration.supervision.test_rejecting_streams import actions, deliver, ended_increment, states

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.batches import PublicationKey
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import find_desired_state, set_desired_state
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.held_batches import HeldBatch, hold_batch
from sluice.ledger.run_values import DesiredState
from sluice.ledger.runs import beat
from sluice.ledger.stream_troubles import all_troubles
from sluice.supervision import reconciler
from sluice.supervision.alerts import report_good_increment
from sluice.supervision.row_verdicts import STOPPED_BY_LIMIT
from sluice.supervision.stream_verdict import StreamState
from sluice.supervision.supervisor import Supervisor, supervise
from sluice.supervision.undeclared_streams import stop_beyond_limit

INCREMENTAL: dict[str, Any] = {"mode": "incremental", "trigger": None, "schedule": {"cron": "@hourly"}}


def limited(action: str, **parts: Any) -> LoadedStream:
    """A stream that may reject 10 rows in an hour."""
    return continuous_stream(supervision={"max_rejected": {"rows": 10, "action": action}}, **parts)


def test_a_person_is_alerted_to_too_many_rejected_rows_until_they_have_seen_them(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    wanted = limited("warn")
    run = started(supervisor, wanted)
    for number in (0, 1):
        deliver(ledger, run, number, refused=10 - 5 * number)
        if number == 0:
            assert passed(supervisor, declared(wanted)) == {}

    alert = passed(supervisor, declared(wanted))["flights"]

    assert (alert.reason, alert.is_new) == ("many rejected", True)
    assert "It rejected 15 of 60 rows since" in alert.sentence
    assert passed(supervisor, declared(wanted))["flights"].is_new is False
    assert states(ledger, launcher, wanted) == {StreamState.MANY_REJECTED}
    assert beat(ledger, run.run_id).desired_state is DesiredState.RUNNING, "it only warns"
    set_desired_state(ledger, "flights", DesiredState.RUNNING, requested_by="ann")
    assert passed(supervisor, declared(wanted)) == {}
    assert all_troubles(ledger) == ()


def test_a_stream_that_stops_beyond_its_limit_stays_stopped_and_unhealthy_until_a_person_starts_it(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    wanted = limited("stop")
    run = started(supervisor, wanted)
    deliver(ledger, run, 0, refused=30)

    first = passed(supervisor, declared(wanted))["flights"]

    assert (first.reason, first.is_new) == ("many rejected", True), "and not `all rejected`, which stops nothing"
    assert find_desired_state(ledger, "flights").requested_by == STOPPED_BY_LIMIT
    assert beat(ledger, run.run_id).desired_state is DesiredState.STOPPED
    (stop,) = [one for one in recent_events(ledger, EventSubject.STREAM, "flights", limit=9) if one.action == "stop"]
    assert (stop.reason, "so it stops" in stop.explanation) == ("many_rejected", True)
    assert run.process is not None
    launcher.end(run.process, exit_code=0)
    for _ in range(2):
        supervise(supervisor, wanted)  # as its own task does
        again = passed(supervisor, declared(wanted))["flights"]
        assert (again.is_new, again.sentence) == (False, first.sentence)
    assert states(ledger, launcher, wanted) == {StreamState.MANY_REJECTED}
    assert actions(ledger) == ["alert"]

    set_desired_state(ledger, "flights", DesiredState.RUNNING, requested_by="ann")
    started(supervisor, wanted)
    assert passed(supervisor, declared(wanted)) == {}
    assert find_desired_state(ledger, "flights").requested_by == "ann"


def test_a_request_of_a_person_is_newer_than_what_the_limit_was_judged_on(
    supervisor: Supervisor, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = limited("stop")
    deliver(ledger, started(supervisor, wanted), 0, refused=30)

    def after_a_person(*given: Any) -> None:
        set_desired_state(ledger, "flights", DesiredState.RUNNING, requested_by="ann")
        stop_beyond_limit(*given)

    monkeypatch.setattr(reconciler, "stop_beyond_limit", after_a_person)
    passed(supervisor, declared(wanted))

    desired = find_desired_state(ledger, "flights")
    assert (desired.requested_by, desired.desired_state) == ("ann", DesiredState.RUNNING)


@pytest.mark.parametrize("action", ["warn", "stop"])
def test_an_increment_beyond_its_limit_stays_alerted(supervisor: Supervisor, ledger: Ledger, action: str) -> None:
    wanted = limited(action, **INCREMENTAL)
    run = ended_increment(ledger, digest=wanted.digest)
    deliver(ledger, run, 0, refused=20)

    report_good_increment(ledger, "flights", by="its task", wanted=wanted)
    assert passed(supervisor, declared(wanted))["flights"].reason == "many rejected"
    assert (find_desired_state(ledger, "flights").desired_state is DesiredState.STOPPED) is (action == "stop")
    ended_increment(ledger, digest=wanted.digest)
    report_good_increment(ledger, "flights", by="its task", wanted=wanted)
    assert passed(supervisor, declared(wanted))["flights"].is_new is False

    assert actions(ledger) == ["alert"], "the increments that follow are no news"


@pytest.mark.parametrize("parts", [{}, INCREMENTAL], ids=["continuous", "incremental"])
def test_a_person_is_alerted_to_a_held_batch(supervisor: Supervisor, ledger: Ledger, parts: dict[str, Any]) -> None:
    wanted = continuous_stream(**parts)
    if parts:
        ended_increment(ledger, digest=wanted.digest)
    else:
        started(supervisor, wanted)
    key = PublicationKey(stream="flights", generation=1, batch=3)
    hold_batch(ledger, HeldBatch(key=key, reason="price_is_positive by 1 of 2 rows of main", rows={"main": 2}))
    if parts:
        report_good_increment(ledger, "flights", by="its task", wanted=wanted)

    alert = passed(supervisor, declared(wanted))["flights"]

    assert (alert.reason, alert.is_new) == ("held", True)
    assert "Batch 1:3 waits for a person: it breaks price_is_positive" in alert.sentence
