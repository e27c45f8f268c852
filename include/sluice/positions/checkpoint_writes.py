"""Writes a decided repair into the folder of a checkpoint, file by file, and says beforehand what it writes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from sluice.checkpoints.checkpoint_copies import copies_location, forget_copies_behind
from sluice.checkpoints.checkpoint_files import CheckpointFiles, open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import METADATA, OFFSETS, checksum_path, hidden_checksum_path, log_files
from sluice.positions.repair_decision import CheckpointRepair
from sluice.positions.restore_copy import put_copy
from sluice.positions.stream_position import StreamPosition
from sluice.publication.crash_points import CrashPoint, Reached
from sluice.settings import Settings


def write_repair(
    seen: StreamPosition,
    repair: CheckpointRepair,
    settings: Settings,
    reached: Reached,
    *,
    before_metadata: Callable[[], None] = lambda: None,
) -> None:
    """Put a copy in the place of a checkpoint where one is restored, and remove and write its files, in their order.
    Copies that have committed more than the tables hold go: these batches are read again, and get other states.

    Parameters
    ----------
    seen: where the stream stands beside its tables.
    before_metadata: does what has to be done before a driver starts, once nothing else is left to be decided.

    Raises
    ------
    CheckpointError: when a file cannot be removed or written.
    """
    files = open_checkpoint_files(seen.checkpoint, settings.object_store)
    store = open_checkpoint_files(copies_location(seen.checkpoint), settings.object_store)
    if repair.restores is not None:
        put_copy(files, store, repair.restores, reached)
    if seen.done is not None:
        forget_copies_behind(store, committed=seen.done)
    for path in repair.removes:
        _remove(files, path)
        reached(CrashPoint.FILE_CHANGED)
    _write(files, {path: text for path, text in repair.writes.items() if path != METADATA}, reached)
    before_metadata()
    _write(files, {path: text for path, text in repair.writes.items() if path == METADATA}, reached)


def write_log_entries(seen: StreamPosition, repair: CheckpointRepair, settings: Settings, reached: Reached) -> None:
    """Write what a repair brings back of the logs, and leave all else: as long as tables or ledger know later batches,
    they know where these end. Whoever is interrupted behind that finds it in the logs. An older copy of a checkpoint
    loses its `metadata` before: it has no later commit, which would keep a driver from starting behind a half of it. A
    plan that followed another batch goes before that batch is written as the tables have it: it would seem to follow.

    Parameters
    ----------
    seen: where the stream stands beside its tables.

    Raises
    ------
    CheckpointError: when a file cannot be written.
    """
    files = open_checkpoint_files(seen.checkpoint, settings.object_store)
    entries = {path: text for path, text in repair.writes.items() if path != METADATA}
    if METADATA in repair.removes and seen.done is not None and seen.committed <= seen.done:
        _remove(files, METADATA)
        reached(CrashPoint.FILE_CHANGED)
    for path in plans_of_others(seen, repair):
        _remove(files, path)
        reached(CrashPoint.FILE_CHANGED)
    _write(files, entries, reached)


def plans_of_others(seen: StreamPosition, repair: CheckpointRepair) -> Iterator[str]:
    """The plans that go and follow an entry that is written over, the newest first."""
    logged = log_files(seen.contents.files, OFFSETS) if seen.contents is not None else {}
    changed = min((number for number, one in logged.items() if one.path in repair.writes), default=None)
    for number, one in sorted(logged.items(), reverse=True):
        if changed is not None and number > changed and one.path in repair.removes:
            yield one.path


def _write(files: CheckpointFiles, writes: Mapping[str, str], reached: Reached) -> None:
    for path, text in writes.items():
        files.remove(hidden_checksum_path(path))  # Hadoop would compare the new content with it
        files.write_text(path, text)
        reached(CrashPoint.FILE_CHANGED)


def _remove(files: CheckpointFiles, path: str) -> None:
    """Remove a file after its checksums: a file without any is read as it is."""
    beside = checksum_path(path)
    for one in (hidden_checksum_path(beside), beside, hidden_checksum_path(path), path):
        files.remove(one)


def sentences_of_files(seen: StreamPosition, written: CheckpointRepair) -> Iterator[str]:
    """What is put into a checkpoint, and what is removed from it."""
    if (copy := written.restores) is not None:
        yield (
            f"Put the copy of {copy.copied_at:%Y-%m-%d %H:%M:%S} UTC, with {len(copy.files)} files behind batch "
            f"{copy.committed}, in the place of what is in {seen.checkpoint}."
        )
    removed = [path for path in written.removes if path != METADATA]
    if removed:
        yield f"Remove from {seen.checkpoint}: {_named(removed)}."
    yield f"Write into it: {_named(list(written.writes))}. It stands behind batch {written.stands_at} then."
    if written.replays:
        yield (
            f"The next start runs the batches {written.replays[0]} to {written.replays[-1]} again, one after another "
            "to the end that each had, for the state alone: their rows are in the tables and do not appear twice."
        )
    if written.runs_again is not None:
        yield f"Spark runs batch {written.runs_again} again; its rows are in the tables and do not appear twice."


def sentence_of_forgotten(recorded: int) -> str:
    """How many later batches the ledger forgets."""
    return (
        f"Forget {recorded:,} later batches in the ledger, with what their rules found; the event keeps their number."
    )


def sentence_of_rows(read_again: int | None, lost: int | None = 0, *, doubled: int | None = 0) -> str:
    """How many rows are read again, lost and doubled. Unset: unknown."""
    again, gone, twice = (f"{one:,}" if one is not None else "an unknown number" for one in (read_again, lost, doubled))
    rows = again if read_again is not None else f"{again[0].upper()}{again[1:]} of"
    return f"{rows} rows are read again, {gone} are lost, {twice} are doubled."


def sentences_of_repetition(stream: str, repeating: Sequence[str], read_again: int | None) -> Iterator[str]:
    """That outputs get rows a second time. read_again: how many rows are; unset when that is unknown."""
    if repeating and read_again != 0:
        yield (
            f"What {stream} reads again comes a second time to {', '.join(repeating)}: no mark shows what is there, "
            "and no batch is known there by its number."
        )


def _named(paths: list[str]) -> str:
    shown = ", ".join(paths[:6])
    return shown if len(paths) <= 6 else f"{shown} and {len(paths) - 6} more files"
