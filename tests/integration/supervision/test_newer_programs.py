"""A ledger that a newer program has written, in a pass of the reconciler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import text
from tests.fakes.launcher import FakeLauncher
from tests.integration.supervision.test_reconcile_all import declared, named, passed, started

from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import SuspensionCause, suspend
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import find_run
from sluice.supervision.supervisor import Supervisor


@contextmanager
def suspended_by(ledger: Ledger, word: str) -> Iterator[None]:
    """A cause of suspensions that a newer program has added with its migration."""
    check = "ck_desired_states_suspension"
    with ledger.transaction() as connection:
        connection.execute(text(f"ALTER TABLE sluice.desired_states DROP CONSTRAINT {check}"))
        connection.execute(text("UPDATE sluice.desired_states SET suspension = :word"), {"word": word})
    try:
        yield
    finally:
        with ledger.transaction() as connection:
            connection.execute(text("UPDATE sluice.desired_states SET suspension = 'paused'"))
            known = "suspension IN ('marked', 'paused')"
            connection.execute(text(f"ALTER TABLE sluice.desired_states ADD CONSTRAINT {check} CHECK ({known})"))


def test_a_word_that_only_a_newer_program_knows_keeps_no_other_stream_waiting(
    supervisor: Supervisor, launcher: FakeLauncher, ledger: Ledger
) -> None:
    """As an older program meets it on a ledger that was upgraded: one row of one stream."""
    newer, other = named("newer"), named("other")
    started(supervisor, newer)
    left = started(supervisor, other)
    assert left.process is not None
    launcher.disappear(left.process)
    suspend(ledger, "newer", SuspensionCause.PAUSED)
    with suspended_by(ledger, "quota"):
        alerts = passed(supervisor, declared(newer, other))
    assert list(alerts) == ["newer"]
    assert (alerts["newer"].reason, alerts["newer"].is_new) == ("not reconciled", True)
    assert "the word 'quota' as suspension of stream newer" in alerts["newer"].sentence
    assert find_run(ledger, left.run_id).state is RunState.LOST, "the other one was looked after"
