"""When an unhealthy state of a stream calls for a person."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sluice.ledger.airflow_owner import DagObservation
from sluice.ledger.stream_troubles import StreamTrouble
from sluice.supervision.alerts import is_alert_due, is_of_increment
from sluice.supervision.stream_verdict import StreamState

NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
SECOND, MINUTE = timedelta(seconds=1), timedelta(minutes=1)
RUNS = DagObservation(airflow="ours", is_paused=False)
PAUSED = DagObservation(airflow="ours", is_paused=True)
RED = DagObservation(airflow="ours", is_paused=True, has_failed=True)
SOON = ("silent", "unknown", "driver gone", "to be started", "never started", "given up")
LATER = ("restarting", "stopping", "queued", "failed")


def trouble(state: str, *, lasted: timedelta, by_its_task: bool = False) -> StreamTrouble:
    """A trouble that has lasted so long."""
    return StreamTrouble(
        stream="clicks",
        reason=state,
        explanation="So.",
        since=NOON - lasted,
        observed_at=NOON,
        by_its_task=by_its_task,
    )


@pytest.mark.parametrize("state", StreamState)
def test_each_state_has_its_patience(state: StreamState) -> None:
    patience = MINUTE if state in SOON else 10 * MINUTE if state in LATER else timedelta(0)
    assert is_alert_due(trouble(state, lasted=patience), RUNS)
    assert not is_alert_due(trouble(state, lasted=patience - SECOND), RUNS)


@pytest.mark.parametrize(
    ("state", "dag", "is_due"),
    [
        pytest.param("given up", RED, False, id="its own DAG is red: that is the alert"),
        pytest.param("given up", PAUSED, True, id="paused by a person, nothing is red"),
        pytest.param("given up", DagObservation(airflow="ours", is_paused=False, has_failed=True), True, id="red once"),
        pytest.param("given up", None, True, id="no DAG"),
        pytest.param("stalled", RED, True, id="another trouble of a red DAG"),
        pytest.param("never started", PAUSED, False, id="nobody has unpaused it yet"),
        pytest.param("never started", None, False, id="Airflow does not know it yet"),
        pytest.param("never started", RUNS, True, id="unpaused, and not started"),
        pytest.param("to be started", PAUSED, True, id="it has run before"),
    ],
)
def test_a_dag_that_says_it_already_or_waits_for_a_person_is_no_alert(
    state: str, dag: DagObservation | None, is_due: bool
) -> None:
    assert is_alert_due(trouble(state, lasted=60 * MINUTE, by_its_task=True), dag) is is_due


def test_a_dag_that_was_red_before_says_nothing_about_now() -> None:
    assert is_alert_due(trouble("given up", lasted=60 * MINUTE), RED)


@pytest.mark.parametrize("dag", [PAUSED, RED])
def test_beside_a_paused_dag_no_task_is_waited_for_that_could_report_a_stream_given_up(dag: DagObservation) -> None:
    assert is_alert_due(trouble("given up", lasted=timedelta(0)), dag)
    assert not is_alert_due(trouble("given up", lasted=timedelta(0)), None)


def test_the_trouble_of_a_red_increment_is_its_task_s() -> None:
    assert is_of_increment(trouble("failed", lasted=MINUTE))
    assert not is_of_increment(trouble("given up", lasted=MINUTE))
