"""Removes what is left behind once its grace is over: `sluice stream clean`, and the DAG `ledger_upkeep` every night.

    event ─► file by file, those on top first ─► empty folders          of a folder
    lock of the interval ─► event ─► drop, without the data files       of a table
    lock of the interval ─► event ─► note                               of a backfill that has died

What is removed is looked for again each time, so that a removal that was interrupted is completed by the next one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

from sluice.backfill.intervals import Interval
from sluice.checkpoints.checkpoint_files import open_checkpoint_files, require_below
from sluice.errors import CheckpointError, LedgerError, SluiceError, UnhealthyError
from sluice.ledger.backfill_attempts import (
    BackfillAttemptObservation,
    BackfillState,
    end_attempt,
    newest_attempt,
)
from sluice.ledger.events import REQUESTED, Actor, ActorKind, Event, EventAction, record_event
from sluice.ledger.locks import LockedInterval, interval_lock
from sluice.ledger.refreshes import RefreshObservation, end_refresh
from sluice.leftovers.observe_leftovers import Leftover, LeftoverKind, Leftovers
from sluice.operations import OperationPlan, OperationVerb, Stake, steps_of
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.staging_layout import drop_staging_copy

_log = logging.getLogger(__name__)

_FOLDERS = {
    LeftoverKind.CHECKPOINT: "checkpoint",
    LeftoverKind.COPIES: "copies of the checkpoint",
    LeftoverKind.REHEARSAL: "copy that was on trial",
}

CleaningPlan = OperationPlan[Leftovers]


def plan_cleaning(left: Leftovers) -> CleaningPlan:
    """What `clean` would remove now. Nothing is changed.

    Raises
    ------
    LakehouseError, LedgerError: as `Leftovers.found`.
    """
    stays = [
        *(f"Stays, and lets the command fail: {one.place}: {one.problem}" for one in left.missed),
        *(f"Stays: {one.place}: {one.problem}" for one in left.held_back),
    ]
    steps = [*map(_sentence, left.due), *stays, *map(_end_sentence, left.over), *map(_loss_sentence, left.silent)]
    return OperationPlan(
        verb=OperationVerb.CLEAN,
        subject=left.stream or "all streams",
        seen=left,
        steps=steps_of(*(steps or ("Nothing is to be removed.",))),
        at_stake=Stake.CHECKPOINT if left.due else Stake.NOTHING,
        evidence={
            "removes": [{"place": one.place, "files": one.files, "bytes": one.size_bytes} for one in left.due],
            "stays": [one.place for one in (*left.missed, *left.held_back)],
        },
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
    What was removed; not what another removal has removed meanwhile.

    Raises
    ------
    UsageError: when it is not what was planned.
    UnhealthyError: with what was not removed, after all others were.
    LakehouseError, LedgerError: as `Leftovers.found`.
    """
    plan_cleaning(left).require_same(planned)
    failed = [f"{one.place}: {one.problem}" for one in left.missed]
    removed = []
    for one in left.due:
        try:
            if _remove(left, one, actor, reached):
                removed.append(one)
        except SluiceError as error:
            _log.error("leftover=%s %s", one.place, error)
            failed.append(f"{one.place}: {error.message}")
    for attempt in left.silent:
        _note_lost(left, attempt, actor)
    for refresh in left.over:
        if left.is_cleared(refresh):
            record_event(left.ledger, _end_event(refresh, actor))
            end_refresh(left.ledger, refresh.number)
    if failed:
        count = len(left.due) + len(left.missed)
        raise UnhealthyError(
            f"{len(failed)} of {count} leftovers were not removed: {' '.join(failed)}",
            next_step=f"{count - len(failed)} are gone. `sluice stream clean` again continues with the rest.",
        )
    return tuple(removed)


def _remove(left: Leftovers, one: Leftover, actor: Actor, reached: Reached) -> bool:
    """Whether this removal removed it: of two at once each finds what the other one has removed gone."""
    with _lock(left, one):
        now = left.again(one)
        if now is None and not left.is_there(one):
            return False
        _require_unchanged(one, now)
        record_event(left.ledger, _event(one, actor))
        reached(CrashPoint.BEGUN)
        if one.path:
            _remove_folder(left, one, reached)
        else:
            drop_staging_copy(left.catalog, one.place)
            reached(CrashPoint.CLEARED)
    return True


def _require_unchanged(one: Leftover, now: Leftover | None) -> None:
    """What was found may be written, or needed, by the time that what comes before it is gone: that takes hours.

    A removal that was killed, and one that runs beside this one, leave fewer files."""
    if now is not None and now.problem:
        raise CheckpointError(now.problem)
    if now is None or now.since > one.since or (now.files or 0) > (one.files or 0):
        raise CheckpointError(
            f"{one.place} has changed since it was looked at: it was written, or is needed again.",
            next_step="It stays. `sluice stream leftovers` shows it as it is now.",
        )


def _lock(left: Leftovers, one: Leftover) -> AbstractContextManager[None]:
    """Keep a backfill from the interval whose staging table is dropped; a live one has the lock."""
    if one.interval is None:
        return nullcontext()
    return interval_lock(left.ledger, LockedInterval(stream=one.stream, start=one.interval.start, end=one.interval.end))


def _note_lost(left: Leftovers, attempt: BackfillAttemptObservation, actor: Actor) -> None:
    """Note that an attempt has died: only then are the files of its stream orphans."""
    key = attempt.key
    try:
        with interval_lock(
            left.ledger, LockedInterval(stream=key.stream, start=key.interval_start, end=key.interval_end)
        ):
            newest = newest_attempt(left.ledger, key.stream, key.interval_start, key.interval_end)
            if newest is None or newest.key != key or newest.state is not BackfillState.RUNNING:
                return  # it has ended meanwhile, or another one began and has noted it
            evidence = {"kind": "backfill", "attempt": key.attempt}
            record_event(left.ledger, _note(key.stream, _loss_sentence(attempt), actor, evidence))
            end_attempt(left.ledger, key, BackfillState.LOST, reason="its process ended without a report")
    except LedgerError as error:  # it lives, or the next removal notes it
        _log.info("stream=%s attempt=%s is not noted as lost: %s", key.stream, key.attempt, error)


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
    what = _FOLDERS[one.kind]
    return (
        f"Remove the {what} {one.place} ({one.of} of {one.stream}, not needed since {one.since:%Y-%m-%d}): "
        f"{one.files:,} files, {one.size_bytes:,} bytes."
    )


def _end_sentence(refresh: RefreshObservation) -> str:
    return f"Note the end of refresh {refresh.number} of {refresh.stream}, once no table of it is left."


def _loss_sentence(attempt: BackfillAttemptObservation) -> str:
    key = attempt.key
    interval = Interval(start=key.interval_start, end=key.interval_end)
    return (
        f"Note that attempt {key.attempt} to backfill {interval.spoken} of {key.stream} was lost, unless it still runs."
    )


def _end_event(refresh: RefreshObservation, actor: Actor) -> Event:
    evidence = {"kind": "refresh", "of": f"refresh {refresh.number}, {refresh.state}"}
    return _note(refresh.stream, _end_sentence(refresh), actor, evidence)


def _event(one: Leftover, actor: Actor) -> Event:
    facts = {name: value for name, value in asdict(one).items() if name in ("kind", "of", "place", "files")}
    evidence = {**facts, "bytes": one.size_bytes, "since": one.since.isoformat()}
    return _note(one.stream, _sentence(one), actor, evidence)


def _note(stream: str, sentence: str, actor: Actor, evidence: Mapping[str, Any]) -> Event:
    return Event(
        name=stream,
        actor=actor,
        action=EventAction.REMOVE_LEFTOVER,
        reason=REQUESTED if actor.kind is ActorKind.PERSON else "grace_over",
        explanation=sentence,
        evidence=evidence,
    )
