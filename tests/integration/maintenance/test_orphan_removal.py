"""What dead writers left behind is found by who wrote it, moved, brought back once, and deleted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import update
from tests.fixtures.drill import first_of
from tests.fixtures.left_files import ENDED_AFTER, Yard, catalog_place, yard

from sluice.ledger.backfill_attempts import BackfillState, begin_attempt, end_attempt
from sluice.ledger.events import EventAction, EventSubject, recent_events
from sluice.ledger.refreshes import Refresh, RefreshState, begin_refresh
from sluice.maintenance.orphan_files import FileFate
from sluice.publication.data_files import Writer, WriterKind
from sluice.publication.mark_moves import reject_batch
from sluice.supervision.supervision_values import command_event

__all__ = ["catalog_place", "yard"]


def test_what_a_dead_run_left_is_moved_brought_back_once_and_deleted(yard: Yard) -> None:
    left = set(yard.die_writing(20))
    assert yard.left() == set()  # the run lives
    yard.begin()
    yard.end()

    assert yard.left() == left == yard.remove()
    assert {path.name.partition("-")[2] for path in yard.trashed() if path.name != "list.parquet"} == left
    assert yard.bench.ids() == [0, 10]

    assert yard.removal().restore(yard.name) == len(left)
    assert left <= {path.name for path in yard.data_files()}
    assert yard.remove(after=timedelta(days=12)) == set()
    assert not yard.trashed()
    assert left <= {path.name for path in yard.data_files()}


def test_a_removal_is_deleted_after_its_time_in_the_trash(yard: Yard) -> None:
    yard.die_writing(20)
    yard.end()
    yard.remove(after=timedelta(days=5))
    yard.remove(after=timedelta(days=11))
    assert yard.trashed()
    yard.remove(after=timedelta(days=12))
    assert not yard.trashed()
    assert yard.bench.ids() == [0, 10]
    events = recent_events(yard.ledger, EventSubject.TABLE, yard.name, limit=9)
    assert [event.action for event in events] == [EventAction.REMOVE_ORPHANS] * 3


@pytest.mark.full  # every run: `test_orphan_plan.py`
def test_a_rejected_batch_is_left_behind(yard: Yard) -> None:
    batch = yard.bench.stage(2, [20])
    reject_batch(yard.bench.catalog, yard.bench.output, batch, token=yard.bench.run)
    yard.bench.clear()
    yard.begin().publish(yard.bench.stage(3, [30], start_offsets=batch.summary.end_offsets))
    yard.bench.clear()
    yard.end()
    assert len(yard.remove()) == 1
    assert yard.bench.ids() == [0, 10, 30]


@pytest.mark.full  # every run: `test_orphan_plan.py`
def test_a_killed_compaction_is_left_behind(yard: Yard) -> None:
    identity = uuid4().hex
    left = yard.die_as(Writer(kind=WriterKind.REWRITE, identity=identity), 0, 10)
    yard.end()
    assert yard.fates()[left[0]] is FileFate.WRITER_UNKNOWN
    yard.announce(identity, EventAction.REWRITE_DATA_FILES)
    assert yard.remove() == set(left)


@pytest.mark.parametrize("state", first_of(BackfillState.FAILED, BackfillState.CHANGED_MEANWHILE))
def test_a_failed_attempt_at_a_backfill_is_left_behind(yard: Yard, state: BackfillState) -> None:
    stream, identity, day = yard.bench.output.stream, uuid4().hex, datetime(2026, 1, 5, tzinfo=UTC)
    key = begin_attempt(
        yard.ledger, stream, start=day, end=day + timedelta(days=1), launched_by="a test", identity=identity
    )
    left = yard.die_as(Writer.of_attempt(f"{stream}/backfill/x/{identity}/1"), 5)
    yard.end()
    assert yard.fates()[left[0]] is FileFate.WRITER_LIVES
    end_attempt(yard.ledger, key, state)
    assert yard.remove() == set(left)


@pytest.mark.full  # every run: `test_orphan_plan.py`
def test_an_abandoned_refresh_is_left_behind(yard: Yard) -> None:
    stream = yard.bench.output.stream
    event = command_event(EventAction.REFRESH, stream, by="a test")
    refresh = begin_refresh(
        yard.ledger, stream, digest="d", leaves=1, keeps=timedelta(days=7), asked_by="a test", event=event
    )
    left = yard.die_as(Writer(kind=WriterKind.REFRESH, identity=refresh.label), 5)
    yard.end()
    assert yard.fates()[left[0]] is FileFate.WRITER_LIVES
    ended = {"state": RefreshState.ABANDONED, "ended_at": yard.made_at + ENDED_AFTER}
    with yard.ledger.transaction() as connection:
        connection.execute(update(Refresh).where(Refresh.number == refresh.number).values(**ended))
    assert yard.remove() == set(left)


def test_what_others_wrote_is_counted_and_stays(yard: Yard) -> None:
    foreign = yard.write_into(yard.bench.target().metadata, [7])
    yard.end()
    assert yard.fates()[foreign[0]] is FileFate.FOREIGN
    sentences = list(yard.removal().plan(yard.name).sentences())
    assert any(one.startswith("1 files, 0.0 MiB, not written by Sluice") for one in sentences)
    assert yard.remove() == set()


def test_a_staged_batch_and_visible_ones_stay(yard: Yard) -> None:
    held = yard.bench.stage(2, [20])
    yard.end()
    assert yard.remove() == set()
    yard.begin()
    yard.bench.publish(held)
    assert yard.bench.ids() == [0, 10, 20]
