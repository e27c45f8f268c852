"""How a stream is, in one word."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import pytest

from sluice.declarations.run_declaration import RejectionLimit
from sluice.ledger.airflow_owner import DagPause, PauseOrigin
from sluice.ledger.batches import BatchObservation, PublicationKey
from sluice.ledger.desired_states import DesiredStateObservation
from sluice.ledger.held_batches import RejectedSince
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.ledger.stream_troubles import StreamTrouble
from sluice.processes.process_identity import ProcessIdentity, ProcessState
from sluice.supervision.control_plans import note_of_paused_dag
from sluice.supervision.progress_decision import ProgressJudgement, ProgressState
from sluice.supervision.row_verdicts import STOPPED_BY_LIMIT, with_limit, with_rejections
from sluice.supervision.stream_verdict import (
    StreamState,
    StreamVerdict,
    judge_increment,
    verdict_of,
    with_unclear_pause,
)
from sluice.supervision.supervision_values import (
    StreamObservation,
    SupervisionAction,
    SupervisionDecision,
    SupervisionReason,
)

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
ALIVE, GONE, UNKNOWN = ProcessState.ALIVE, ProcessState.GONE, ProcessState.UNKNOWN


def an_increment(state: RunState, *, heard_ago: int = 1) -> RunObservation:
    """A run of an incremental stream, heard so many seconds before noon."""
    is_over = state not in (RunState.LAUNCHING, RunState.RUNNING)
    return RunObservation(
        token=1,
        run_id="run-1",
        stream="weather",
        generation=1,
        mode="incremental",
        state=state,
        desired_state=DesiredState.RUNNING,
        launched_at=NOON - timedelta(hours=1),
        launched_by="a test",
        declaration_digest="d",
        process=ProcessIdentity(host="h", pid=1, started_at_seconds=1.0),
        heartbeat_at=NOON - timedelta(seconds=heard_ago),
        ended_at=NOON if is_over else None,
        reason="a reason" if is_over else None,
    )


@pytest.mark.parametrize(
    ("run", "process", "asked", "state", "is_healthy"),
    [
        (None, None, DesiredState.RUNNING, StreamState.NEVER_STARTED, True),
        (None, None, DesiredState.STOPPED, StreamState.STOPPED, True),
        (an_increment(RunState.FINISHED), None, DesiredState.RUNNING, StreamState.FINISHED, True),
        (an_increment(RunState.FAILED), None, DesiredState.RUNNING, StreamState.FAILED, False),
        (an_increment(RunState.LOST), None, DesiredState.RUNNING, StreamState.FAILED, False),
        (an_increment(RunState.FAILED), None, DesiredState.STOPPED, StreamState.STOPPED, True),
        (an_increment(RunState.RUNNING), ALIVE, DesiredState.RUNNING, StreamState.RUNNING, True),
        (an_increment(RunState.RUNNING), UNKNOWN, DesiredState.RUNNING, StreamState.RUNNING, True),
        (an_increment(RunState.RUNNING), GONE, DesiredState.RUNNING, StreamState.DRIVER_GONE, False),
        (an_increment(RunState.RUNNING, heard_ago=90), ALIVE, DesiredState.RUNNING, StreamState.SILENT, False),
        (an_increment(RunState.RUNNING, heard_ago=90), UNKNOWN, DesiredState.RUNNING, StreamState.UNKNOWN, False),
    ],
)
def test_an_increment(
    run: RunObservation | None,
    process: ProcessState | None,
    asked: DesiredState,
    state: StreamState,
    is_healthy: bool,
) -> None:
    seen = StreamObservation(
        stream="weather",
        observed_at=NOON,
        desired=DesiredStateObservation(stream="weather", desired_state=asked),
        runs=() if run is None else (run,),
        process=process,
    )
    verdict = judge_increment(seen)
    assert (verdict.state, verdict.is_healthy) == (state, is_healthy)


def test_a_start_of_an_increment_says_that_its_new_dag_is_still_paused() -> None:
    desired = DesiredStateObservation(stream="weather", desired_state=DesiredState.RUNNING)
    pause = DagPause(stream="weather", airflow="ours", is_paused=True, observed_at=NOON, origin=PauseOrigin.FIRST_SEEN)
    seen = StreamObservation(stream="weather", observed_at=NOON, desired=desired, dag_pause=pause)

    assert note_of_paused_dag(seen, runs_by_schedule=True) == (
        "The DAG of weather is paused in Airflow, so nothing runs it. Unpause it."
    )
    assert note_of_paused_dag(replace(seen, dag_pause=None), runs_by_schedule=True) == ""


@pytest.mark.parametrize("reason", SupervisionReason)
def test_every_reason_of_supervision_is_a_state(reason: SupervisionReason) -> None:
    decision = SupervisionDecision(action=SupervisionAction.WAIT, reason=reason, explanation="A sentence.")
    verdict = verdict_of(decision)
    assert isinstance(verdict.state, StreamState)
    assert verdict.is_healthy == decision.is_healthy
    assert verdict.explanation == "A sentence."


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (ProgressState.STALLED, StreamState.STALLED),
        (ProgressState.LATE, StreamState.LATE),
        (ProgressState.IDLE, StreamState.IDLE),
        (ProgressState.UNKNOWN, StreamState.RUNNING),
        (ProgressState.UNOBSERVED, StreamState.SOURCES_UNOBSERVED),
        (ProgressState.PROGRESSING, StreamState.RUNNING),
        (ProgressState.STARTING, StreamState.RUNNING),
    ],
)
def test_the_health_of_a_running_stream_is_its_progress(state: ProgressState, told: StreamState) -> None:
    decision = SupervisionDecision(
        action=SupervisionAction.ADOPT, reason=SupervisionReason.HEARTBEAT_FRESH, explanation="It beats."
    )
    judged = ProgressJudgement(state=state, explanation="So.")
    health = verdict_of(decision, judged)
    assert (health.state, health.is_healthy, health.explanation) == (told, judged.is_healthy, "It beats. So.")


@pytest.mark.parametrize(("crashes", "state"), [(0, StreamState.RESTARTING), (3, StreamState.CRASH_LOOPING)])
def test_a_stream_that_fails_again_and_again_loops(crashes: int, state: StreamState) -> None:
    decision = SupervisionDecision(
        action=SupervisionAction.RESTART_LATER,
        reason=SupervisionReason.BACKING_OFF,
        explanation="Later.",
        crashes=crashes,
    )
    assert verdict_of(decision).state is state


def a_batch(number: int, *, read: int, refused: int = 0, published: int = 0) -> BatchObservation:
    """A batch by its rows."""
    return BatchObservation(
        key=PublicationKey(stream="weather", generation=1, batch=number),
        run_id="run-1",
        started_at=NOON,
        duration_ms=1,
        input_rows=read,
        refused_rows=refused,
        published_rows={"main": published},
        recorded_at=NOON,
    )


GOOD, BAD, EMPTY = a_batch(1, read=30, published=30), a_batch(2, read=30, refused=30), a_batch(3, read=0)


@pytest.mark.parametrize(
    ("batches", "is_healthy"),
    [
        ((), True),
        ((GOOD,), True),
        ((BAD,), False),
        ((BAD, GOOD), False),
        ((GOOD, BAD), True),
        ((EMPTY, BAD), False),
        ((a_batch(2, read=30, refused=29, published=1),), True),
        ((a_batch(2, read=30, refused=29),), True),
        ((a_batch(2, read=30, refused=30, published=1),), True),
        ((replace(BAD, is_rejected=True),), True),
    ],
    ids=["none", "good", "bad", "bad after good", "good after bad", "bad, then one without rows", "one row was good",
         "one row came late", "a row of a state was published", "rejected by a person"],
)  # fmt: skip
def test_a_stream_that_rejects_every_row_is_unhealthy(batches: tuple[BatchObservation, ...], is_healthy: bool) -> None:
    verdict = with_rejections(judge_increment(seen_with(batches)), seen_with(batches))

    assert verdict.is_healthy is is_healthy
    assert verdict.state is (StreamState.FINISHED if is_healthy else StreamState.ALL_REJECTED)
    if not is_healthy:
        assert verdict.explanation == ("It rejected all 30 rows of batch 1:2, so nothing of what is sent arrives.")
        assert "quarantine" in verdict.next_step


ONE_FILE = replace(a_batch(1, read=30, refused=10, published=20), rejected_files=("s3a://landing/alien.csv",))
SETTLED = DesiredStateObservation(
    stream="weather", desired_state=DesiredState.RUNNING, requested_at=NOON + timedelta(minutes=1)
)


@pytest.mark.parametrize(
    ("change", "is_healthy"),
    [
        ({}, False),
        ({"generation": 2}, True),
        ({"refusing": replace(ONE_FILE, is_rejected=True)}, True),
        ({"desired": SETTLED}, True),
        ({"desired": replace(SETTLED, requested_at=NOON)}, False),
        ({"refusing_digests": {"run-0": "another"}, "refusing": replace(ONE_FILE, run_id="run-0")}, True),
        ({"refusing_digests": {"run-1": "d"}, "runs": ()}, False),
    ],
    ids=["good files came since", "reset since", "rejected by a person", "settled by a request", "requested before",
         "declared again", "its run is forgotten"],
)  # fmt: skip
def test_a_file_of_which_no_record_was_good_counts_until_somebody_acts(
    change: dict[str, Any], is_healthy: bool
) -> None:
    before = replace(seen_with((GOOD,)), generation=1, refusing=ONE_FILE)
    seen = replace(before, **change)
    verdict = with_rejections(judge_increment(before), seen)

    assert verdict.is_healthy is is_healthy
    if not is_healthy:
        assert (verdict.state, verdict.occasion) == (StreamState.ALL_REJECTED, "1:1")
        assert "every record of the file s3a://landing/alien.csv, in batch 1:1" in verdict.explanation
        assert "`sluice stream start weather` settles it" in verdict.next_step


@pytest.mark.parametrize("state", [StreamState.STOPPED, StreamState.FAILED, StreamState.LATE, StreamState.STARTING])
def test_another_state_says_more_than_rejected_rows(state: StreamState) -> None:
    verdict = StreamVerdict(state=state, is_healthy=False, explanation="as it is")

    assert with_rejections(verdict, seen_with((BAD,))) == verdict


def seen_with(batches: tuple[BatchObservation, ...]) -> StreamObservation:
    """An increment that ended well, with these batches, newest first."""
    desired = DesiredStateObservation(stream="weather", desired_state=DesiredState.RUNNING)
    run = an_increment(RunState.FINISHED)
    return StreamObservation(stream="weather", observed_at=NOON, desired=desired, runs=(run,), batches=batches)


@pytest.mark.parametrize("reason", [SupervisionReason.STARTING, SupervisionReason.HEARTBEAT_FRESH])
def test_a_run_that_is_up_for_a_moment_ends_no_crash_loop(reason: SupervisionReason) -> None:
    decision = SupervisionDecision(action=SupervisionAction.ADOPT, reason=reason, explanation="Up.", crashes=4)
    verdict = verdict_of(decision)
    assert (verdict.state, verdict.is_healthy) == (StreamState.CRASH_LOOPING, False)
    assert verdict.explanation.startswith("Up. 4 runs have failed")


@pytest.mark.parametrize(
    ("limit", "rejected", "is_healthy"),
    [
        ({"rows": 10}, 10, True),
        ({"rows": 10}, 11, False),
        ({"share": 0.05}, 50, True),
        ({"share": 0.05}, 51, False),
        ({"rows": 100, "share": 0.05}, 60, False),
    ],
)
def test_a_stream_that_rejects_more_than_its_limit_is_unhealthy(
    limit: dict[str, float], rejected: int, is_healthy: bool
) -> None:
    found = RejectedSince(since=NOON - timedelta(hours=1), rows=rejected, read=1000)
    seen = replace(seen_with(()), rejected=found)
    verdict = with_limit(judge_increment(seen_with((GOOD,))), seen, RejectionLimit.model_validate(limit))
    assert verdict.is_healthy is is_healthy
    assert is_healthy or f"It rejected {rejected} of 1,000 rows" in verdict.explanation


def test_a_stream_that_was_stopped_for_its_rejected_rows_stays_unhealthy_until_a_person_asks_something() -> None:
    limit = RejectionLimit(rows=10, action="stop")
    beyond = replace(seen_with((BAD,)), rejected=RejectedSince(since=NOON, rows=30, read=30))
    found = with_limit(with_rejections(judge_increment(beyond), beyond), beyond, limit)
    assert found.state is StreamState.MANY_REJECTED, "the reason to stop counts, also where every row was rejected"
    assert found.explanation.endswith("`max_rejected` is 10 rows, so it stops.")
    assert "`sluice stream start weather` starts it again." in found.next_step
    trouble = StreamTrouble(
        stream="weather",
        reason=found.state,
        explanation=found.explanation,
        since=NOON,
        observed_at=NOON,
        occasion=found.occasion,
    )
    desired = DesiredStateObservation(
        stream="weather", desired_state=DesiredState.STOPPED, requested_by=STOPPED_BY_LIMIT, requested_at=NOON
    )
    stopped = replace(seen_with(()), desired=desired, trouble=trouble)

    for one in (StreamState.STOPPED, StreamState.STOPPING):
        healthy = StreamVerdict(state=one, is_healthy=True, explanation="It is stopped, as requested.")
        assert with_limit(healthy, stopped, None) == found, "no new alert, and none that is over"
        by_person = replace(stopped, desired=replace(desired, requested_by="ann"))
        assert with_limit(healthy, by_person, limit) == healthy
    failed = StreamVerdict(state=StreamState.FAILED, is_healthy=False, explanation="It failed.")
    assert with_limit(failed, stopped, limit) == failed


@pytest.mark.parametrize("action", ["stop", "warn"])
@pytest.mark.parametrize("state", [StreamState.LATE, StreamState.STALLED, StreamState.SOURCES_UNOBSERVED])
def test_a_stream_that_also_lags_is_stopped_beyond_its_limit(
    state: StreamState, action: Literal["stop", "warn"]
) -> None:
    """It publishes all the while. Without `stop`, the lag says more."""
    beyond = replace(seen_with((GOOD,)), rejected=RejectedSince(since=NOON, rows=30, read=30))
    lags = StreamVerdict(state=state, is_healthy=False, explanation="It lags.")

    found = with_limit(lags, beyond, RejectionLimit(rows=10, action=action))

    assert found.state is (StreamState.MANY_REJECTED if action == "stop" else state)


@pytest.mark.parametrize(("asked_after", "occasion"), [(None, "1:1"), (-MINUTE, "1:1"), (MINUTE, "1:2")])
def test_the_next_refused_batch_is_news_after_a_request_only(asked_after: timedelta | None, occasion: str) -> None:
    trouble = StreamTrouble(
        stream="weather",
        reason=StreamState.ALL_REJECTED,
        explanation="It rejected all.",
        since=NOON - 2 * MINUTE,
        observed_at=NOON,
        occasion="1:1",
    )
    asked_at = None if asked_after is None else trouble.since + asked_after
    desired = DesiredStateObservation(stream="weather", desired_state=DesiredState.RUNNING, requested_at=asked_at)
    seen = replace(seen_with((BAD,)), trouble=trouble, desired=desired)

    assert with_rejections(judge_increment(seen), seen).occasion == occasion


def test_a_pause_of_which_nobody_knows_the_time_says_nothing() -> None:
    pause = DagPause(stream="weather", airflow="ours", is_paused=True, observed_at=NOON, origin=PauseOrigin.UNCLEAR)
    running = StreamVerdict(state=StreamState.RUNNING, is_healthy=True, explanation="It runs.")
    asked = replace(seen_with((GOOD,)), desired=SETTLED)

    assert with_unclear_pause(running, replace(asked, dag_pause=pause)) == running
    since_noon = replace(asked, dag_pause=replace(pause, since=NOON))
    for asked_at, state in {
        NOON - MINUTE: StreamState.PAUSE_UNCLEAR,
        NOON: StreamState.PAUSE_UNCLEAR,
        NOON + MINUTE: StreamState.RUNNING,
    }.items():
        found = with_unclear_pause(running, replace(since_noon, desired=replace(SETTLED, requested_at=asked_at)))
        assert found.state is state
