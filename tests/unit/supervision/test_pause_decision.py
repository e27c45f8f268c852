"""Whether a paused DAG is a person's request: every row of the table."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sluice.ledger.airflow_owner import DagObservation, DagPause, PauseOrigin
from sluice.supervision.decide_about_pause import PauseEffect, decide_about_pause, is_news, pause_after

PAUSED = DagObservation(airflow="ours", is_paused=True)
UNPAUSED = DagObservation(airflow="ours", is_paused=False)
FAILED = DagObservation(airflow="ours", is_paused=True, has_failed=True)


def known(*, is_paused: bool, airflow: str = "ours") -> DagPause:
    """What was recorded."""
    return DagPause(
        stream="flights", airflow=airflow, is_paused=is_paused, observed_at=datetime(2026, 1, 1, tzinfo=UTC)
    )


WAS_UNPAUSED, WAS_PAUSED = known(is_paused=False), known(is_paused=True)
OTHERS = known(is_paused=False, airflow="another")


@pytest.mark.parametrize(
    ("dag", "before", "is_suspended", "is_given_up", "effect"),
    [
        (UNPAUSED, WAS_PAUSED, True, False, PauseEffect.RESUME),
        (UNPAUSED, None, True, False, PauseEffect.RESUME),
        (UNPAUSED, WAS_PAUSED, False, True, PauseEffect.NOTHING),
        (PAUSED, WAS_UNPAUSED, False, False, PauseEffect.SUSPEND),
        (PAUSED, WAS_UNPAUSED, True, False, PauseEffect.NOTHING),
        (PAUSED, WAS_UNPAUSED, False, True, PauseEffect.NOTHING),
        (FAILED, WAS_UNPAUSED, False, False, PauseEffect.NOTHING),
        (PAUSED, WAS_PAUSED, False, False, PauseEffect.NOTHING),
        (PAUSED, None, False, False, PauseEffect.NOTHING),
        (PAUSED, OTHERS, False, False, PauseEffect.NOTHING),
    ],
)
def test_a_pause_counts_when_a_person_made_it(
    dag: DagObservation, before: DagPause | None, is_suspended: bool, is_given_up: bool, effect: PauseEffect
) -> None:
    assert decide_about_pause(dag, known=before, is_suspended=is_suspended, is_given_up=is_given_up) is effect


def test_a_start_that_may_be_newer_than_the_pause_is_kept() -> None:
    """Found by the model: a person pauses the DAG and starts the stream before anybody has looked at the DAG."""
    looked_at = WAS_UNPAUSED.observed_at
    for started_at, effect in (
        (looked_at + timedelta(seconds=1), PauseEffect.IGNORE),
        (looked_at, PauseEffect.SUSPEND),
        (None, PauseEffect.SUSPEND),
    ):
        decided = decide_about_pause(
            PAUSED, known=WAS_UNPAUSED, is_suspended=False, is_given_up=False, started_at=started_at
        )
        assert decided is effect


@pytest.mark.parametrize(
    ("dag", "before", "failed_runs"),
    [
        (replace(UNPAUSED, failed_runs=3), replace(WAS_UNPAUSED, failed_runs=2), 3),
        (UNPAUSED, replace(WAS_UNPAUSED, failed_runs=2), 2),
        (replace(PAUSED, failed_runs=3), replace(WAS_UNPAUSED, failed_runs=2), 2),
        (replace(PAUSED, failed_runs=3), replace(WAS_UNPAUSED, failed_runs=2, is_known=False), None),
        (replace(PAUSED, failed_runs=3), replace(OTHERS, failed_runs=2), None),
        (replace(PAUSED, failed_runs=3), None, None),
    ],
    ids=["unpaused", "not counted", "paused since", "made again", "of another Airflow", "first seen"],
)
def test_failed_runs_are_those_of_when_the_dag_was_last_unpaused(
    dag: DagObservation, before: DagPause | None, failed_runs: int | None
) -> None:
    after = pause_after(
        dag,
        PauseEffect.NOTHING,
        stream="flights",
        known=before,
        is_suspended=False,
        is_given_up=False,
        now=WAS_PAUSED.observed_at,
    )
    assert after.failed_runs == failed_runs


@pytest.mark.parametrize(
    ("dag", "is_suspended", "is_given_up", "origin"),
    [
        (UNPAUSED, True, True, None),
        (PAUSED, True, True, PauseOrigin.PERSON),
        (PAUSED, False, True, PauseOrigin.FAILURE),
        (FAILED, False, False, PauseOrigin.FAILURE),
        (PAUSED, False, False, PauseOrigin.FIRST_SEEN),
    ],
)
def test_a_pause_that_was_not_seen_to_begin_has_an_origin_all_the_same(
    dag: DagObservation, is_suspended: bool, is_given_up: bool, origin: PauseOrigin | None
) -> None:
    after = pause_after(
        dag,
        PauseEffect.NOTHING,
        stream="flights",
        known=None,
        is_suspended=is_suspended,
        is_given_up=is_given_up,
        now=WAS_PAUSED.observed_at,
    )
    assert after.origin is origin


@pytest.mark.parametrize(
    ("before", "is_new"),
    [
        (WAS_PAUSED, False),
        (WAS_UNPAUSED, True),
        (known(is_paused=True, airflow="another"), True),
        (replace(WAS_PAUSED, is_known=False), True),
        (None, True),
    ],
)
def test_a_look_is_news_unless_it_shows_the_same_dag_as_it_was(before: DagPause | None, is_new: bool) -> None:
    assert is_news(PAUSED, before) is is_new
