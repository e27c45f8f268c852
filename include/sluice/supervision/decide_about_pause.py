"""Whether a paused DAG is a person's request to stop its stream. Pure.

| the DAG  | it was          | and                                            | effect  | why                          |
|----------|-----------------|------------------------------------------------|---------|------------------------------|
| unpaused | whatever        | the stream is suspended by a paused DAG        | RESUME  | a person unpaused it         |
| unpaused | whatever        | else                                           | NOTHING |                              |
| paused   | unpaused        | its newest DAG run failed, or it was given up  | NOTHING | Airflow paused it, no person |
| paused   | unpaused        | it has no DAG run, Airflow did not know it in  | DOUBT   | it was made again, paused as |
|          |                 | between, or many others turned paused with it  |         | every new DAG, or restored   |
| paused   | unpaused        | a person has started the stream since that look| IGNORE  | which came last is unknown   |
| paused   | unpaused        | else                                           | SUSPEND | a person paused it           |
| paused   | paused, unknown | whatever                                       | NOTHING | nothing has changed          |

"unknown" is a DAG that this Airflow was never asked about: a new Airflow creates every DAG paused, which no person has
requested. What another Airflow said does not count.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from enum import StrEnum

from sluice.ledger.airflow_owner import DagObservation, DagPause, PauseOrigin


class PauseEffect(StrEnum):
    """What follows for the stream."""

    SUSPEND = "suspend"
    RESUME = "resume"
    IGNORE = "ignore"
    DOUBT = "doubt"
    NOTHING = "nothing"


def decide_about_pause(
    dag: DagObservation,
    *,
    known: DagPause | None,
    is_suspended: bool,
    is_given_up: bool,
    is_among_many: bool = False,
    started_at: datetime | None = None,
) -> PauseEffect:
    """Decide what an observed DAG means for its stream; the table above is the whole rule.

    Parameters
    ----------
    known: what was recorded when Airflow was last asked.
    is_suspended: whether a paused DAG suspends the stream now.
    is_given_up: whether the stream was given up: its red task makes Airflow pause the DAG.
    is_among_many: whether the DAGs of many streams turned paused in the same pass.
    started_at: when a person last asked that the stream runs; unset: never, or it was stopped since.
    """
    if not dag.is_paused:
        return PauseEffect.RESUME if is_suspended else PauseEffect.NOTHING
    was_unpaused = known is not None and known.airflow == dag.airflow and not known.is_paused
    is_by_person = was_unpaused and not dag.has_failed and not is_given_up
    if not is_by_person or is_suspended:
        return PauseEffect.NOTHING
    if is_among_many or not dag.has_runs or (known is not None and not known.is_known):
        return PauseEffect.DOUBT
    # A stream that a person started must not go down silently; that it runs beside a paused DAG is an event.
    is_older = known is not None and started_at is not None and started_at > known.observed_at
    return PauseEffect.IGNORE if is_older else PauseEffect.SUSPEND


def with_failures_since(dag: DagObservation, known: DagPause | None) -> DagObservation:
    """The DAG, which has failed as well when more of its runs have than when it was last seen unpaused.

    Airflow names the newest run by logical date, and a run that was triggered without one has no place in that order:
    that it failed, for which Airflow pauses the DAG, only the count shows.
    """
    before = None if known is None or known.airflow != dag.airflow or not known.is_known else known.failed_runs
    has_more = dag.is_paused and dag.failed_runs is not None and before is not None and dag.failed_runs > before
    return replace(dag, has_failed=True) if has_more else dag


def pause_after(
    dag: DagObservation,
    effect: PauseEffect,
    *,
    stream: str,
    known: DagPause | None,
    is_suspended: bool,
    is_given_up: bool,
    now: datetime,
) -> DagPause:
    """What is known of a DAG after this look at it.

    Parameters
    ----------
    effect: what was decided about it. The others: as `decide_about_pause`.
    """
    is_as_before = not is_news(dag, known)
    origin = known.origin if is_as_before and known is not None else _ORIGINS.get(effect)
    if dag.is_paused and origin is None:
        is_by_airflow = dag.has_failed or is_given_up
        unsaid = PauseOrigin.FAILURE if is_by_airflow else PauseOrigin.FIRST_SEEN
        origin = PauseOrigin.PERSON if is_suspended else unsaid
    return DagPause(
        stream=stream,
        airflow=dag.airflow,
        is_paused=dag.is_paused,
        observed_at=now,
        has_failed=dag.has_failed,
        origin=origin if dag.is_paused else None,
        since=known.since if is_as_before and known is not None else now,
        failed_runs=_failed_runs(dag, known),
    )


def _failed_runs(dag: DagObservation, known: DagPause | None) -> int | None:
    """How many runs had failed when the DAG was last seen to have been unpaused."""
    if not dag.is_paused and dag.failed_runs is not None:
        return dag.failed_runs
    is_same = known is not None and known.is_known and known.airflow == dag.airflow
    return known.failed_runs if is_same and known is not None else None


_ORIGINS = {
    PauseEffect.SUSPEND: PauseOrigin.PERSON,
    PauseEffect.IGNORE: PauseOrigin.PERSON,
    PauseEffect.DOUBT: PauseOrigin.UNCLEAR,
}


def is_news(dag: DagObservation, known: DagPause | None) -> bool:
    """Whether an observation differs from the recorded one, or that is not known to be of the same DAG."""
    return known is None or not known.is_known or (known.airflow, known.is_paused) != (dag.airflow, dag.is_paused)
