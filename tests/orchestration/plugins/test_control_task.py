"""What the tasks of `stream_control` carry out: what a person asked the API server for, and nothing else.

The ledger is real; the run is what Airflow would hand to its task.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import set_current_context
from sqlalchemy import text
from tests.fixtures.deployment import deployment_environment
from tests.fixtures.sample_declarations import write_continuous_stream

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.batches import PublicationKey
from sluice.ledger.connection import Ledger
from sluice.ledger.control_requests import record_answer, record_control_request
from sluice.ledger.control_values import Person
from sluice.ledger.desired_states import find_desired_state, set_desired_state
from sluice.ledger.generations import current_generation, find_generation
from sluice.ledger.held_batches import HeldBatch, find_held, hold_batch
from sluice.ledger.run_values import DesiredState
from sluice.operations import OperationVerb
from sluice.publication.held_decisions import plan_decision
from sluice.tables import catalog
from sluice_airflow.tasks import control_task
from sluice_airflow.tasks.control_task import ANSWER_LIVES, REQUEST_LIVES, carry_out, carry_out_approved, show_plan

ANN, BOB = Person(person_id="1", name="ann"), Person(person_id="2", name="bob")
DAG = "stream_control"


@pytest.fixture
def run(
    folder: Path, tmp_path: Path, ledger: Ledger, ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., None]:
    """Runs a task of the run `r` about `flights`, which is stopped and has a checkpoint, once it was asked for it."""
    write_continuous_stream(folder, "flights")
    for name, value in deployment_environment(tmp_path, pipelines=folder, ledger_url=ledger_url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLUICE_CATALOG__OAUTH2_SERVER_URI", "http://127.0.0.1:1/v1/oauth/tokens")
    monkeypatch.setattr(control_task, "_RECORDED_WITHIN_SECONDS", 0.1)
    monkeypatch.setattr(catalog, "_RETRIES", catalog._RETRIES.new(backoff_factor=0))  # no service answers
    current_generation(ledger, "flights", checkpoints_root=(tmp_path / "checkpoints").as_uri())
    set_desired_state(ledger, "flights", DesiredState.STOPPED, requested_by="a test")
    dag_run = SimpleNamespace(run_id="r", triggering_user_name="whoever")

    def make(task: Callable[..., None], **more: Any) -> None:
        verb = "reset" if task is carry_out_approved else "stop"
        params = {"stream": "flights", "verb": verb, "dry_run": False, **more}
        context: Any = {
            "dag_run": dag_run,
            "ti": SimpleNamespace(xcom_pull=lambda **_: None, xcom_push=lambda *_: None),
        }
        with set_current_context(context):
            task(params, dag_id=DAG, **({"plan_task": "plan"} if task is carry_out else {}))

    return make


def asked(ledger: Ledger, verb: str, *, by: Person = ANN, age: timedelta = timedelta(), **more: Any) -> None:
    """Ask for something, some time ago."""
    assert record_control_request(ledger, "r", stream="flights", verb=verb, by=by, **more)
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.control_requests SET requested_at = requested_at - :age"), {"age": age})


def start(ledger: Ledger) -> None:
    """Let the stream be one that is to run."""
    set_desired_state(ledger, "flights", DesiredState.RUNNING, requested_by="a test")


def is_to_run(ledger: Ledger) -> bool:
    """Whether the stream is to run."""
    return find_desired_state(ledger, "flights").desired_state is DesiredState.RUNNING


def test_a_run_does_what_was_asked_once_in_the_name_of_who_asked(run: Callable[..., None], ledger: Ledger) -> None:
    start(ledger)
    with pytest.raises(AirflowFailException, match="not triggered through Airflow's API server"):
        run(carry_out)
    asked(ledger, "stop")
    assert is_to_run(ledger)
    run(carry_out)
    wanted = find_desired_state(ledger, "flights")
    assert (wanted.desired_state, wanted.requested_by) == (DesiredState.STOPPED, "airflow: stream_control, ann")
    with pytest.raises(AirflowFailException, match="a run that is cleared does nothing again"):
        run(carry_out)


def test_a_run_that_waited_too_long_does_nothing(run: Callable[..., None], ledger: Ledger) -> None:
    start(ledger)
    asked(ledger, "stop", age=REQUEST_LIVES)
    with pytest.raises(AirflowFailException, match="longer ago than 1:00:00"):
        run(carry_out)
    assert is_to_run(ledger)


def test_a_dry_run_uses_up_nothing(run: Callable[..., None], ledger: Ledger) -> None:
    start(ledger)
    asked(ledger, "stop")
    run(carry_out, dry_run=True)
    assert is_to_run(ledger)
    run(carry_out)
    assert not is_to_run(ledger)


def test_rows_of_a_batch_are_decided_about_by_two_persons_where_that_is_needed(
    run: Callable[..., None], ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_APPROVAL_BY_ANOTHER", "true")
    asked(ledger, "reject-batch")
    with pytest.raises(AirflowFailException, match="needs the approval of another person for that"):
        run(carry_out, verb="reject-batch")


@pytest.fixture
def shown(ledger: Ledger, run: Callable[..., None], folder: Path) -> str:
    """The digest of the plan of a reset as it is now."""
    from sluice.declarations.load_declarations import load_declarations
    from sluice.settings import load_settings
    from sluice.supervision.stream_reset import plan_reset

    del run
    return plan_reset(ledger, load_declarations(folder).stream("flights"), load_settings()).digest


def test_a_reset_is_what_another_person_has_approved(
    run: Callable[..., None], ledger: Ledger, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_APPROVAL_BY_ANOTHER", "true")
    asked(ledger, "reset")
    with pytest.raises(AirflowFailException, match="its plan was not approved"):
        run(carry_out_approved)
    assert record_answer(ledger, "r", by=BOB, approved_digest=shown)
    run(carry_out_approved)
    opened = find_generation(ledger, "flights")
    assert opened is not None
    assert (opened.generation, opened.opened_by) == (2, "airflow: stream_control, ann, approved by bob")
    with pytest.raises(AirflowFailException, match="a run that is cleared does nothing again"):
        run(carry_out_approved)


@pytest.mark.parametrize(
    ("by", "another", "digest", "age", "said"),
    [
        (ANN, "true", "", timedelta(), "requested by ann and approved by ann"),
        (BOB, "true", "e" * 64, timedelta(), "changed|other than|not what"),
        pytest.param(ANN, "false", "e" * 64, timedelta(), "changed|other than|not what", marks=pytest.mark.full),
        # every run: a rejected plan in the ledger (`test_control_requests.py`)
        pytest.param(BOB, "true", None, timedelta(), "its plan was rejected", marks=pytest.mark.full),
        (BOB, "true", "", ANSWER_LIVES, "too long ago"),
    ],
    ids=["one person", "another plan", "another plan of one person", "rejected", "too late"],
)
def test_a_reset_that_was_not_approved_as_it_is_now_changes_nothing(
    run: Callable[..., None],
    ledger: Ledger,
    shown: str,
    monkeypatch: pytest.MonkeyPatch,
    by: Person,
    another: str,
    digest: str | None,
    age: timedelta,
    said: str,
) -> None:
    monkeypatch.setenv("SLUICE_APPROVAL_BY_ANOTHER", another)
    asked(ledger, "reset", age=age)
    assert record_answer(ledger, "r", by=by, approved_digest=shown if digest == "" else digest)
    with pytest.raises(AirflowFailException, match=said):
        run(carry_out_approved)
    kept = find_generation(ledger, "flights")
    assert kept is not None
    assert kept.generation == 1


@pytest.fixture
def held(run: Callable[..., None], ledger: Ledger, folder: Path) -> str:
    """The digest of the plan to release the batch that waits for a decision."""
    del run
    key = PublicationKey(stream="flights", generation=1, batch=1)
    hold_batch(ledger, HeldBatch(key=key, reason="id > 0 (1 of 2 rows)", rows={"main": 2}))
    declared = load_declarations(folder, only="flights").stream("flights")
    return plan_decision(ledger, declared, OperationVerb.RELEASE_BATCH).digest


def decision(ledger: Ledger) -> tuple[str | None, str | None]:
    """What was decided about the batch, and by whom."""
    found = find_held(ledger, "flights")
    assert found is not None
    return found.decision, found.decided_by


def test_a_batch_is_decided_about_as_it_was_approved(
    run: Callable[..., None], ledger: Ledger, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_APPROVAL_BY_ANOTHER", "true")
    asked(ledger, "release-batch")
    assert record_answer(ledger, "r", by=BOB, approved_digest=held)
    run(carry_out_approved, verb="release-batch")
    assert decision(ledger) == ("released", "airflow: stream_control, ann, approved by bob")


def test_another_plan_about_a_batch_than_was_approved_is_not_carried_out(
    run: Callable[..., None], ledger: Ledger, held: str
) -> None:
    del held
    asked(ledger, "release-batch")
    assert record_answer(ledger, "r", by=BOB, approved_digest="e" * 64)
    with pytest.raises(AirflowFailException, match="another one than was shown"):
        run(carry_out_approved, verb="release-batch")
    assert decision(ledger) == (None, None)


@pytest.mark.parametrize("is_same", [True, False])
def test_of_a_batch_the_plan_that_a_page_has_shown_is_carried_out_alone(
    run: Callable[..., None], ledger: Ledger, held: str, is_same: bool
) -> None:
    digest = held if is_same else "e" * 64
    asked(ledger, "release-batch", batch=1, plan_digest=digest)
    for task, more in ((show_plan, {"plan_digest": digest}), (carry_out, {})):
        if is_same:
            run(task, verb="release-batch", **more)
        else:
            with pytest.raises(AirflowFailException, match="another one than was shown"):
                run(task, verb="release-batch", **more)
    assert decision(ledger) == (("released", "airflow: stream_control, ann") if is_same else (None, None))
