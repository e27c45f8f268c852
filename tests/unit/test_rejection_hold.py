"""The limit of rejected rows that holds batches: what the ledger does not have yet counts, each batch once."""

from __future__ import annotations

from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sluice.declarations.run_declaration import RejectionLimit
from sluice.ledger.batches import BatchObservation, PublicationKey
from sluice.ledger.held_batches import RejectedSince
from sluice_spark.delivery import batch_audit
from sluice_spark.delivery.batch_audit import RejectionHold

NOON = datetime(2026, 11, 27, 12, tzinfo=UTC)


@pytest.fixture
def recorded() -> dict[int, int]:
    """The rejected rows of each batch of which the ledger has a record."""
    return {}


@pytest.fixture
def hold(monkeypatch: pytest.MonkeyPatch, recorded: dict[int, int]) -> RejectionHold:
    """A limit of 100 rows, of a stream of batches of 1,000."""

    def within(*_: object) -> dict[str, RejectedSince]:
        return {"s": RejectedSince(since=NOON, rows=sum(recorded.values()), read=1_000 * len(recorded))}

    monkeypatch.setattr(batch_audit, "rejected_within", within)
    monkeypatch.setattr(batch_audit, "recorded_among", lambda *_, batches, **__: recorded.keys() & set(batches))
    monkeypatch.setattr(batch_audit, "rows_read", lambda *_: 1_000)
    limit = RejectionLimit(rows=100, action="hold")
    no_session: Any = SimpleNamespace()
    return RejectionHold(
        spark=no_session, query_name="s", ledger=cast("Any", None), limit=limit, quarantine="quarantine.s"
    )


def key(batch: int) -> PublicationKey:
    return PublicationKey(stream="s", generation=1, batch=batch)


def test_batches_that_the_ledger_does_not_have_yet_count_for_those_that_follow(hold: RejectionHold) -> None:
    assert hold.judge(key(0), rejected=60, written=940) is None
    assert hold.judge(key(1), rejected=0, written=1_000) is None

    found = hold.judge(key(2), rejected=60, written=940)

    assert found is not None
    assert (found.rules["max_rejected"].failed, found.rules["max_rejected"].counted) == (120, 3_000)


def test_a_batch_that_the_ledger_has_counts_once(hold: RejectionHold, recorded: dict[int, int]) -> None:
    assert hold.judge(key(0), rejected=60, written=940) is None
    recorded[0] = 60
    assert hold.judge(key(1), rejected=30, written=970) is None, "90, and not 150"
    assert hold.judge(key(1), rejected=40, written=960) is None, "one that is computed again counts once"
    assert hold.judge(key(2), rejected=1, written=999) is not None


def test_batches_behind_a_held_one_are_held_too_also_after_a_restart(hold: RejectionHold) -> None:
    staged = BatchObservation(
        key=key(0), run_id="r", started_at=NOON, duration_ms=0, input_rows=1_000, published_rows={}, refused_rows=150
    )
    hold.take_up([staged])

    assert hold.judge(key(1), rejected=1, written=999) is not None
    assert hold.judge(key(2), rejected=0, written=1_000) is None


def test_what_the_ledger_has_is_not_kept(hold: RejectionHold, recorded: dict[int, int]) -> None:
    for number in range(200):
        assert hold.judge(key(number), rejected=0, written=1_000) is None
        recorded[number] = 0

    assert len(hold._own) <= 101
