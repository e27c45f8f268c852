"""Writes a decided repair into the folder of a checkpoint, file by file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

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
