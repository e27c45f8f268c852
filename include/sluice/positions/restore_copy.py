"""The copies of a stream's state: listed, and put in the place of what is left of a checkpoint that has lost its state.

    `metadata` goes ─► all other files go, commits first ─► state comes, then offsets, then commits ─► `metadata` comes

How it works: a copy is a checkpoint that was whole at its batch. What `decide_repair` makes of it beside the tables
decides whether it helps: it does when it stands at their newest batch, or one before it; behind an older one, the next
run runs the batches between again (`decide_replay`). It has to be of the same query and to end where the tables say
that its batch ends, and tables may not have been set back behind that batch since: what was read again, or under the
same name before, has another state. Until the last commit is written nothing but a copy helps, and no run starts
without `metadata`; so the same command completes what was interrupted.

Each batch between a copy and the tables is run again to exactly the end that it had, by the run that starts next, which
publishes nothing of them (`sluice_spark.run.state_replay`). So each has to be known, and to read again what it has
read.

Known limitation: of state that counts in processing time, a batch has the time at which the ledger knows it began.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from sluice.checkpoints.checkpoint_copies import (
    CheckpointCopy,
    CopiedCheckpoint,
    CopiedFile,
    Rehearsal,
    copies_location,
    find_rehearsal,
    list_copies,
)
from sluice.checkpoints.checkpoint_files import CheckpointFiles, open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import (
    COMMITS,
    METADATA,
    OFFSETS,
    REPLAY,
    FileObservation,
    batch_metadata,
    entry_of,
    is_hidden,
    log_files,
    metadata_of,
    offsets_of,
    query_id_in,
)
from sluice.checkpoints.compatibility import STATE_MEANING, STATE_OPERATORS
from sluice.checkpoints.observe_checkpoint import observe_checkpoint
from sluice.errors import CheckpointError, CheckpointStorageError
from sluice.ledger.generations import GenerationObservation
from sluice.operations import Refusal, RefusalReason
from sluice.positions.repair_decision import CheckpointRepair, decide_repair
from sluice.positions.stream_position import KnownBatch, StreamPosition, Witness, canonical_end, source_lines
from sluice.publication.crash_points import CrashPoint, Reached
from sluice.settings import ObjectStoreSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class StateCopies:
    """The copies of a checkpoint with state, newest first. rehearsals: of those that were rehearsed, by name.
    problem: why they are unknown; empty otherwise."""

    copies: tuple[CheckpointCopy, ...] = ()
    rehearsals: Mapping[str, Rehearsal] = field(default_factory=dict, hash=False)
    problem: str = ""

    @property
    def is_usable(self) -> bool:
        """Whether nothing shows that a lost state could not be put back."""
        found = self.rehearsals.get(self.copies[0].clock) if self.copies else None
        return not self.problem and (found is None or not found.problem)

    def sentence(self, *, newest_batch: int | None) -> str:
        """The newest one, for a person. newest_batch: that is committed; it says how far the copy is behind."""
        if self.problem:
            return f"the copies of its state are unknown: {self.problem}"
        if not self.copies:
            return "its state has no copy yet: the next orderly stop makes one"
        newest = self.copies[0]
        behind = 0 if newest_batch is None else max(0, newest_batch - newest.committed)
        return (
            f"the newest copy of its state stands behind batch {newest.committed}, {behind} before the newest one, "
            f"made {newest.copied_at:%Y-%m-%d %H:%M:%S} UTC; {len(self.copies)} kept; {self._rehearsed(newest)}"
        )

    def _rehearsed(self, copy: CheckpointCopy) -> str:
        if (found := self.rehearsals.get(copy.clock)) is None:
            return "not rehearsed yet"
        at = f"rehearsed {found.rehearsed_at:%Y-%m-%d %H:%M:%S} UTC"
        return f"{at}: it does not do, {found.problem}" if found.problem else f"{at}, in {found.seconds:.0f} s"

    def document(self, *, now: datetime) -> Mapping[str, Any]:
        """All of them, for a program."""
        return {
            "problem": self.problem or None,
            "copies": [
                {
                    "copied_at": one.copied_at.isoformat(),
                    "age_seconds": round((now - one.copied_at).total_seconds(), 3),
                    "batch": one.committed,
                    "files": len(one.files),
                    "bytes": sum(file.size_bytes for file in one.files),
                    "rehearsal": None
                    if (seen := self.rehearsals.get(one.clock)) is None
                    else seen.model_dump(mode="json"),
                }
                for one in self.copies
            ],
        }


def decide_write(seen: StreamPosition, object_store: ObjectStoreSettings) -> CheckpointRepair | Refusal:
    """What brings the checkpoint to where the tables stand: what is there of it, or a copy while no driver runs."""
    decided = decide_repair(seen)
    if isinstance(decided, Refusal) and not seen.is_live:
        return decide_restore(seen, object_store) or decided
    return decided


def decide_restore(seen: StreamPosition, object_store: ObjectStoreSettings) -> CheckpointRepair | Refusal | None:
    """The repair that begins with the newest copy that helps; none where there is none, and a refusal where the copies
    do not answer: an older one, or none, would lead away from the one that cannot be read just now.

    Parameters
    ----------
    seen: a position whose checkpoint cannot be written back as it is.
    """
    if seen.contents is None or not seen.checkpoint:
        return None
    store = open_checkpoint_files(copies_location(seen.checkpoint), object_store)
    try:
        return next((found for copy in list_copies(store) if (found := _with(copy, store, seen)) is not None), None)
    except CheckpointStorageError as error:
        return Refusal(
            reason=RefusalReason.OTHER_REMEDY,
            sentence=f"Whether a copy of the state of {seen.stream} helps is unknown: {error.message}",
            next_step=f"`sluice stream repair {seen.stream} --dry-run` looks again, once they can be read.",
        )


def _with(copy: CheckpointCopy, store: CheckpointFiles, seen: StreamPosition) -> CheckpointRepair | None:
    copied = CopiedCheckpoint(store, copy)
    try:
        contents = observe_checkpoint(copied, is_whole=True)
    except CheckpointStorageError:  # it says nothing about the copy
        raise
    except CheckpointError:  # it is damaged, and the one before it need not be
        return None
    restored = replace(seen, contents=contents)
    at_tables = decide_repair(restored)
    decided = decide_replay(restored) if isinstance(at_tables, Refusal) else at_tables
    if decided is None or seen.is_another_since(decided.stands_at, copy.token):
        return None
    if not _is_of_tables(restored, contents.texts, decided):
        return None
    if decided.runs_again is not None and restored.lost_input(decided.runs_again):
        return None
    metadata = json.dumps({"id": restored.query_id}, separators=(",", ":"))
    writes = {path: text for path, text in decided.writes.items() if path != METADATA}
    return replace(decided, restores=copy, writes={**writes, METADATA: metadata})


def _is_of_tables(restored: StreamPosition, texts: Mapping[str, str], decided: CheckpointRepair) -> bool:
    """Whether a copy is of the query that is known, ends where the tables or the ledger say that its batch ends, and
    knows what a batch reads that is run again: a source of files finds that in the checkpoint alone."""
    stands = decided.stands_at
    if restored.own_memory and (decided.runs_again or stands) > restored.planned:
        return False
    of_copy = texts.get(f"{OFFSETS}/{stands}")
    ends = restored.end_of(stands)
    if ends is None or of_copy is None or query_id_in(texts.get(METADATA, "")) != restored.query_id:
        return False
    if restored.sources:
        return canonical_end(offsets_of(of_copy), restored.sources) == ends
    return _values(canonical_end(offsets_of(of_copy), ())) == _values(ends)  # in which order only the ledger knew


def _values(ends: str) -> list[str]:
    return sorted(map(json.dumps, json.loads(ends).values()))


def put_copy(files: CheckpointFiles, store: CheckpointFiles, copy: CheckpointCopy, reached: Reached) -> None:
    """Put a copy in the place of a checkpoint, without its `metadata`.

    Raises
    ------
    CheckpointError: when a file of the copy is damaged: then nothing is changed. When a storage does not answer.
    """
    copied = CopiedCheckpoint(store, copy)
    for one in copy.files:
        copied.read_bytes(one.path)
    for seen in _in_order_of_removal(files.list_files()):
        files.remove(seen.path)
        reached(CrashPoint.FILE_CHANGED)
    for one in _in_order_of_writing(copy):
        content = copied.read_bytes(one.path)
        files.write_bytes(one.path, content or b"")
        reached(CrashPoint.FILE_CHANGED)


def _in_order_of_removal(listed: Sequence[FileObservation]) -> Iterator[FileObservation]:
    """`metadata` first, then checksums, so that a file without any is read as it is; then the newest commits."""
    logs = [log_files(listed, log) for log in (COMMITS, OFFSETS)]
    entries = [log[number] for log in logs for number in sorted(log, reverse=True)]
    first = [one for one in listed if one.path == METADATA or is_hidden(one.path)]
    first.sort(key=lambda one: one.path != METADATA)
    taken = {one.path for one in (*first, *entries)}
    yield from (*first, *entries, *(one for one in listed if one.path not in taken))


def _in_order_of_writing(copy: CheckpointCopy) -> Iterator[CopiedFile]:
    """The state, the offsets, and the commits in rising order."""

    def place(one: CopiedFile) -> tuple[int, int]:
        folder, _, name = one.path.rpartition("/")
        log = (OFFSETS, COMMITS).index(folder) + 1 if folder in (OFFSETS, COMMITS) else 0
        return log, int(name) if log and name.isdecimal() else 0

    yield from sorted((one for one in copy.files if one.path != METADATA), key=place)


def decide_replay(seen: StreamPosition) -> CheckpointRepair | None:
    """What is written into a checkpoint that stands more than one batch behind the tables; none where a batch is not
    known, or may read something else now.

    Parameters
    ----------
    seen: with a checkpoint whose state is whole at its newest commit.
    """
    stands, done = seen.committed, seen.done
    if done is None or not 0 <= stands < done - 1 or seen.newest_visible > done or _reads_otherwise(seen):
        return None
    behind = [known for number in range(stands + 1, done + 1) if (known := seen.batches.get(number)) is not None]
    if len(behind) < done - stands or not _has_planned(seen, behind[0]):
        return None
    at_state = decide_repair(seen.as_behind(stands))
    entries = dict(_entries(seen, behind))
    if not isinstance(at_state, CheckpointRepair) or at_state.stands_at != stands or len(entries) < len(behind):
        return None
    logs = {path: text for path, text in at_state.writes.items() if path != METADATA}
    newest = max(done, seen.newest_taken_back)
    read = [seen.batches.get(number) for number in range(stands + 1, newest + 1)]
    rows = [None if known is None else known.rows for known in read]
    return replace(
        at_state,
        replays=tuple(known.number for known in behind),
        writes={**logs, **entries},
        reads_from=behind[0].starts or (seen.batches[stands].ends if stands in seen.batches else None),
        reads_until=seen.end_of(newest),
        rows_read_again=None if None in rows else sum(one or 0 for one in rows),
    )


def _reads_otherwise(seen: StreamPosition) -> bool:
    return bool(seen.own_memory) or seen.has_static_inputs or seen.has_other_outputs


def _has_planned(seen: StreamPosition, first: KnownBatch) -> bool:
    """Whether the checkpoint has planned the first of the batches as it was, or not at all."""
    text = seen.contents.texts.get(f"{OFFSETS}/{first.number}") if seen.contents is not None else None
    return text is None or canonical_end(offsets_of(text), _sources(seen, first.ends)) == first.ends


def _sources(seen: StreamPosition, ends: str) -> tuple[str, ...]:
    return seen.sources or tuple(json.loads(ends))


def _entries(seen: StreamPosition, behind: Sequence[KnownBatch]) -> Iterator[tuple[str, str]]:
    texts = seen.contents.texts if seen.contents is not None else {}
    conf = json.loads(metadata_of(texts[f"{OFFSETS}/{seen.committed}"])).get("conf", {})
    for known in behind:
        lines = source_lines(known.ends, _sources(seen, known.ends))
        if lines is not None and known.planned_at is not None:
            metadata = batch_metadata(conf, planned_at=known.planned_at, watermark=known.watermark)
            yield f"{REPLAY}/{known.number}", entry_of(metadata, lines)


def observe_state_copies(
    generation: GenerationObservation | None, object_store: ObjectStoreSettings
) -> StateCopies | None:
    """The copies of the checkpoint of a generation; none when the ledger knows of no state."""
    known = {} if generation is None else generation.fingerprint
    if generation is None or not (known.get(STATE_OPERATORS) or known.get(STATE_MEANING)):
        return None
    try:
        store = open_checkpoint_files(copies_location(generation.checkpoint), object_store)
        copies = list_copies(store)
        found = {one.clock: rehearsal for one in copies if (rehearsal := find_rehearsal(store, one)) is not None}
        return StateCopies(copies=copies, rehearsals=found)
    except CheckpointError as error:
        return StateCopies(problem=error.message)


def with_copies(
    seen: StreamPosition, object_store: ObjectStoreSettings, unknown: MutableMapping[Witness, str]
) -> StreamPosition:
    """The position with its copies, where the ledger does not know whether the query keeps state: they show it then.

    Parameters
    ----------
    unknown: gets the checkpoint where they do not answer: what it lacks is not known without them.
    """
    if not seen.checkpoint or STATE_OPERATORS in seen.fingerprint:
        return seen
    try:
        store = open_checkpoint_files(copies_location(seen.checkpoint), object_store)
        return replace(seen, has_copies=bool(list_copies(store)))
    except CheckpointError as error:
        unknown.setdefault(Witness.CHECKPOINT, str(error))
        return replace(seen, contents=None)
