"""The rule of supervision as one table: wanted, seen, history, now → action, reason."""

from __future__ import annotations

import pytest
from tests.unit.supervision.queued_cases import QUEUED_BY_ITS_CLUSTER
from tests.unit.supervision.supervision_cases import (
    ADMITTED,
    ADMITTED_LONG_AGO,
    AHEAD,
    ALIVE,
    FAILED,
    HEARD,
    MUTE,
    NONE,
    NOW,
    OTHER_SOURCE,
    SECOND,
    SILENT,
    STARTING,
    STOPPED,
    TABLE,
    UNKNOWN,
    WANTED,
    Case,
    a_run,
    failures,
    seen,
)

from sluice.ledger.desired_states import SuspensionCause
from sluice.ledger.run_values import DesiredState, RunObservation, WatchedRun
from sluice.messages import in_words
from sluice.supervision.decide_supervision import calls_for_supervisor, decide_supervision, with_room
from sluice.supervision.limits import HEARD_WITHIN, STARTS_WITHIN
from sluice.supervision.supervision_values import HEALTHY_REASONS, SupervisionAction, SupervisionReason, decision

EVERY_ROW = (*TABLE, *QUEUED_BY_ITS_CLUSTER)


@pytest.mark.parametrize("row", EVERY_ROW, ids=lambda row: row.name)
def test_the_table(row: Case) -> None:
    decision = decide_supervision(wanted=WANTED, digest="d", seen=row.seen, history=row.history, now=NOW)
    assert (decision.action, decision.reason, decision.delay) == (row.action, row.reason, row.delay)
    assert decision.is_healthy == (row.reason in HEALTHY_REASONS)
    assert decision.explanation.endswith(".")


def test_every_reason_and_action_has_a_row() -> None:
    assert {row.reason for row in EVERY_ROW} == set(SupervisionReason) - {SupervisionReason.HOST_BUSY}, "with_room"
    assert {row.action for row in EVERY_ROW} == set(SupervisionAction)


def test_nothing_is_launched_closed_or_stopped_on_an_unknown_process() -> None:
    """The law: unknown is never treated as dead. Only a note of the driver's own parent says that it ended, and only
    the end of its lease gives its place away."""
    for row in EVERY_ROW:
        if row.seen.process is UNKNOWN and row.seen.left_exit is None:
            allowed = {SupervisionAction.ADOPT, SupervisionAction.WAIT}
            takes_lease = {SupervisionAction.TAKE_OVER} if row.seen.is_lease_over else set()
            if row.reason is SupervisionReason.STOP_OVERDUE:
                takes_lease = {SupervisionAction.REVOKE}
            assert row.action in allowed | takes_lease


def test_a_refused_change_names_what_was_and_what_is() -> None:
    stream = seen(a_run(digest="old"), process=ALIVE, fingerprint=OTHER_SOURCE)
    decision = decide_supervision(wanted=WANTED, digest="d", seen=stream, history=NONE, now=NOW)
    assert decision.explanation == (
        "Run run-1 continues with its previous declaration. The checkpoint of flights cannot follow a change of its "
        "declaration: input records was `kafka connection=flights_kafka topics=flights` and is now `rate`. "
        "Undo that change, declare the new one as a stream of another name, or stop the stream and leave its "
        "checkpoint behind: `sluice stream reset flights` shows what is then read and published again."
    )


def test_a_driver_of_another_host_is_as_silent_as_its_newest_sign_says() -> None:
    ahead = decide_supervision(wanted=WANTED, digest="d", seen=seen(AHEAD, process=UNKNOWN), history=NONE, now=NOW)
    assert "is 1 d in the future: the clock of the ledger's server was set back." in ahead.explanation
    silent = decide_supervision(wanted=WANTED, digest="d", seen=seen(SILENT, process=UNKNOWN), history=NONE, now=NOW)
    assert f"It has been silent for {in_words(HEARD_WITHIN + SECOND)}." in silent.explanation


@pytest.mark.parametrize("cause", [None, *SuspensionCause])
def test_a_stopped_stream_says_what_starts_it_again(cause: SuspensionCause | None) -> None:
    stopped = seen(None, asked=DesiredState.RUNNING if cause else STOPPED, suspension=cause)
    text = decide_supervision(wanted=WANTED, digest="d", seen=stopped, history=NONE, now=NOW).explanation
    assert "`sluice stream start flights`" in text
    assert ("Unpausing the DAG" in text) is (cause is SuspensionCause.PAUSED)


def test_giving_up_names_the_reason_the_count_and_the_next_step() -> None:
    decision = decide_supervision(
        wanted=WANTED, digest="d", seen=seen(FAILED), history=failures(4, ended=SECOND), now=NOW
    )
    assert decision.explanation == (
        "Run run-1 ended: broker gone. That is unknown: unexplained (no rule matches the error), failure 4 in a row, "
        "and no restart is left for this class. See the end of `sluice stream logs flights`, and the error itself. "
        "Then start the stream again: unpause its DAG, or `sluice stream start flights`."
    )
    assert decision.failure == failures(4, ended=SECOND).newest_failure


@pytest.mark.parametrize(
    ("run", "calls"),
    [
        (FAILED, True),
        (ADMITTED, False),
        (ADMITTED_LONG_AGO, True),
        (STARTING, False),
        (MUTE, True),
        (HEARD, False),
        (SILENT, True),
        (a_run(desired_state=STOPPED), True),
    ],
)
def test_a_trigger_calls_when_there_is_something_to_look_at(run: RunObservation, calls: bool) -> None:
    assert calls_for_supervisor(WatchedRun(run=run, observed_at=NOW)) is calls


@pytest.mark.parametrize(
    ("reason", "starting", "cores", "waits"),
    [
        (SupervisionReason.RESTART_DUE, 3, 4, False),
        (SupervisionReason.RESTART_DUE, 4, 4, True),
        (SupervisionReason.RESTART_DUE, 1, 1, False),
        (SupervisionReason.RESTART_DUE, 2, 1, True),
        (SupervisionReason.WANTED_AGAIN, 9, 4, False),
        (SupervisionReason.NEVER_STARTED, 9, 4, False),
    ],
)
def test_a_restart_waits_while_its_host_starts_many_others(
    reason: SupervisionReason, starting: int, cores: int, waits: bool
) -> None:
    """What a person asked for does not wait."""
    due = decision(SupervisionAction.LAUNCH, reason, "It is due.", STARTS_WITHIN)
    found = with_room(due, starting=starting, cores=cores, run_id="r")
    assert (found is not due) is waits
    if waits:
        assert (found.action, found.reason) == (SupervisionAction.RESTART_LATER, SupervisionReason.HOST_BUSY)
        assert found.delay is not None
        assert STARTS_WITHIN / 2 <= found.delay < STARTS_WITHIN
        assert not found.is_healthy
