"""Tables that ended refreshes and dead backfills leave behind, on a real ledger and catalog."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from sqlalchemy import func, update
from tests.fixtures.drill import first_of
from tests.fixtures.left_behind import contents, fill
from tests.fixtures.publication import COLUMNS
from tests.integration.cli.test_operations import Copier, copier
from tests.integration.leftovers.test_leftovers import ANN, left_of

from sluice.backfill.intervals import Interval, name_part
from sluice.errors import CheckpointError, UnhealthyError
from sluice.ledger.backfill_attempts import BackfillState, begin_attempt, end_attempt
from sluice.ledger.events import EventAction
from sluice.ledger.generations import current_generation
from sluice.ledger.locks import LockedInterval, interval_lock
from sluice.ledger.refreshes import Refresh, RefreshObservation, RefreshState, abandon_refresh, newest_refresh
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import admit_run, record_end
from sluice.leftovers.observe_leftovers import LeftoverKind
from sluice.leftovers.remove_leftovers import clean
from sluice.publication.crash_points import CrashPoint, Reached
from sluice.publication.data_files import Writer, WriterKind
from sluice.publication.staging_layout import (
    BACKFILL_NAMESPACE,
    REFRESH_NAMESPACE,
    create_staging_copy,
    drop_staging_copy,
)
from sluice.settings import load_settings
from sluice.supervision.supervision_values import command_event

__all__ = ["COLUMNS", "copier"]

DAY = Interval(start=datetime(2013, 1, 5, tzinfo=UTC), end=datetime(2013, 1, 6, tzinfo=UTC))


def tables(copier: Copier, namespace: str) -> list[str]:
    """The tables of a namespace that have the name of the stream in theirs."""
    return [name[-1] for name in copier.bench.catalog.list_tables(namespace) if copier.stream in name[-1]]


def staged(copier: Copier, name: str) -> str:
    """A staging table of the copier's target."""
    writer = Writer(kind=WriterKind.REFRESH, identity=uuid4().hex)
    return create_staging_copy(copier.bench.catalog, name, target=copier.bench.output.target, writer=writer)


def test_the_staging_table_of_a_backfill_that_died_goes_unless_another_one_works_on_the_interval(
    copier: Copier,
) -> None:
    table = staged(copier, f"{BACKFILL_NAMESPACE}.{copier.stream}__copies__{name_part(DAY)}")
    assert left_of(copier).found == (), "the ledger knows no attempt of it"
    key = begin_attempt(copier.ledger, copier.stream, start=DAY.start, end=DAY.end, launched_by="ann")
    assert left_of(copier, later=timedelta(days=1)).found == (), "it may be running"
    (one,) = left_of(copier).found
    assert (one.kind, one.place, one.of) == (
        LeftoverKind.STAGING,
        table,
        "backfill of 2013-01-05 00:00 to 2013-01-06 00:00 UTC, running",
    )
    locked = LockedInterval(stream=copier.stream, start=DAY.start, end=DAY.end)
    with interval_lock(copier.ledger, locked), pytest.raises(UnhealthyError, match="1 of 1 leftovers were not"):
        clean(left_of(copier), actor=ANN)
    assert tables(copier, BACKFILL_NAMESPACE) == [table.partition(".")[2]]

    clean(left_of(copier), actor=ANN)

    assert (tables(copier, BACKFILL_NAMESPACE), left_of(copier).found) == ([], ())
    table = staged(copier, table)
    end_attempt(copier.ledger, key, BackfillState.FAILED, reason="x")
    assert [one.is_due(left_of(copier).now) for one in left_of(copier, later=timedelta(days=1)).found] == [True]


def abandoned(copier: Copier) -> RefreshObservation:
    """A refresh that was given up by a command that died before it dropped the shadow."""
    begun = copier.refresh()
    event = command_event(EventAction.ABANDON_REFRESH, copier.stream, by="a test")
    staged(copier, f"{REFRESH_NAMESPACE}.{begun.shadow}")
    staged(copier, f"staging.{begun.shadow}__copies")
    shadow = current_generation(copier.ledger, begun.shadow, checkpoints_root=load_settings().checkpoints)
    fill(shadow.checkpoint, load_settings())
    assert left_of(copier).found == (), "it is being built"
    return abandon_refresh(copier.ledger, begun.number, event=event)


def test_the_tables_and_the_checkpoint_of_an_abandoned_refresh_go(copier: Copier) -> None:
    refresh = abandoned(copier)
    kinds = sorted(one.kind for one in left_of(copier).due)
    assert kinds == [LeftoverKind.CHECKPOINT, LeftoverKind.COPIES, LeftoverKind.SHADOW, LeftoverKind.SHADOW]
    assert {one.of for one in left_of(copier).found} == {f"refresh {refresh.number}, abandoned"}
    run = admit_run(
        copier.ledger, stream=refresh.shadow, mode="incremental", declaration_digest="d", launched_by="a test"
    )
    assert left_of(copier).found == (), "its driver lives"
    record_end(copier.ledger, run.run_id, state=RunState.FAILED, exit_code=1, reason="x")

    clean(left_of(copier), actor=ANN)

    assert left_of(copier).found == ()
    assert (tables(copier, REFRESH_NAMESPACE), tables(copier, "staging")) == ([], [f"{copier.stream}__copies"])
    assert dict(contents(refresh.shadow, load_settings(), generations=1)) == {"1": 0, "copies of 1": 0}
    assert has_ended(copier), "what the command had left to do is done"


def has_ended(copier: Copier) -> bool:
    """Whether nothing is left to be done for the refresh of the copier."""
    newest = newest_refresh(copier.ledger, copier.stream)
    assert newest is not None
    return newest.ended_at is not None


def test_a_refresh_ends_with_its_last_table_whatever_else_is_not_removed(copier: Copier) -> None:
    abandoned(copier)
    with pytest.raises(UnhealthyError, match="1 of 4 leftovers were not removed"):
        clean(left_of(copier), actor=ANN, reached=failing(CrashPoint.BEGUN, CheckpointError("it stays")))
    assert [one.kind for one in left_of(copier).found] == [LeftoverKind.SHADOW]
    assert not has_ended(copier)
    abandoned_at = left_of(copier).found[0].place
    drop_staging_copy(copier.bench.catalog, abandoned_at)
    clean(left_of(copier), actor=ANN)
    assert has_ended(copier)


@pytest.mark.parametrize("occurrence", first_of(2, 1, 4))
def test_a_refresh_whose_removal_was_killed_ends_with_the_next_one(copier: Copier, occurrence: int) -> None:
    abandoned(copier)
    with pytest.raises(KeyboardInterrupt):
        clean(left_of(copier), actor=ANN, reached=failing(CrashPoint.CLEARED, KeyboardInterrupt(), at=occurrence))
    assert len(left_of(copier).found) == 4 - occurrence
    assert not has_ended(copier)
    clean(left_of(copier, later=timedelta(days=29)), actor=ANN)
    assert not has_ended(copier), "within its grace"

    clean(left_of(copier), actor=ANN)

    assert has_ended(copier)
    assert left_of(copier).found == ()


def failing(point: CrashPoint, error: BaseException, *, at: int = 1) -> Reached:
    """Fails when a place is passed for this time."""
    passed = []

    def reached(here: CrashPoint) -> None:
        passed.append(here)
        if here is point and passed.count(point) == at:
            raise error

    return reached


def test_the_tables_of_a_refresh_stay_while_it_can_be_taken_back(copier: Copier) -> None:
    """Its command compares them with what readers see, and then drops them."""
    begun = copier.refresh()
    staged(copier, f"{REFRESH_NAMESPACE}.{begun.shadow}")
    values = {"state": RefreshState.SWAPPED, "keeps_until": func.now() + timedelta(days=7)}
    with copier.ledger.transaction() as connection:
        connection.execute(update(Refresh).where(Refresh.number == begun.number).values(**values))
    assert left_of(copier, later=timedelta(days=6)).found == ()
    assert [one.kind for one in left_of(copier, later=timedelta(days=8)).found] == [LeftoverKind.SHADOW]
    assert left_of(copier, later=timedelta(days=36)).due == ()
    assert len(left_of(copier, later=timedelta(days=38)).due) == 1
