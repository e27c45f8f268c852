"""The reconciler is watched by its newest pass, and a metadata database by whether it knows that."""

from __future__ import annotations

from datetime import timedelta

from sqlalchemy import text

from sluice.ledger.connection import Ledger
from sluice.ledger.reconciler_passes import MISSING_AFTER, begin_pass, end_pass, missing_for


def test_the_pass_before_is_known_by_its_dag_run(ledger: Ledger) -> None:
    assert begin_pass(ledger, "run-1") is None
    first = begin_pass(ledger, "run-2")
    assert first is not None
    assert (first.dag_run, first.ended_at) == ("run-1", None), "it broke off"
    end_pass(ledger, "run-2")
    second = begin_pass(ledger, "run-3")
    assert second is not None
    assert second.ended_at is not None


def test_a_reconciler_that_makes_no_passes_is_missing(ledger: Ledger) -> None:
    assert missing_for(ledger) is None, "it was never there: nothing is supervised yet"
    begin_pass(ledger, "run-1")
    assert missing_for(ledger) is None
    with ledger.transaction() as connection:
        moved = text("UPDATE sluice.reconciler_passes SET began_at = began_at - :by")
        connection.execute(moved, {"by": MISSING_AFTER + timedelta(seconds=1)})
    missing = missing_for(ledger)
    assert missing is not None
    assert missing > MISSING_AFTER
