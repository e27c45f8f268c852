"""What a run of `stream_control` may carry out: what a person asked, once, soon, and approved where that is needed."""

from __future__ import annotations

from datetime import timedelta
from threading import Barrier, Thread

import pytest
from sqlalchemy import text

from sluice.errors import UsageError
from sluice.ledger.connection import Ledger
from sluice.ledger.control_requests import (
    find_control_request,
    record_answer,
    record_control_request,
    use_control_request,
)
from sluice.ledger.control_values import ControlRequest, Person

ANN, BOB = Person(person_id="1", name="ann"), Person(person_id="2", name="bob")
DIGEST = "d" * 64
HOUR = timedelta(hours=1)


def asked(ledger: Ledger, run_id: str = "r", *, verb: str = "reset", by: Person = ANN) -> bool:
    """Ask for something to be done to flights."""
    return record_control_request(ledger, run_id, stream="flights", verb=verb, by=by, batch=7, plan_digest="p")


def used(
    ledger: Ledger, run_id: str = "r", *, stream: str = "flights", verb: str = "reset", must_be_approved: bool = False
) -> ControlRequest:
    """Carry it out."""
    return use_control_request(ledger, run_id, stream=stream, verb=verb, within=HOUR, must_be_approved=must_be_approved)


def make_older(ledger: Ledger, by: timedelta) -> None:
    """Let time pass."""
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.control_requests SET requested_at = requested_at - :by"), {"by": by})


def test_a_request_is_carried_out_once_for_the_person_who_asked(ledger: Ledger) -> None:
    assert asked(ledger)
    request = used(ledger)
    assert (request.person, request.batch, request.plan_digest) == ("ann", 7, "p")
    with pytest.raises(UsageError, match="a run that is cleared does nothing again"):
        used(ledger)


def test_the_id_of_a_run_cannot_be_asked_for_again(ledger: Ledger) -> None:
    assert asked(ledger)
    assert not asked(ledger, verb="stop", by=BOB)
    assert used(ledger).person == "ann"
    assert not asked(ledger), "not even when it is used"


def test_of_two_tasks_one_carries_it_out(ledger: Ledger) -> None:
    asked(ledger)
    done: list[str] = []
    together = Barrier(2)

    def take() -> None:
        together.wait()
        try:
            used(ledger)
            done.append("used")
        except UsageError:
            done.append("refused")

    threads = [Thread(target=take) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == ["refused", "used"]


@pytest.mark.parametrize(
    "other", [{"run_id": "copied"}, {"stream": "weather"}, {"verb": "reject-batch"}], ids=["run", "stream", "verb"]
)
def test_a_request_is_for_its_run_stream_and_verb(ledger: Ledger, other: dict[str, str]) -> None:
    asked(ledger)
    with pytest.raises(UsageError, match="There is no request to"):
        used(ledger, **other)  # type: ignore[arg-type]  # names and values are those above
    assert used(ledger).used_at is not None


def test_an_old_request_is_not_carried_out(ledger: Ledger) -> None:
    asked(ledger)
    make_older(ledger, HOUR)
    with pytest.raises(UsageError, match="longer ago than 1:00:00"):
        used(ledger)


def test_what_needs_an_approval_is_not_carried_out_without(ledger: Ledger) -> None:
    asked(ledger)
    with pytest.raises(UsageError, match="its plan was not approved"):
        used(ledger, must_be_approved=True)
    assert record_answer(ledger, "r", by=BOB, approved_digest=DIGEST)
    request = used(ledger, must_be_approved=True)
    assert (request.approver, request.approver_id, request.approved_digest) == ("bob", "2", DIGEST)


def test_a_rejection_is_final(ledger: Ledger) -> None:
    asked(ledger)
    assert record_answer(ledger, "r", by=BOB, approved_digest=None)
    assert not record_answer(ledger, "r", by=ANN, approved_digest=DIGEST), "the run was cleared and answered again"
    with pytest.raises(UsageError, match="its plan was rejected"):
        used(ledger, must_be_approved=True)


def test_an_answer_needs_a_request(ledger: Ledger) -> None:
    assert not record_answer(ledger, "r", by=BOB, approved_digest=DIGEST)
    assert find_control_request(ledger, "r") is None


def test_requests_of_the_last_month_are_kept(ledger: Ledger) -> None:
    asked(ledger, "old")
    make_older(ledger, timedelta(days=31))
    asked(ledger, "new")
    assert find_control_request(ledger, "old") is None
    assert find_control_request(ledger, "new") is not None
