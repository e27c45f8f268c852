"""Supervision over simulated time: what people, Airflow, hosts and the ledger may do, in any order.

`make test` runs a slice of it, `make drill` thousands of sequences (`tests.faults.supervision_sequences`).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from functools import wraps
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.fixtures.increment_model import OVERDUE_FOR
from tests.fixtures.supervision_model import ANOTHER, MINUTE, OURS, SECOND, WANTED
from tests.fixtures.supervision_world import World

from sluice.failure_reasons import FailureReason
from sluice.ledger.run_values import DesiredState
from sluice.supervision.supervision_values import StreamState

SLICE = 15
SEQUENCES = int(os.environ.get("SLUICE_MODEL_SEQUENCES", SLICE))
STEPS = 80 if SEQUENCES > SLICE else 50

UNHEALTHY_FOR = 12 * MINUTE
"""The longest patience of an alert, a minute of the reconciler, and one of its own."""

STOPPED_BY_THEN = 9 * MINUTE
"""A lease of an unreachable driver, and everything that is waited for around it."""

UNDONE_FOR = 17 * MINUTE
"""The window of a run without a batch, and two passes of the reconciler."""

MOST_REPLACED = 4
"""Runs within an hour, for three files: two that take turns, and one for the third file that somebody edits then."""


THEN_SECONDS = st.sampled_from([2, 10, 90, 300, 1200])
"""How long everything goes on after what happened."""


def event(**strategies: st.SearchStrategy[Any]) -> Callable[[Callable[..., None]], Any]:
    """A rule: something happens, then time passes."""

    def decorate(happens: Callable[..., None]) -> Any:
        @wraps(happens)
        def happens_and_goes_on(self: Supervision, then_seconds: int, **values: Any) -> None:
            happens(self, **values)
            self.let_pass(then_seconds)

        return rule(**{"then_seconds": THEN_SECONDS, **strategies})(happens_and_goes_on)  # type: ignore[call-overload]

    return decorate


class Supervision(RuleBasedStateMachine):
    """One stream, and everything that can happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.unsound_for = 0 * SECOND
        self.undone_for = 0 * SECOND
        self.stopping_for = 0 * SECOND
        self.unasked_for = 0 * SECOND

    def let_pass(self, seconds: int) -> None:
        """Everything goes on for a while."""
        for _ in range(0, seconds, 10):
            step = min(seconds, 10)
            self.world.pass_time(step)
            self._measure(step * SECOND)

    # people

    @event()
    def a_person_starts_the_stream(self) -> None:
        """`sluice stream start`."""
        if self.world.ledger_is_up:
            self.world.ask(DesiredState.RUNNING)

    @event()
    def a_person_stops_the_stream(self) -> None:
        """`sluice stream stop`."""
        if self.world.ledger_is_up:
            self.world.ask(DesiredState.STOPPED)

    @event(is_paused=st.booleans())
    def a_person_pauses_or_unpauses_the_dag(self, is_paused: bool) -> None:
        """In Airflow."""
        if self.world.airflow.is_up:
            self.world.set_paused(is_paused=is_paused)

    # declarations

    @event(is_declared=st.booleans())
    def the_file_comes_and_goes(self, is_declared: bool) -> None:
        """Deleted, or restored."""
        self.world.causes += is_declared is not self.world.is_declared
        self.world.is_declared = is_declared

    @event(is_broken=st.booleans())
    def the_file_breaks(self, is_broken: bool) -> None:
        """Broken, or repaired."""
        self.world.is_broken = is_broken

    @event(digest=st.sampled_from(["d", "e"]))
    def the_declaration_changes(self, digest: str) -> None:
        """To something that the checkpoint can follow."""
        self.world.causes += digest != self.world.wanted.digest
        self.world.wanted = replace(WANTED, digest=digest)

    # faults

    @event(reason=st.sampled_from([FailureReason.UNEXPLAINED, FailureReason.SCHEMA_DIFFERS]))
    def the_driver_fails(self, reason: FailureReason) -> None:
        """It reports why."""
        self.world.fail(reason)

    @event()
    def the_driver_is_gone(self) -> None:
        """Without a trace."""
        for driver in self.world.working():
            driver.is_alive = False
            self.world.causes += 1

    @event(is_frozen=st.booleans())
    def the_driver_is_frozen(self, is_frozen: bool) -> None:
        """SIGSTOP, SIGCONT."""
        for driver in self.world.working():
            self.world.causes += is_frozen and not driver.is_frozen
            driver.is_frozen = is_frozen

    @event()
    def the_driver_is_wedged(self) -> None:
        """Its main thread hangs; its heartbeat goes on."""
        for driver in self.world.working():
            driver.is_wedged = True
            self.world.causes += 1

    @event(is_hidden=st.booleans())
    def the_host_cannot_be_observed(self, is_hidden: bool) -> None:
        """A cluster or a host that does not answer."""
        for driver in self.world.drivers.values():
            driver.is_hidden = is_hidden

    @event(is_up=st.booleans())
    def the_ledger_is_away(self, is_up: bool) -> None:
        """Or comes back."""
        self.world.causes += is_up is not self.world.ledger_is_up
        self.world.ledger_is_up = is_up

    @event(is_up=st.booleans())
    def airflow_is_down(self, is_up: bool) -> None:
        """Or comes back."""
        self.world.airflow.is_up = is_up

    @event(has_date=st.booleans())
    def a_red_task_pauses_the_dag(self, has_date: bool) -> None:
        """Settings were wrong; Airflow pauses the DAG. The run may have been triggered without a logical date."""
        if not self.world.airflow.is_paused:
            self.world.airflow.turn_red(has_date=has_date)

    @event(is_ours=st.booleans())
    def another_airflow_takes_over(self, is_ours: bool) -> None:
        """A new metadata database: every DAG is paused, and the ledger is not its own."""
        self.world.runs_airflow = OURS if is_ours else ANOTHER

    @event()
    def the_ledger_is_given_to_the_airflow_that_runs(self) -> None:
        """`sluice ledger airflow --give-to`."""
        self.world.give_ledger()

    @event(is_poisoned=st.booleans())
    def every_driver_fails(self, is_poisoned: bool) -> None:
        """Soon after its start; until it is repaired."""
        self.world.causes += is_poisoned is not self.world.is_poisoned
        self.world.is_poisoned = is_poisoned

    @event(is_noticed=st.booleans())
    def the_dag_is_deleted_and_made_again(self, is_noticed: bool) -> None:
        """Between two looks, or over one."""
        if self.world.airflow.is_up:
            self.world.make_dag_again(is_noticed=is_noticed)

    @event(differ=st.booleans())
    def the_hosts_hold_different_files(self, differ: bool) -> None:
        """A slow rollout; supervisors of both hosts take turns."""
        self.world.causes += differ is not (self.world.theirs is not None)
        self.world.theirs = replace(WANTED, digest="theirs") if differ else None

    @event(minutes=st.sampled_from([-60, -1, 1, 60]))
    def the_clock_jumps(self, minutes: int) -> None:
        """A standby takes over whose clock is behind, or ahead."""
        if self.world.ledger_is_up:
            self.world.set_clock(minutes * MINUTE)

    @event(answers=st.sampled_from(["all", "slow", "errors"]))
    def airflow_answers(self, answers: str) -> None:
        """Fully, about each DAG in every second pass alone, or with errors."""
        self.world.answers = answers

    @event(passes=st.integers(1, 3))
    def passes_are_cut_off(self, passes: int) -> None:
        """A worker is killed right after it has followed the pauses."""
        self.world.cut_passes = passes

    @event()
    def many_dags_turn_paused(self) -> None:
        """As in a metadata database that is restored from an hour when they were paused."""
        if self.world.airflow.is_up and not self.world.airflow.is_paused:
            self.world.airflow.is_paused = self.world.are_many_paused = True

    # increments

    @event(is_stuck=st.booleans())
    def increments_get_no_slot(self, is_stuck: bool) -> None:
        """Of their pool, or from a scheduler that hangs."""
        self.world.increment.is_stuck = is_stuck

    @event(is_failing=st.booleans())
    def increments_fail(self, is_failing: bool) -> None:
        """Each one, until it is repaired."""
        self.world.increment.is_failing = is_failing

    @event(is_paused=st.booleans())
    def a_person_pauses_or_unpauses_the_increment(self, is_paused: bool) -> None:
        """In Airflow."""
        if self.world.airflow.is_up:
            self.world.pause_increment(is_paused=is_paused)

    @event(state=st.sampled_from(list(DesiredState)))
    def a_person_starts_or_stops_the_increment(self, state: DesiredState) -> None:
        """By a command."""
        if self.world.ledger_is_up:
            self.world.increment.ask(state, self.world.now)

    @event(is_noticed=st.booleans())
    def the_increments_dag_is_deleted_and_made_again(self, is_noticed: bool) -> None:
        """Between two looks, or over one."""
        if self.world.airflow.is_up:
            self.world.increment.make_dag_again(self.world.airflow.name, is_noticed=is_noticed)

    @event()
    def input_arrives(self) -> None:
        """Something to read."""
        self.world.unread += 1

    # what must hold

    def _measure(self, passed: timedelta) -> None:
        world = self.world
        is_looked_after = world.ledger_is_up and world.airflow.is_up and world.airflow.name == world.owner
        self._measure_increment(passed, is_looked_after=is_looked_after)
        # Passes that are cut off each time see nothing; the reconciler is watched by another DAG.
        is_looked_after = is_looked_after and not world.cut_passes
        wants_run = world.is_to_run and world.is_declared and not world.is_broken
        is_started = bool(world.runs)
        # A wedged driver without input to read looks like an idle one, and nothing is undone.
        works = any(driver.may_publish() or driver.is_wedged for driver in world.working())
        is_sound = works or world.is_alerted or not is_started
        counts = is_looked_after and wants_run and not is_sound
        self.unsound_for = self.unsound_for + passed if counts else 0 * SECOND
        is_undone = is_looked_after and wants_run and is_started and world.unread > 0 and not world.is_alerted
        self.undone_for = self.undone_for + passed if is_undone else 0 * SECOND
        is_paused = world.is_paused_by_person and world.answers != "errors"
        is_stopped = is_paused or world.desired.effective_state is DesiredState.STOPPED
        must_stop = is_looked_after and ((is_stopped and not world.is_broken) or not world.is_declared)
        if is_paused and (world.is_pause_ignored or world.is_alerted):
            must_stop = must_stop and world.desired.effective_state is DesiredState.STOPPED
        lives = any(not driver.is_frozen for driver in world.working())
        self.stopping_for = self.stopping_for + passed if must_stop and lives else 0 * SECOND

    def _measure_increment(self, passed: timedelta, *, is_looked_after: bool) -> None:
        one, world = self.world.increment, self.world
        is_seen = is_looked_after and world.answers != "errors" and not world.cut_passes
        counts = is_seen and one.is_to_run(world.owner) and not one.is_alerted
        one.waited = one.waited + passed if counts else 0 * SECOND

    @invariant()
    def no_increment_is_overdue_in_silence(self) -> None:
        """One that people want and that has not ended for so long is red."""
        assert self.world.increment.waited <= OVERDUE_FOR, f"{self.world.increment.judge(self.world.now)}"

    @invariant()
    def one_run_has_the_lease(self) -> None:
        """Never two leases, and a driver without it does not go on publishing."""
        assert len(self.world.live()) <= 1
        newest = self.world.newest
        assert newest is None or self.world.lease is None or self.world.lease.token == newest.token
        if self.world.ledger_is_up:  # each driver has heard from the ledger since
            assert sum(driver.may_publish() for driver in self.world.working()) <= 1

    @invariant()
    def it_runs_or_is_red(self) -> None:
        """A stream that is asked to run is running, restarting, or red with a reason."""
        world = self.world
        assert self.unsound_for <= UNHEALTHY_FOR, f"{world.health}, {world.decide().explanation}"

    @invariant()
    def it_stops_when_it_is_asked_to(self) -> None:
        """Within its bound, also when its driver is wedged, out of sight or undeclared."""
        assert self.stopping_for <= STOPPED_BY_THEN, f"{self.world.decide().explanation}"

    @invariant()
    def nothing_is_restarted_without_a_cause(self) -> None:
        """Each cause is followed by a bounded number of starts."""
        attempts = WANTED.declaration.supervision.restart.attempts
        assert self.world.launches <= self.world.causes + 1
        assert self.world.launches_while_poisoned <= (self.world.causes + 1) * (attempts + 1)

    @invariant()
    def hosts_with_different_files_stop_to_replace(self) -> None:
        """However they take turns in looking and in starting."""
        assert len(self.world.replaced_lately()) <= MOST_REPLACED

    @invariant()
    def nothing_undone_is_healthy(self) -> None:
        """Input that waits for longer than the window is seen."""
        assert self.undone_for <= UNDONE_FOR, f"{self.world.health}"


Supervision.TestCase.settings = settings(
    max_examples=SEQUENCES,
    stateful_step_count=STEPS,
    derandomize=SEQUENCES <= SLICE,  # the same slice each time; the drill looks further
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.generate) if SEQUENCES > SLICE else tuple(Phase),  # to shrink takes minutes
    print_blob=True,
)
TestSupervision = Supervision.TestCase


def test_a_pause_before_a_pass_has_seen_the_dag_unpaused_stops_the_stream() -> None:
    """It ran on beside a paused DAG, and nothing showed that."""
    state = Supervision()
    state.world.airflow.is_paused = True
    state.let_pass(90)
    state.a_person_pauses_or_unpauses_the_dag(is_paused=False, then_seconds=10)
    state.a_person_pauses_or_unpauses_the_dag(is_paused=True, then_seconds=1200)
    assert not list(state.world.working())
    state.it_stops_when_it_is_asked_to()


def test_hosts_with_different_files_stop_to_replace_and_a_person_is_alerted() -> None:
    """One host replaced and the other one started each time: without an end, and without a word."""
    state = Supervision()
    state.let_pass(60)
    state.the_hosts_hold_different_files(differ=True, then_seconds=1200)
    state.hosts_with_different_files_stop_to_replace()
    assert state.world.trouble is not None
    assert (state.world.trouble.reason, state.world.is_alerted) == (StreamState.FILES_DIFFER, True)
    launches = state.world.launches
    state.let_pass(1200)
    assert state.world.launches == launches


def test_a_pause_in_a_former_airflow_stops_nothing_beside_an_unpaused_dag_of_the_owner() -> None:
    """A counterexample of the drill, shortened: the model went on to call for the stop."""
    state = Supervision()
    state.another_airflow_takes_over(is_ours=False, then_seconds=10)
    state.a_person_pauses_or_unpauses_the_dag(is_paused=False, then_seconds=300)
    state.the_ledger_is_given_to_the_airflow_that_runs(then_seconds=90)
    state.a_person_pauses_or_unpauses_the_dag(is_paused=True, then_seconds=300)
    assert not list(state.world.working())
    state.another_airflow_takes_over(is_ours=True, then_seconds=1200)
    state.the_ledger_is_given_to_the_airflow_that_runs(then_seconds=1200)
    assert list(state.world.working())
    state.it_stops_when_it_is_asked_to()


def test_an_unpausing_that_the_ledger_missed_is_red_when_airflow_has_paused_the_dag_again() -> None:
    """A counterexample of the drill, shortened: the stream stayed stopped, and healthy, although a person had unpaused
    its DAG while the ledger was away."""
    state = Supervision()
    state.let_pass(300)
    state.a_person_pauses_or_unpauses_the_dag(is_paused=True, then_seconds=300)
    state.the_ledger_is_away(is_up=False, then_seconds=10)
    state.a_person_pauses_or_unpauses_the_dag(is_paused=False, then_seconds=2)
    state.a_red_task_pauses_the_dag(has_date=True, then_seconds=10)
    state.the_ledger_is_away(is_up=True, then_seconds=1200)
    state.let_pass(1200)
    state.it_runs_or_is_red()
    assert state.world.is_alerted
