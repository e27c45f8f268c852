"""A refresh ends at any step: readers see the old content or the new one, and the next command completes it."""

from __future__ import annotations

import pytest
from tests.fixtures.drill import first_of, sampled
from tests.fixtures.refreshes import (
    ROWS,
    at_step,
    refresh,
    right,
    rows_by_duckdb,
    run_wrong_copy,
    shadow_tables,
    take_it_back,
    wrong,
)
from tests.fixtures.stack import Stack
from tests.fixtures.work import applications_of, ask_for, await_killed, start, waited_for
from tests.fixtures.workshop import Workshop

from sluice.errors import UsageError
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.generations import find_generation
from sluice.ledger.refreshes import RefreshState, newest_refresh
from sluice.ledger.run_values import DesiredState
from sluice.ledger.runs import newest_run
from sluice.publication.command_runs import end_if_vacated
from sluice.publication.crash_points import CrashPoint
from sluice.supervision.stream_reset import plan_reset, reset_stream
from sluice.work.requests import RefreshTable
from sluice_spark.run.query_run import QueryRun
from sluice_spark.run.stop_request import StopReason

NEW = {"id": 100, "word": "new"}
BEFORE_THE_COMMIT = (
    CrashPoint.BEGUN,
    CrashPoint.PLANNED,
    CrashPoint.BUILT,
    CrashPoint.STOPPED,
    CrashPoint.CAUGHT_UP,
    CrashPoint.SWAPPING,
)
AFTER_THE_COMMIT = (CrashPoint.COMMITTED, CrashPoint.RECORDED, CrashPoint.CLEARED)
IN_THE_FULL_RUN = (CrashPoint.COMMITTED,)
"""A sample: each costs a process with a JVM. `make drill` kills at every other step. Every test run has an error at
the last step before the commit, and what a run did not record or clear after it."""


def fail() -> None:
    raise OSError("it fails here")


@pytest.mark.parametrize(
    "killed_at",
    sampled(
        (*((step, 1) for step in (*BEFORE_THE_COMMIT, *AFTER_THE_COMMIT)), (CrashPoint.PLANNED, 2)),
        (),
        full=[(step, 1) for step in IN_THE_FULL_RUN],
    ),
    ids=str,
)
def test_a_killed_refresh_is_completed_by_the_next(
    killed_at: tuple[CrashPoint, int], workshop: Workshop, services: Stack
) -> None:
    step, time = killed_at
    name = run_wrong_copy(workshop)
    request = RefreshTable(stream=name, keep_days="7")
    item = ask_for(workshop, request)
    dies_at = (step, time)
    with waited_for(workshop, [item]), applications_of(workshop, services.environment(), dies_at=dies_at) as launcher:
        await_killed(workshop, start(workshop, item, request, launcher))
    assert rows_by_duckdb(workshop) == (wrong(ROWS) if step in BEFORE_THE_COMMIT else right(ROWS))
    number = _number(workshop, name)

    completed = refresh(workshop, name)

    assert (completed.number, completed.state) == (number, RefreshState.SWAPPED)
    assert rows_by_duckdb(workshop) == right(ROWS)
    left = newest_run(workshop.ledger, name)
    if left is not None and left.is_live:  # as a supervisor does
        assert end_if_vacated(workshop.ledger, left, launched_by="a test")
    _goes_on(workshop, name)


@pytest.mark.parametrize("steps", first_of(BEFORE_THE_COMMIT[-1:], BEFORE_THE_COMMIT), ids=["last", "each"])
def test_an_error_before_the_commit_leaves_the_table_as_it_was(
    steps: tuple[CrashPoint, ...], workshop: Workshop
) -> None:
    name = run_wrong_copy(workshop)

    for step in steps:
        with pytest.raises(OSError, match="fails here"):
            refresh(workshop, name, reached=at_step(step, fail))
        assert workshop.rows("target") == wrong(ROWS)
    number = _number(workshop, name)
    set_desired_state(workshop.ledger, name, DesiredState.STOPPED)
    plan = plan_reset(workshop.ledger, workshop.stream(name), workshop.settings)
    with pytest.raises(UsageError, match=f"Refresh {number} of {name} is swapping: its commit may have landed"):
        reset_stream(workshop.ledger, workshop.stream(name), workshop.settings, planned=plan.digest, asked_by="a test")

    set_desired_state(workshop.ledger, name, DesiredState.RUNNING)
    assert refresh(workshop, name).number == number
    assert workshop.rows("target") == right(ROWS)
    assert shadow_tables(workshop, name) == []
    _goes_on(workshop, name)


@pytest.mark.full
def test_a_batch_of_the_shadow_that_was_planned_and_not_run_is_run_by_the_next_try(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = run_wrong_copy(workshop)
    for left_out in range(2):  # the first batch, and one that follows
        with monkeypatch.context() as patched:
            runs: list[StopReason] = []

            def die(query: QueryRun, at: int = left_out, runs: list[StopReason] = runs) -> StopReason:
                if len(runs) == at:
                    raise OSError("it dies here")
                runs.append(query.keep_running({"once": True}))
                return runs[-1]

            patched.setattr(QueryRun, "run_planned", die)
            with pytest.raises(OSError, match="it dies here"):
                refresh(workshop, name)
        assert workshop.rows("target") == wrong(ROWS)

    refresh(workshop, name)

    assert rows_by_duckdb(workshop) == right(ROWS)
    _goes_on(workshop, name)


@pytest.mark.full
def test_a_shadow_that_was_planned_and_has_no_mark_is_made_again(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table is created again, because nothing of a shadow is in it yet."""
    name = run_wrong_copy(workshop)
    with monkeypatch.context() as patched:

        def die(*_: object, **__: object) -> None:
            raise OSError("it dies here")

        patched.setattr("sluice_spark.delivery.staged_delivery.take_stream_over", die)
        with pytest.raises(OSError, match="it dies here"):
            refresh(workshop, name)

    refresh(workshop, name)

    assert rows_by_duckdb(workshop) == right(ROWS)
    _goes_on(workshop, name)


# Every run: what it missed of a backfill (`test_backfill_crashes.py`).
@pytest.mark.parametrize("step", sampled(AFTER_THE_COMMIT, (), full=[CrashPoint.COMMITTED]), ids=str)
def test_what_the_ledger_missed_is_recorded_by_the_next_run_of_the_stream(step: CrashPoint, workshop: Workshop) -> None:
    name = run_wrong_copy(workshop)
    with pytest.raises(OSError, match="fails here"):
        refresh(workshop, name, reached=at_step(step, fail))
    assert workshop.rows("target") == right(ROWS)

    _goes_on(workshop, name)

    number = _number(workshop, name)
    completed = refresh(workshop, name)
    assert (completed.number, completed.state, completed.ended_at is None) == (number, RefreshState.SWAPPED, False)
    assert (completed.rows, shadow_tables(workshop, name)) == (len(ROWS), [])


@pytest.mark.full
def test_an_interrupted_way_back_is_completed(workshop: Workshop) -> None:
    name = run_wrong_copy(workshop)
    refresh(workshop, name)

    for step in (CrashPoint.COPIED, CrashPoint.STOPPED, CrashPoint.TAKING_BACK):
        with pytest.raises(OSError, match="fails here"):
            take_it_back(workshop, name, reached=at_step(step, fail))
        assert workshop.rows("target") == right(ROWS)
    with pytest.raises(OSError, match="fails here"):
        take_it_back(workshop, name, reached=at_step(CrashPoint.COMMITTED, fail))
    assert workshop.rows("target") == wrong(ROWS)

    assert take_it_back(workshop, name).state is RefreshState.TAKEN_BACK
    assert _generation(workshop, name) == 3
    workshop.append("source", [NEW])
    workshop.run_supervised(name)
    assert rows_by_duckdb(workshop) == [*wrong(ROWS), *right([NEW])]


def _goes_on(workshop: Workshop, name: str) -> None:
    """The live stream reads on in the generation of the shadow."""
    workshop.append("source", [NEW])
    workshop.run_supervised(name)
    assert rows_by_duckdb(workshop) == right([*ROWS, NEW])
    assert _generation(workshop, name) == 2


def _generation(workshop: Workshop, name: str) -> int | None:
    generation = find_generation(workshop.ledger, name)
    return None if generation is None else generation.generation


def _number(workshop: Workshop, name: str) -> int | None:
    newest = newest_refresh(workshop.ledger, name)
    return None if newest is None else newest.number
