"""One judgement of a stream: what is declared, what was observed, and what the reconciler found."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.fixtures.streams import continuous_stream
from tests.unit.supervision.supervision_cases import ALIVE, FAILED, NOW, SECOND, a_run, seen

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.errors import DeclarationError
from sluice.ledger.airflow_owner import DagObservation
from sluice.ledger.batches import BatchObservation, PublicationKey
from sluice.ledger.desired_states import SuspensionCause
from sluice.ledger.progress_samples import ProgressSample
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.ledger.stream_troubles import StreamTrouble
from sluice.messages import Location
from sluice.processes.process_identity import ProcessState
from sluice.supervision.limits import HEARD_WITHIN
from sluice.supervision.orphaned_runs import OrphanedRun, OrphanReason, find_orphaned_runs
from sluice.supervision.progress_decision import BECAUSE_LATE, BECAUSE_STALLED, ProgressState, judge_known
from sluice.supervision.restart_policy import (
    BECAUSE_CHANGED,
    CRASH_LOOP_LAUNCHES,
    CRASH_LOOP_WITHIN,
    history_of,
    runs_that_count,
    runs_to_read,
)
from sluice.supervision.stream_verdict import StreamState, judge_increment, judge_stream, verdict_of, with_its_dag
from sluice.supervision.supervision_values import StreamObservation, SupervisionAction, SupervisionReason, decision

STOPPED = DesiredState.STOPPED
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
WANTED = continuous_stream()
LIVE = a_run()
INCREMENTAL = replace(WANTED, declaration=WANTED.declaration.model_copy(update={"mode": "incremental"}))


def sample(minutes_ago: float, unread: int, *, batch: int = 5) -> ProgressSample:
    """A look at the sources."""
    observed_at = NOW - minutes_ago * MINUTE
    return ProgressSample(
        stream="flights", observed_at=observed_at, generation=1, batch=batch, read_rows=100, unread_rows=unread
    )


def trouble(reason: str) -> StreamTrouble:
    """What the reconciler found a moment ago."""
    return StreamTrouble(stream="flights", reason=reason, explanation="As found.", since=NOW - MINUTE, observed_at=NOW)


def orphan(run: RunObservation, reason: OrphanReason = OrphanReason.BROKEN) -> OrphanedRun:
    """A run that fits no declaration."""
    return OrphanedRun(run=run, reason=reason, explanation="It does not fit.", may_end=False)


def declared(*streams: LoadedStream, names: tuple[str, ...] = (), problems: int = 0) -> Declarations:
    """What a folder declares. names: of files besides."""
    broken = Location(file=Path("/pipelines/flights.stream.yaml"), line=3)
    return Declarations(
        folder=Path("/pipelines"),
        streams={stream.name: stream for stream in streams},
        tables={},
        problems=(DeclarationError("boom", location=broken),) * problems,
        stream_names=(*(stream.name for stream in streams), *names),
        table_names=(),
    )


# ----- the verdict


def test_a_stream_that_runs_and_has_read_everything_is_idle() -> None:
    verdict = judge_stream(WANTED, replace(seen(LIVE, process=ALIVE), samples=(sample(0, 0),)))
    assert (verdict.state, verdict.is_healthy, verdict.next_step) == (StreamState.IDLE, True, "")
    assert verdict.explanation == ("The driver of run run-1 was heard 1 s ago. It has read all input of its sources.")


def test_what_only_the_reconciler_sees_is_taken_from_the_ledger() -> None:
    running = replace(seen(LIVE, process=ALIVE), samples=(sample(0, 9),))
    assert judge_stream(WANTED, running).state is StreamState.RUNNING
    late = judge_stream(WANTED, replace(running, trouble=trouble("late")))
    assert (late.state, late.is_healthy, late.explanation) == (StreamState.LATE, False, "As found.")


@pytest.mark.parametrize(
    ("heard", "process", "found", "state"),
    [
        (2 * HEARD_WITHIN, ProcessState.UNKNOWN, "driver gone", StreamState.DRIVER_GONE),
        (2 * HEARD_WITHIN, ALIVE, "driver gone", StreamState.DRIVER_GONE),
        (2 * HEARD_WITHIN, ProcessState.UNKNOWN, "idle", StreamState.UNKNOWN),
        (MINUTE, ProcessState.GONE, "silent", StreamState.DRIVER_GONE),
    ],
)
def test_what_another_host_found_counts_where_this_one_cannot_see(
    heard: timedelta, process: ProcessState, found: str, state: StreamState
) -> None:
    observed = seen(a_run(heard=heard), process=process)
    assert judge_stream(WANTED, replace(observed, trouble=trouble(found))).state is state


def test_the_next_step_of_a_failure_is_part_of_the_verdict() -> None:
    given_up = judge_stream(continuous_stream(restart={"attempts": 0}), seen(FAILED))
    assert (given_up.state, given_up.is_healthy) == (StreamState.GIVEN_UP, False)
    assert given_up.failure is not None
    assert "sluice stream logs flights" in given_up.next_step


def test_runs_that_were_replaced_back_and_forth_count_for_a_live_one() -> None:
    replaced = [
        replace(
            a_run(state=RunState.FINISHED, ended=SECOND, digest=digest),
            run_id=digest,
            end_asked_at=NOW - MINUTE,
            end_asked_because=BECAUSE_CHANGED,
        )
        for digest in ("other", "d", "other")
    ]
    live = a_run(digest="other")
    differ = judge_stream(WANTED, replace(seen(live, process=ALIVE), runs=(live, *replaced)))
    assert (differ.state, differ.is_healthy) == (StreamState.FILES_DIFFER, False)
    followed = judge_stream(WANTED, replace(seen(live, process=ALIVE), runs=(live, *replaced[1:])))
    assert (followed.state, followed.is_healthy) == (StreamState.RESTARTING, True)


@pytest.mark.parametrize(
    ("run", "asked", "is_healthy"),
    [
        pytest.param(LIVE, STOPPED, False, id="lives, though it is to stop"),
        pytest.param(FAILED, DesiredState.RUNNING, False, id="ended, and is to run"),
        pytest.param(FAILED, STOPPED, True, id="ended as requested"),
    ],
)
def test_a_run_that_fits_no_declaration(run: RunObservation, asked: DesiredState, is_healthy: bool) -> None:
    verdict = judge_stream(None, seen(run, asked=asked), orphan(run))
    assert (verdict.state, verdict.is_healthy) == (StreamState.BROKEN, is_healthy)
    assert verdict.explanation == "It does not fit."


def test_a_stream_that_only_the_ledger_knows_is_undeclared_and_at_rest() -> None:
    verdict = judge_stream(None, seen(FAILED))
    assert (verdict.state, verdict.is_healthy) == (StreamState.UNDECLARED, True)
    assert verdict.explanation == "No file declares flights, and no run of it lives."


def test_an_increment_is_judged_by_its_newest_run_and_not_by_a_trouble() -> None:
    finished = a_run(state=RunState.FINISHED, ended=SECOND)
    verdict = judge_stream(INCREMENTAL, replace(seen(finished), trouble=trouble("late")))
    assert (verdict.state, verdict.is_healthy) == (StreamState.FINISHED, True)
    failed = judge_stream(INCREMENTAL, seen(FAILED))
    assert (failed.state, failed.is_healthy) == (StreamState.FAILED, False)
    assert failed.next_step != ""


@pytest.mark.parametrize(("heard", "is_healthy"), [(HEARD_WITHIN, True), (HEARD_WITHIN + SECOND, False)])
def test_a_live_increment_may_be_silent_for_as_long_as_every_driver(heard: timedelta, is_healthy: bool) -> None:
    assert judge_increment(seen(a_run(heard=heard), process=ALIVE)).is_healthy is is_healthy
    unheard = a_run(heard=None, age=heard)
    assert judge_increment(seen(unheard, process=ALIVE)).is_healthy is is_healthy


PAUSED = SuspensionCause.PAUSED
RED = DagObservation(airflow="ours", is_paused=True, has_failed=True)


@pytest.mark.parametrize(
    ("stopped", "dag", "is_doubtful"),
    [
        pytest.param(seen(suspension=PAUSED), RED, True, id="a person, or Airflow?"),
        pytest.param(seen(suspension=PAUSED), replace(RED, has_failed=False), False, id="a person"),
        pytest.param(seen(suspension=PAUSED), replace(RED, is_paused=False), False, id="it is unpaused"),
        pytest.param(seen(suspension=PAUSED), None, False, id="Airflow does not know it"),
        pytest.param(seen(suspension=SuspensionCause.MARKED), RED, False, id="its task was marked"),
        pytest.param(seen(suspension=PAUSED, asked=STOPPED), RED, False, id="a person stopped it, too"),
    ],
)
def test_a_stop_by_a_paused_dag_that_failed_is_doubtful(
    stopped: StreamObservation, dag: DagObservation | None, is_doubtful: bool
) -> None:
    verdict = verdict_of(decision(SupervisionAction.FINISH, SupervisionReason.STOPPED_AS_REQUESTED, "It is stopped."))
    looked_at = with_its_dag(verdict, stopped, dag)
    assert (looked_at.state, looked_at.is_healthy) == (StreamState.STOPPED, not is_doubtful)
    assert (looked_at == verdict) is not is_doubtful
    runs = verdict_of(decision(SupervisionAction.ADOPT, SupervisionReason.HEARTBEAT_FRESH, "It runs."))
    assert with_its_dag(runs, stopped, dag) == runs


@pytest.mark.parametrize(("asked", "is_healthy"), [(DesiredState.RUNNING, False), (STOPPED, True)])
def test_a_person_who_confirms_a_doubtful_stop_need_not_wait_for_the_reconciler(
    asked: DesiredState, *, is_healthy: bool
) -> None:
    """That is the way out that the trouble names; with the reconciler down, it would stay for ever."""
    stopped = replace(seen(suspension=PAUSED, asked=asked), trouble=trouble("stopped"))
    assert judge_stream(WANTED, stopped).is_healthy is is_healthy


# ----- runs that fit no declaration


@pytest.mark.parametrize(
    ("declarations", "run", "reason", "may_end"),
    [
        pytest.param(declared(WANTED), LIVE, None, None, id="it fits"),
        pytest.param(declared(names=("other",)), LIVE, OrphanReason.UNDECLARED, True, id="its file is gone"),
        pytest.param(declared(), LIVE, OrphanReason.UNDECLARED, False, id="all files are gone: none is to end"),
        pytest.param(declared(names=("other",)), FAILED, None, None, id="its file is gone, and it has ended"),
        pytest.param(declared(names=("flights",)), LIVE, OrphanReason.BROKEN, False, id="its file is broken"),
        pytest.param(declared(names=("flights",)), FAILED, OrphanReason.BROKEN, False, id="broken, and it has ended"),
        pytest.param(declared(INCREMENTAL), LIVE, OrphanReason.MODE_CHANGED, True, id="declared incremental now"),
        pytest.param(declared(INCREMENTAL), FAILED, None, None, id="declared incremental now, and it has ended"),
        pytest.param(
            declared(WANTED),
            replace(LIVE, mode="incremental"),
            None,
            None,
            id="an increment is replaced by supervision",
        ),
    ],
)
def test_which_runs_fit_no_declaration(
    declarations: Declarations, run: RunObservation, reason: OrphanReason | None, may_end: bool | None
) -> None:
    found = find_orphaned_runs(declarations, [run])
    assert [(one.reason, one.may_end, one.stream) for one in found] == (
        [] if reason is None else [(reason, may_end, "flights")]
    )


def test_a_broken_file_says_where_and_what_its_run_does() -> None:
    (lives,) = find_orphaned_runs(declared(names=("flights",), problems=1), [LIVE])
    assert "run run-1 continues with its previous declaration: " in lives.explanation
    assert "boom" in lives.explanation
    (ended,) = find_orphaned_runs(declared(names=("flights",)), [FAILED])
    assert ended.explanation.endswith("run run-1 has ended, and none is started: another declaration contradicts it")


# ----- what is read for it


@pytest.mark.parametrize(
    ("newest", "counts"),
    [
        pytest.param(a_run(digest=WANTED.digest), False, id="it lives as it is declared"),
        pytest.param(a_run(digest="other"), True, id="it lives, and its declaration has changed"),
        pytest.param(a_run(state=RunState.FAILED, ended=SECOND), True, id="it failed"),
        pytest.param(a_run(state=RunState.FINISHED, ended=SECOND, desired_state=STOPPED), False, id="it was stopped"),
    ],
)
def test_earlier_runs_count_where_a_decision_depends_on_them(newest: RunObservation, counts: bool) -> None:
    supervision = WANTED.declaration.supervision
    expected = runs_to_read(supervision.restart, supervision.breaker) if counts else 0
    if newest.is_live and not counts:
        assert runs_that_count(WANTED, newest) == 2 * CRASH_LOOP_LAUNCHES, "it may be one of a crash loop"
        newest = replace(newest, launched_at=newest.launched_at - 2 * CRASH_LOOP_WITHIN)
    assert runs_that_count(WANTED, newest) == expected


def test_without_earlier_runs_nothing_counts_where_none_are_read() -> None:
    """What `runs_that_count` leaves out changes no history."""
    earlier = a_run(state=RunState.FAILED, ended=MINUTE)
    for newest in (
        a_run(age=2 * CRASH_LOOP_WITHIN + SECOND),
        a_run(state=RunState.FINISHED, ended=SECOND, desired_state=STOPPED),
    ):
        few = history_of([newest], WANTED, reset_at=None, now=NOW)
        assert history_of([newest, *[earlier] * 9], WANTED, reset_at=None, now=NOW) == few
        assert (few.failures, few.ends) == (0, ())


@pytest.mark.parametrize(
    ("age", "ended", "counts"),
    [
        pytest.param(5 * HOUR, HOUR + SECOND, False, id="stable, long ago"),
        pytest.param(5 * HOUR, HOUR - MINUTE, True, id="stable, lately"),
        pytest.param(HOUR + MINUTE, HOUR + SECOND, True, id="not stable"),
    ],
)
def test_runs_before_one_that_was_stable_and_ended_long_ago_count_for_nothing(
    age: timedelta, ended: timedelta, counts: bool
) -> None:
    newest = a_run(digest=WANTED.digest, age=MINUTE)
    before = a_run(digest=WANTED.digest, state=RunState.FAILED, age=age, heard=ended, ended=ended)
    assert (runs_that_count(WANTED, newest, before) > 0) is counts
    ends = [before.launched_at - number * MINUTE for number in range(1, 10)]
    older = [replace(before, launched_at=end - SECOND, heartbeat_at=end, ended_at=end) for end in ends]
    few, many = (history_of([newest, before, *some], WANTED, reset_at=None, now=NOW + SECOND) for some in ((), older))
    assert counts or few == many


# ----- progress, by what is known


def a_batch(number: int, *, ago: timedelta) -> BatchObservation:
    """A batch of the live run."""
    return BatchObservation(
        key=PublicationKey(stream="flights", generation=1, batch=number),
        run_id="run-1",
        started_at=NOW - ago,
        duration_ms=1000,
        input_rows=10,
        published_rows={},
        recorded_at=NOW - ago,
    )


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(None, id="none"),
        pytest.param(FAILED, id="ended"),
        pytest.param(a_run(heard=None), id="not heard yet"),
        pytest.param(a_run(desired_state=STOPPED), id="asked to stop"),
    ],
)
def test_progress_is_judged_of_a_run_that_is_to_make_some(run: RunObservation | None) -> None:
    assert judge_known(WANTED, replace(seen(run), samples=(sample(0, 0),))) is None


def test_a_newer_sample_is_judged_as_of_its_time_and_before_the_known_ones() -> None:
    known = replace(seen(LIVE), samples=(sample(1, 0),))
    newer = sample(-30, 0)
    assert judge_known(WANTED, known) is not None
    judged = judge_known(WANTED, known, newer)
    assert judged is not None
    assert judged.state is ProgressState.IDLE, "observed half an hour later, and not for half an hour"
    waits = judge_known(WANTED, known, sample(0, 7))
    assert waits is not None
    assert waits.state is not ProgressState.IDLE


@pytest.mark.parametrize(
    ("ended_because", "restarts"), [(BECAUSE_STALLED, False), (BECAUSE_LATE, True), (BECAUSE_CHANGED, True)]
)
def test_a_second_restart_for_a_stall_needs_a_batch_in_between(ended_because: str, restarts: bool) -> None:
    wanted = continuous_stream(supervision={"on_stall": "restart"})
    previous = replace(a_run(state=RunState.FINISHED, ended=HOUR), run_id="run-0", end_asked_because=ended_because)
    known = replace(seen(LIVE), runs=(LIVE, previous), samples=tuple(sample(minutes, 9) for minutes in range(40)))
    judged = judge_known(wanted, known)
    assert judged is not None
    assert (judged.state, judged.restarts) == (ProgressState.STALLED, restarts)
    with_batch = judge_known(wanted, replace(known, batches=(a_batch(5, ago=39 * MINUTE),)))
    assert with_batch is not None
    assert with_batch.restarts


@pytest.mark.parametrize(("ended_because", "restarts"), [(BECAUSE_LATE, False), (BECAUSE_STALLED, True)])
def test_a_second_restart_for_a_lag_needs_a_time_within_the_limits(ended_because: str, restarts: bool) -> None:
    wanted = continuous_stream(supervision={"max_lag": {"rows": 5, "action": "restart"}})
    previous = replace(a_run(state=RunState.FINISHED, ended=HOUR), run_id="run-0", end_asked_because=ended_because)
    samples = tuple(sample(minutes, 9, batch=90 - minutes) for minutes in range(9))
    known = replace(seen(LIVE), runs=(LIVE, previous), samples=samples, batches=(a_batch(90, ago=SECOND),))
    judged = judge_known(wanted, known)
    assert judged is not None
    assert (judged.state, judged.restarts) == (ProgressState.LATE, restarts)
