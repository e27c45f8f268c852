"""Removes what is left behind once its grace is over: `sluice stream clean`, and the DAG `ledger_upkeep` every night.

    event ─► file by file, those on top first ─► empty folders          of a folder
    event ─► lock of the interval ─► drop, without the data files       of a table

What is removed is looked for again each time, so that a removal that was interrupted is completed by the next one.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict

from sluice.checkpoints.checkpoint_files import open_checkpoint_files, require_below
from sluice.errors import SluiceError, UnhealthyError
from sluice.ledger.events import REQUESTED, Actor, ActorKind, Event, EventAction, record_event
from sluice.ledger.locks import LockedInterval, interval_lock
from sluice.ledger.refreshes import end_refresh
from sluice.leftovers.observe_leftovers import Leftover, LeftoverKind, Leftovers
from sluice.operations import OperationPlan, OperationVerb, Stake, steps_of
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.staging_layout import drop_staging_copy

_log = logging.getLogger(__name__)

CleaningPlan = OperationPlan[Leftovers]


def plan_cleaning(left: Leftovers) -> CleaningPlan:
    """What `clean` would remove now. Nothing is changed.

    Raises
    ------
    LakehouseError, LedgerError: as `Leftovers.found`.
    """
    return OperationPlan(
        verb=OperationVerb.CLEAN,
        subject=left.stream or "all streams",
        seen=left,
        steps=steps_of(*(map(_sentence, left.due) if left.due else ("Nothing is to be removed.",))),
        at_stake=Stake.CHECKPOINT if left.due else Stake.NOTHING,
        evidence={"removes": [{"place": one.place, "files": one.files, "bytes": one.size_bytes} for one in left.due]},
    )


def clean(
    left: Leftovers, *, actor: Actor, planned: str | None = None, reached: Reached = unnoticed
) -> tuple[Leftover, ...]:
    """Remove what is left and due, each with an event; what cannot be removed keeps no other from it.

    Parameters
    ----------
    planned: the digest of the plan that a person agreed to; unset: what is due now.

    Returns
    -------
    What was removed.

    Raises
    ------
    UsageError: when it is not what was planned.
    UnhealthyError: with what was not removed, after all others were.
    LakehouseError, LedgerError: as `Leftovers.found`.
    """
    plan_cleaning(left).require_same(planned)
    unanswered = [one for one in left.found if one.is_unanswered]
    failed = [f"{one.place}: {one.problem}" for one in unanswered]
    for one in left.due:
        try:
            _remove(left, one, actor, reached)
        except SluiceError as error:
            _log.error("leftover=%s %s", one.place, error)
            failed.append(f"{one.place}: {error.message}")
    for number in left.cleared_refreshes():
        end_refresh(left.ledger, number)
    if failed:
        count = len(left.due) + len(unanswered)
        raise UnhealthyError(
            f"{len(failed)} of {count} leftovers were not removed: {' '.join(failed)}",
            next_step="The others are gone. `sluice stream clean` again continues with the rest.",
        )
    return left.due


def _remove(left: Leftovers, one: Leftover, actor: Actor, reached: Reached) -> None:
    with _lock(left, one):
        record_event(left.ledger, _event(one, actor))
        reached(CrashPoint.BEGUN)
        if one.kind in (LeftoverKind.CHECKPOINT, LeftoverKind.COPIES):
            _remove_folder(left, one, reached)
        else:
            drop_staging_copy(left.catalog, one.place)
            reached(CrashPoint.CLEARED)


def _lock(left: Leftovers, one: Leftover) -> AbstractContextManager[None]:
    """Keep a backfill from the interval whose staging table is dropped; a live one has the lock."""
    if one.interval is None:
        return nullcontext()
    return interval_lock(left.ledger, LockedInterval(stream=one.stream, start=one.interval.start, end=one.interval.end))


def _remove_folder(left: Leftovers, one: Leftover, reached: Reached) -> None:
    """Those on top go first: without `metadata` it is no checkpoint, and without their index no copies."""
    require_below(one.place, left.settings.checkpoints, path=one.path)
    files = open_checkpoint_files(one.place, left.settings.object_store)
    for seen in sorted(files.list_files(), key=lambda each: ("/" in each.path, each.path)):
        files.remove(seen.path)
        reached(CrashPoint.FILE_CHANGED)
    files.remove_folders()
    reached(CrashPoint.CLEARED)


def _sentence(one: Leftover) -> str:
    if one.files is None or one.size_bytes is None:
        return (
            f"Drop the table {one.place} ({one.of} of {one.stream}, not needed since {one.since:%Y-%m-%d}); its data "
            "files are left to `sluice table remove-orphans`."
        )
    what = "checkpoint" if one.kind is LeftoverKind.CHECKPOINT else "copies of the checkpoint"
    return (
        f"Remove the {what} {one.place} ({one.of} of {one.stream}, not needed since {one.since:%Y-%m-%d}): "
        f"{one.files:,} files, {one.size_bytes:,} bytes."
    )


def _event(one: Leftover, actor: Actor) -> Event:
    facts = {name: value for name, value in asdict(one).items() if name in ("kind", "of", "place", "files")}
    return Event(
        name=one.stream,
        actor=actor,
        action=EventAction.REMOVE_LEFTOVER,
        reason=REQUESTED if actor.kind is ActorKind.PERSON else "grace_over",
        explanation=_sentence(one),
        evidence={**facts, "bytes": one.size_bytes, "since": one.since.isoformat()},
    )
