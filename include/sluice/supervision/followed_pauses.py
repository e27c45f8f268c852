"""Follows what people do to the DAGs of streams: pausing one stops its stream, unpausing it lets that run again.

Airflow queues nothing for a paused DAG and a trigger cannot ask whether its DAG is paused, so the reconciler asks in
each pass. Which pause is a person's request is decided in `decide_about_pause`.

    ask about one DAG after the other ──► decide about all of them ──► act, unless a person was faster ──► record

Asking has a share of the pass. A DAG for which it was over counts as it was last seen; each pass begins with another
one, so that a slow Airflow, or one DAG that it never answers about, leaves out none for long.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.airflow_owner import (
    DagObservation,
    DagPause,
    find_dag_pause,
    find_dag_pauses,
    record_dag_pauses,
)
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.desired_states import (
    DesiredStateObservation,
    SuspensionCause,
    find_desired_state,
    find_desired_states,
    resume,
    suspend,
)
from sluice.ledger.events import Actor, Event, EventAction, record_event
from sluice.ledger.run_values import DesiredState
from sluice.processes.deadline import Deadline, run_each
from sluice.supervision.decide_about_pause import (
    PauseEffect,
    decide_about_pause,
    is_news,
    pause_after,
    with_failures_since,
)
from sluice.supervision.supervision_values import SupervisionAction
from sluice.supervision.supervisor import Supervisor, plan_supervision

_log = logging.getLogger(__name__)

ObserveDag = Callable[[str], DagObservation | None]

MANY_PAUSES = 4
"""Streams whose DAGs turn paused in one pass, at least, for which no person is believed to have paused them: a person
pauses one after the other, a metadata database that is restored changes all of them at once."""

_TRIES = 2
"""How often it is decided about a pause: once more when a person changed the stream after it was read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DagLooks:
    """What Airflow said about the DAGs of streams in a pass.

    dags: the DAG of each stream; one that was not asked about is as it was last seen; none: Airflow does not know it.
    changes: what follows for a stream, for a person. problems: what asking about one has raised.
    """

    dags: Mapping[str, DagObservation | None]
    changes: Mapping[str, str]
    problems: Mapping[str, Exception]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """One DAG as it was seen, and what was known before."""

    wanted: LoadedStream
    dag: DagObservation
    seen_at: datetime
    known: DagPause | None
    desired: DesiredStateObservation
    is_given_up: bool

    @property
    def is_suspended(self) -> bool:
        """Whether a paused DAG suspends the stream."""
        return self.desired.suspension is SuspensionCause.PAUSED

    @property
    def is_at_stake(self) -> bool:
        """Whether a paused DAG would stop the stream."""
        is_continuous = self.wanted.declaration.mode == "continuous"
        return is_continuous and self.desired.effective_state is DesiredState.RUNNING

    def decide(self, desired: DesiredStateObservation, *, is_among_many: bool) -> PauseEffect:
        """What follows, by what is requested of the stream."""
        return decide_about_pause(
            self.dag,
            known=self.known,
            is_suspended=desired.suspension is SuspensionCause.PAUSED,
            is_given_up=self.is_given_up,
            is_among_many=is_among_many,
            started_at=desired.requested_at if desired.desired_state is DesiredState.RUNNING else None,
        )


def follow_pauses(
    supervisor: Supervisor, streams: Sequence[LoadedStream], observe_dag: ObserveDag, *, seconds: float
) -> DagLooks:
    """Suspend or resume the streams whose DAGs a person has paused or unpaused, and record what was seen.

    Only continuous streams are suspended: of an increment, Airflow itself starts no other one.

    Parameters
    ----------
    observe_dag: asks Airflow about one DAG; it is called from one thread at a time.
    seconds: after which no further DAG is asked about and no answer is waited for.
    """
    ledger, names = supervisor.ledger, [stream.name for stream in streams]
    problems: dict[str, Exception] = {}
    desired = find_desired_states(ledger, names, unreadable=problems)
    read_at, read_at_seconds = database_time(ledger), time.monotonic()
    answers, asked_at = _ask(names, observe_dag, seconds=seconds)
    known = find_dag_pauses(ledger, names)  # after the answers: the task of a stream may have seen its DAG meanwhile
    problems |= {name: answer for name, answer in answers.items() if isinstance(answer, Exception)}
    looks, gone = [], []
    for stream in streams:
        name, answer = stream.name, answers.get(stream.name)
        if name not in answers or name in problems or isinstance(answer, Exception):
            continue
        if answer is None:
            gone.append(name)
            continue
        seen_at = read_at + timedelta(seconds=asked_at[name] - read_at_seconds)
        if name in known and known[name].is_known and known[name].observed_at > seen_at:
            continue  # the answer is older than what is known
        try:
            dag = with_failures_since(answer, known.get(name))
            looks.append(_look(supervisor, stream, dag, seen_at, known=known.get(name), desired=desired[name]))
        except Exception as error:  # noqa: BLE001  # whatever one stream raises keeps no other one waiting
            problems[name] = error
    effects, changes = _follow(supervisor, looks, problems)
    # Recorded last: a change whose effect was lost in between is noticed again.
    seen = [_recorded(look, effects[look.wanted.name]) for look in looks if look.wanted.name in effects]
    record_dag_pauses(ledger, [*seen, *(_forgotten(known[name]) for name in gone if name in known)])
    as_before = {name: _as_before(known.get(name)) for name in names}
    dags = {**as_before, **dict.fromkeys(gone), **{look.wanted.name: look.dag for look in looks}}
    return DagLooks(dags=dags, changes=changes, problems=problems)


def _ask(
    names: Sequence[str], observe_dag: ObserveDag, *, seconds: float
) -> tuple[dict[str, DagObservation | Exception | None], dict[str, float]]:
    """Ask in this order. Returns the answers of those that were asked about, and when each one was, by this clock."""
    asked_at: dict[str, float] = {}

    def ask(name: str) -> DagObservation | None:
        asked_at[name] = time.monotonic()
        return observe_dag(name)

    steps = {name: partial(ask, name) for name in names}
    done = run_each(steps, at_once=1, deadline=Deadline.after(seconds))
    return {name: answer for name, answer in done.items() if name in asked_at}, asked_at


def _look(
    supervisor: Supervisor,
    stream: LoadedStream,
    dag: DagObservation,
    seen_at: datetime,
    *,
    known: DagPause | None,
    desired: DesiredStateObservation,
) -> _Look:
    is_given_up = dag.is_paused and is_news(dag, known) and _is_given_up(supervisor, stream)
    return _Look(wanted=stream, dag=dag, seen_at=seen_at, known=known, desired=desired, is_given_up=is_given_up)


def _is_given_up(supervisor: Supervisor, wanted: LoadedStream) -> bool:
    if wanted.declaration.mode != "continuous":
        return False
    planned = plan_supervision(wanted, ledger=supervisor.ledger, launcher=supervisor.launcher)
    return planned.decision.action is SupervisionAction.GIVE_UP


def _follow(
    supervisor: Supervisor, looks: Sequence[_Look], problems: dict[str, Exception]
) -> tuple[dict[str, PauseEffect], dict[str, str]]:
    """Carry out what follows for each stream. Returns the effects and their sentences; what one raises is a problem."""
    would_stop = [look for look in looks if look.is_at_stake]
    turned = [look for look in would_stop if look.decide(look.desired, is_among_many=False) is PauseEffect.SUSPEND]
    is_among_many = len(turned) >= MANY_PAUSES
    effects: dict[str, PauseEffect] = {}
    changes: dict[str, str] = {}
    for look in looks:
        name = look.wanted.name
        try:
            effects[name] = _act(supervisor, look, is_among_many=is_among_many)
        except Exception as error:  # noqa: BLE001  # whatever one stream raises keeps no other one waiting
            problems[name] = error
            continue
        if text := _EFFECTS[effects[name]]:
            _log.info("stream=%s %s", name, text)
            changes[name] = text
    return effects, changes


def _act(supervisor: Supervisor, look: _Look, *, is_among_many: bool) -> PauseEffect:
    """Carry out what follows for one stream; when a person changes it meanwhile, by what they asked for."""
    desired, effect = look.desired, PauseEffect.NOTHING
    for _ in range(_TRIES):
        effect = look.decide(desired, is_among_many=is_among_many)
        if look.wanted.declaration.mode != "continuous" or _has_acted(supervisor, look, effect, desired):
            return effect
        desired = find_desired_state(supervisor.ledger, look.wanted.name)
    return effect


def _has_acted(supervisor: Supervisor, look: _Look, effect: PauseEffect, decided_on: DesiredStateObservation) -> bool:
    """Carry out an effect. Returns whether the stream is as it was when that was decided."""
    ledger, stream, text, paused = supervisor.ledger, look.wanted.name, _EFFECTS[effect], SuspensionCause.PAUSED
    if effect is PauseEffect.SUSPEND:
        event = _event(supervisor, stream, EventAction.SUSPEND, "dag_paused", text)
        return suspend(ledger, stream, paused, decided_on=decided_on, event=event).suspension is paused
    if effect is PauseEffect.RESUME:
        event = _event(supervisor, stream, EventAction.RESUME, "dag_unpaused", text)
        return resume(ledger, stream, cause=paused, decided_on=decided_on, event=event)
    if effect is PauseEffect.IGNORE:
        record_event(ledger, _event(supervisor, stream, EventAction.IGNORE_PAUSE, "started_since", text))
    if effect is PauseEffect.DOUBT:
        record_event(ledger, _event(supervisor, stream, EventAction.IGNORE_PAUSE, "unclear", text))
    return True


_EFFECTS = {
    PauseEffect.SUSPEND: "its DAG was paused: the stream is to stop",
    PauseEffect.RESUME: "its DAG was unpaused: the stream is to run again",
    PauseEffect.IGNORE: (
        "its DAG is paused, and a person started the stream less than a minute before or after: it runs on. To stop "
        "it, run `sluice stream stop`, or unpause the DAG, wait a minute, and pause it"
    ),
    PauseEffect.DOUBT: (
        "its DAG is paused, and no person is known to have done that: it was made again, or many others turned paused "
        "at the same time. It runs on"
    ),
    PauseEffect.NOTHING: "",
}


def _event(supervisor: Supervisor, stream: str, action: EventAction, reason: str, text: str) -> Event:
    """What was noticed, as an event; Airflow does not say who paused the DAG."""
    actor = Actor.component(supervisor.launched_by)
    return Event(name=stream, actor=actor, action=action, reason=reason, explanation=f"{text[0].upper()}{text[1:]}.")


def _recorded(look: _Look, effect: PauseEffect) -> DagPause:
    return pause_after(
        look.dag,
        effect,
        stream=look.wanted.name,
        known=look.known,
        is_suspended=look.is_suspended,
        is_given_up=look.is_given_up,
        now=look.seen_at,
    )


def _forgotten(known: DagPause) -> DagPause:
    """What is kept of a DAG that Airflow does not know now: one that it knows later under this name is another one."""
    return DagPause(
        stream=known.stream,
        airflow=known.airflow,
        is_paused=known.is_paused,
        observed_at=known.observed_at,
        origin=known.origin,
        since=known.since,
        is_known=False,
    )


def _as_before(known: DagPause | None) -> DagObservation | None:
    """A DAG that was not asked about, as it was last seen."""
    if known is None or not known.is_known:
        return None
    return DagObservation(airflow=known.airflow, is_paused=known.is_paused, has_failed=known.has_failed)


def newest_look(ledger: Ledger, stream: str, dag: DagObservation | None) -> DagObservation | None:
    """The DAG of a stream as a pass saw and recorded it, unless its own task has seen it unpaused since then: a pass
    may take most of a minute, and a DAG that is not paused has a task that restarts its driver.

    Parameters
    ----------
    dag: as it was seen; unset when Airflow does not know it.
    """
    if dag is None or not dag.is_paused:
        return dag
    known = _as_before(find_dag_pauses(ledger, [stream]).get(stream))
    is_unpaused = known is not None and known.airflow == dag.airflow and not known.is_paused
    return known if is_unpaused else dag


def follow_unpausing(supervisor: Supervisor, stream: str, observe_dag: ObserveDag) -> bool:
    """Resume a stream whose own task sees that its DAG is not paused, before the reconciler does, and record that it
    was seen: a person may pause it before the next pass, which would take it for paused all the time.

    Whether a paused DAG is a person's request is not decided by one stream alone.

    Returns
    -------
    Whether the stream was suspended.
    """
    ledger = supervisor.ledger
    known, desired, seen_at = find_dag_pause(ledger, stream), find_desired_state(ledger, stream), database_time(ledger)
    dag = observe_dag(stream)
    if dag is None or dag.is_paused:
        return False
    is_suspended, effect = desired.suspension is SuspensionCause.PAUSED, PauseEffect.NOTHING
    if is_suspended:
        effect = PauseEffect.RESUME
        event = _event(supervisor, stream, EventAction.RESUME, "dag_unpaused", _EFFECTS[effect])
        is_suspended = resume(ledger, stream, cause=SuspensionCause.PAUSED, decided_on=desired, event=event)
    if known is None or is_news(dag, known) or _is_newer(desired, known):
        seen = pause_after(
            dag, effect, stream=stream, known=known, is_suspended=is_suspended, is_given_up=False, now=seen_at
        )
        record_dag_pauses(ledger, [seen])
    return is_suspended


def _is_newer(desired: DesiredStateObservation, known: DagPause) -> bool:
    """Whether a person has asked for something since a DAG was seen: which came last would be unknown of a pause."""
    return desired.requested_at is not None and desired.requested_at > known.observed_at
