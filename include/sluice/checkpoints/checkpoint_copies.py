"""Copies of a checkpoint, in a folder beside those of the streams: `.copies/STREAM/GENERATION`.

    CLOCK.json       what a copy holds: the path, length, time and SHA-256 of each file; it comes last
    CLOCK.rehearsed  when it was last put back on trial, and what came of that
    files/SHA256     the content of a file, which several copies may name

Purpose: the state of a stream is in its checkpoint alone. How it works: a file that the copy before holds as it is, is
not read again, and a content that is there is not written again; so a copy costs what was written since, and one that
broke off has not worked in vain. A copy counts from its index on. What no index names goes with the next copy.

Known limitation: a file is taken as unchanged by its length and the time of its last change, unless that is so young
that a second change need not show. What is read back is compared with its SHA-256.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from hashlib import sha256

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from sluice.checkpoints.checkpoint_files import STATE, CheckpointFiles
from sluice.checkpoints.checkpoint_layout import (
    CHECKSUM_SUFFIX,
    COMMITS,
    OFFSETS,
    FileObservation,
    is_hidden,
    log_files,
    state_stores,
)
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import CheckpointError

KEPT_COPIES = 2
"""How many copies of a generation are kept: when the newest one cannot be read, there is another."""

_REHEARSED = ".rehearsed"
"""The ending of what is kept of a rehearsal."""

_COPIES, _FILES, _INDEX = ".copies", "files", ".json"

_YOUNG = timedelta(minutes=1)
"""A file that changed so short before the copy is read again by the next one: object stores record seconds, and their
clock need not be ours."""

AT_ONCE = 8
"""How many files are read or written at once: enough to hide an object store's latency."""

LARGE_BYTES = 32 * 1024 * 1024
"""A file from here on is read alone: it is in memory while it is copied, and a driver has little of it."""

_STATE_FOLDER = f"{STATE}/"

_log = logging.getLogger(__name__)


class CopiedFile(BaseModel):
    """One file of a copy. modified_at: of the file that was copied."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    size_bytes: int
    modified_at: AwareDatetime
    sha256: str

    @property
    def kept_at(self) -> str:
        """Where its content is, below the folder of the copies."""
        return f"{_FILES}/{self.sha256}"


class CheckpointCopy(BaseModel):
    """One copy. committed: the newest batch that it has committed; -1 for none. token: of the run that has made it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    copied_at: AwareDatetime
    committed: int
    token: int
    files: tuple[CopiedFile, ...]

    @property
    def planned(self) -> int:
        """The newest batch that it has planned; -1 for none."""
        numbers = (one.path.removeprefix(f"{OFFSETS}/") for one in self.files if one.path.startswith(f"{OFFSETS}/"))
        return max((int(one) for one in numbers if one.isdecimal()), default=-1)

    @property
    def clock(self) -> str:
        """Its name: copies are in the order of theirs."""
        return self.copied_at.strftime("%Y%m%dT%H%M%S%fZ")


def copies_location(checkpoint: str) -> str:
    """Where the copies of the checkpoint of a generation lie: not below it, and not below its stream's folder."""
    return folder_beside(checkpoint, _COPIES)


def folder_beside(checkpoint: str, folder: str) -> str:
    """The folder of the checkpoint of a generation below another one beside those of the streams."""
    root, stream, generation = checkpoint.rstrip("/").rsplit("/", 2)
    return f"{root}/{folder}/{stream}/{generation}"


def list_copies(store: CheckpointFiles) -> tuple[CheckpointCopy, ...]:
    """The copies, newest first. One whose index cannot be read is left out.

    Parameters
    ----------
    store: the folder from `copies_location`.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    return tuple(_read(store, _indexes(store.list_files())))


def forget_copies_behind(store: CheckpointFiles, *, committed: int, planned: int | None = None) -> None:
    """Remove the copies that have committed later batches: tables were set back, and these get other states. What only
    they hold goes with the next copy.

    Parameters
    ----------
    planned: where it is given, those go too that have planned a later batch, because it is to be planned again.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    for copy in list_copies(store):
        if copy.committed > committed or (planned is not None and copy.planned > planned):
            store.remove(f"{copy.clock}{_INDEX}")


def _indexes(listed: Sequence[FileObservation]) -> list[str]:
    names = (seen.path for seen in listed if "/" not in seen.path and not is_hidden(seen.path))
    return sorted((path for path in names if path.endswith(_INDEX)), reverse=True)


def _read(store: CheckpointFiles, indexes: Sequence[str]) -> Iterator[CheckpointCopy]:
    for path in indexes:
        try:
            yield CheckpointCopy.model_validate_json(store.read_bytes(path) or b"")
        except ValidationError as error:
            _log.warning("%s of %s is no index of a copy: %s", path, store.location, error)


def copy_checkpoint(
    checkpoint: CheckpointFiles, store: CheckpointFiles, *, now: datetime, token: int, require: Callable[[], None]
) -> CheckpointCopy | None:
    """Copy a checkpoint, and let the oldest copies go. Its query may run meanwhile: the copy is what a crash would have
    left when the copy began.

    Parameters
    ----------
    store: the folder from `copies_location`.
    now: by the clock of the ledger, which all hosts share. token: of the run.
    require: raises when the copy has to be given up, as when the checkpoint may be another run's by now. It is asked
        before each file, and once more when all are read.

    Returns
    -------
    The newest copy; none where the checkpoint has no state, and follows from the tables without a copy.

    Raises
    ------
    CheckpointError: when a storage does not answer, or a file is gone without which the copy would not be whole. The
        copies from before are there.
    """
    found = _as_of_now(checkpoint)
    if not any(seen.path.startswith(_STATE_FOLDER) for seen in found):
        return None
    kept = store.list_files()
    copies = list(_read(store, _indexes(kept)))
    there = {one.path: one.size_bytes for one in kept}
    before = _unchanged_since(copies[0], there) if copies else {}
    copying = _Copying(checkpoint=checkpoint, store=store, require=require, before=before, there=there)
    files = tuple(_each(found, copying.copied))
    require()
    if copies and files == copies[0].files:
        return copies[0]
    committed = max(log_files(found, COMMITS), default=-1)
    copy = CheckpointCopy(copied_at=now, committed=committed, token=token, files=files)
    store.write_text(f"{copy.clock}{_INDEX}", copy.model_dump_json())
    _let_go(store, kept, copies=[copy, *copies])
    return copy


def _as_of_now(checkpoint: CheckpointFiles) -> tuple[FileObservation, ...]:
    """The files to copy, though a query may write meanwhile. Spark writes what a batch reads, its offsets, its state
    and its commit in this order, and what a full state refers to before that. So what comes late is looked at first:
    entries of the logs and versions of the state of which these looks know nothing are left out of the last one."""
    commits = log_files(checkpoint.list_files(COMMITS), COMMITS)
    offsets = log_files(checkpoint.list_files(OFFSETS), OFFSETS)
    states = [one for store in state_stores(checkpoint.list_files(STATE)).values() for one in store]
    planned = max(commits, default=-1) + 1
    known = {seen.path for seen in commits.values()} | {one.file.path for one in states if one.version <= planned + 1}
    known |= {seen.path for number, seen in offsets.items() if number <= planned}
    files = checkpoint.list_files()
    later = {seen.path for log in (COMMITS, OFFSETS) for seen in log_files(files, log).values()}
    later |= {found.file.path for store in state_stores(files).values() for found in store}
    return tuple(seen for seen in files if not is_hidden(seen.path) and (seen.path in known or seen.path not in later))


def _is_removed_when_old(seen: FileObservation) -> bool:
    """Whether Spark removes a file by its age, and what is left shows what it is of. A file to which a state of RocksDB
    refers does not: which of the states needs it stands in these alone."""
    of_state = replace(seen, path=seen.path.removesuffix(CHECKSUM_SUFFIX))
    return seen.path.startswith((f"{OFFSETS}/", f"{COMMITS}/")) or bool(state_stores([of_state]))


_Identity = tuple[str, int, datetime]


def _identity(seen: FileObservation | CopiedFile) -> _Identity:
    return seen.path, seen.size_bytes, seen.modified_at


def _unchanged_since(copy: CheckpointCopy, there: Mapping[str, int]) -> Mapping[_Identity, CopiedFile]:
    """The files that need not be read again: neither young, nor lost from among the copies."""
    old = (one for one in copy.files if one.modified_at < copy.copied_at - _YOUNG)
    return {_identity(one): one for one in old if there.get(one.kept_at) == one.size_bytes}


def _each(
    found: Sequence[FileObservation], copied: Callable[[FileObservation], CopiedFile | None]
) -> Iterator[CopiedFile]:
    """Copy the small files beside each other, then the large ones one after another."""
    large = [seen for seen in found if seen.size_bytes >= LARGE_BYTES]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        small = list(pool.map(copied, (seen for seen in found if seen.size_bytes < LARGE_BYTES)))
    yield from (one for one in (*small, *map(copied, large)) if one is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Copying:
    """A copy that is being made. before: the files that are kept as they are. there: the lengths of what is kept.
    written: the path that has written a content, so that two files with the same one do not at once."""

    checkpoint: CheckpointFiles
    store: CheckpointFiles
    require: Callable[[], None]
    before: Mapping[_Identity, CopiedFile]
    there: Mapping[str, int]
    written: dict[str, str] = field(default_factory=dict)

    def copied(self, seen: FileObservation) -> CopiedFile | None:
        """Copy one file; none when it is gone and Spark removes its kind when it is old: whether the rest suffices is
        judged before a restore.

        Raises
        ------
        CheckpointError: when another one is gone.
        """
        self.require()
        if (known := self.before.get(_identity(seen))) is not None:
            return known
        content = self.checkpoint.read_bytes(seen.path)
        if content is None and _is_removed_when_old(seen):
            return None
        if content is None:
            raise CheckpointError(
                f"{seen.path} of {self.checkpoint.location} was removed while the checkpoint was copied.",
                next_step="The copies from before are there; the next one reads what is there then.",
            )
        digest = sha256(content).hexdigest()
        one = CopiedFile(path=seen.path, size_bytes=len(content), modified_at=seen.modified_at, sha256=digest)
        is_there = self.there.get(one.kept_at) == len(content)
        if not is_there and self.written.setdefault(digest, seen.path) == seen.path:
            self.store.write_bytes(one.kept_at, content)
        return one


def _let_go(store: CheckpointFiles, listed: Sequence[FileObservation], *, copies: Sequence[CheckpointCopy]) -> None:
    """Remove what the newest copies do not need: indexes first, so that no index names a file that is gone."""
    kept = copies[:KEPT_COPIES]
    needed = {one.kept_at for copy in kept for one in copy.files}
    needed |= {f"{copy.clock}{ending}" for copy in kept for ending in (_INDEX, _REHEARSED)}
    for seen in sorted(listed, key=lambda one: "/" in one.path):
        if seen.path not in needed:
            store.remove(seen.path)


@dataclass(frozen=True)
class CopiedCheckpoint:
    """The checkpoint that a copy holds. See `sluice.checkpoints.checkpoint_files.ReadableCheckpoint`."""

    store: CheckpointFiles
    copy: CheckpointCopy

    @property
    def location(self) -> str:
        """The URI of the folder of the copies."""
        return self.store.location

    def list_files(self, folder: str = "") -> Sequence[FileObservation]:
        """Every file below `folder`."""
        return [
            FileObservation(path=one.path, size_bytes=one.size_bytes, modified_at=one.modified_at)
            for one in self.copy.files
            if not folder or one.path.startswith(f"{folder}/")
        ]

    def read_text(self, path: str) -> str | None:
        """The text of one file, unset when it does not exist."""
        content = self.read_bytes(path)
        return None if content is None else content.decode("utf-8", errors="replace")

    def read_bytes(self, path: str) -> bytes | None:
        """The content of one file as it was copied, unset when the copy has none.

        Raises
        ------
        CheckpointError: when it is not what was copied, or the storage does not answer.
        """
        one = self._by_path.get(path)
        if one is None:
            return None
        content = self.store.read_bytes(one.kept_at)
        if content is None or sha256(content).hexdigest() != one.sha256:
            what = "is gone" if content is None else "is not what was copied"
            raise CheckpointError(
                f"{one.kept_at} of the copies {self.location}, which holds {path}, {what}: the copy of "
                f"{self.copy.copied_at} is damaged.",
                next_step="The copy before it may be whole: a repair looks at each of them.",
            )
        return content

    @cached_property
    def _by_path(self) -> Mapping[str, CopiedFile]:
        return {one.path: one for one in self.copy.files}


_REHEARSALS = ".rehearsals"


class Rehearsal(BaseModel):
    """What came of putting a copy back on trial.

    batch: the batch that was run again on it. seconds: how long that took, from the first file to the state that was
    compared. problem: why the copy, or what the batch reads, does not do; empty where the state came out equal.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rehearsed_at: AwareDatetime
    batch: int
    seconds: float
    problem: str = ""


def rehearsal_location(checkpoint: str) -> str:
    """Where a copy of the checkpoint of a generation is put back on trial."""
    return folder_beside(checkpoint, _REHEARSALS)


def why_not_rehearsed(stream: StreamDeclaration) -> str:
    """Why no batch of a stream can be run again to compare its state, for half a sentence; empty where one can."""
    for name, declared in sorted(stream.inputs.items()):
        if declared.puts_files_away:
            return f"the files of its input {name} are put away once they are read"
        if not declared.is_stream:
            return f"each batch reads its input {name} as it is then"
    return ""


def record_rehearsal(store: CheckpointFiles, copy: CheckpointCopy, rehearsal: Rehearsal) -> None:
    """Keep what came of a rehearsal beside its copy.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    store.write_text(f"{copy.clock}{_REHEARSED}", rehearsal.model_dump_json())


def find_rehearsal(store: CheckpointFiles, copy: CheckpointCopy) -> Rehearsal | None:
    """The newest rehearsal of a copy; none when there was none, or when what is kept of it cannot be read.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    path = f"{copy.clock}{_REHEARSED}"
    try:
        text = store.read_text(path)
        return None if text is None else Rehearsal.model_validate_json(text)
    except ValidationError as error:
        _log.warning("%s of %s says nothing of a rehearsal: %s", path, store.location, error)
        return None
