"""What a continuation leaves, reads and opens, the sentences that say so, and the checkpoint that it begins with.

The files of the old checkpoint are copied, its state at the version behind that batch included. The offsets of some
sources are moved in the entry of the batch; a batch that reads exactly up to given offsets is planned as the next one,
and Spark runs a planned batch as it is. All other sources stand still in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sluice.checkpoints.checkpoint_files import CheckpointFiles, copy_files, state_files
from sluice.checkpoints.checkpoint_layout import (
    BEGUN,
    COMMITS,
    EMPTY_COMMIT,
    METADATA,
    OFFSETS,
    FileObservation,
    log_files,
    metadata_of,
    next_batch_metadata,
    planned_time,
)
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import CheckpointError
from sluice.maintenance.reading_position import ReadingPosition, SourcePosition
from sluice.maintenance.source_moves import SourceMove
from sluice.operations import OperationPlan
from sluice.sources.gap_files import GapRange
from sluice.sources.iceberg_positions import StreamOffset
from sluice.sources.input_gap import InputGap


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedCheckpoint:
    """The contents of the new checkpoint.

    batch: the one that it continues behind.
    texts: the files that are written, by path.
    state: the files of the old checkpoint that are copied.
    """

    batch: int
    texts: Mapping[str, str]
    state: tuple[FileObservation, ...]

    @property
    def state_bytes(self) -> int:
        """The size of the copied state."""
        return sum(seen.size_bytes for seen in self.state)


class ContinuationWay(StrEnum):
    """How a stream is taken past a gap. EXACT: its rows are read once. LEAVE_OUT: they are never read."""

    EXACT = "exact"
    LEAVE_OUT = "leave_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceGap:
    """What is missing behind the position of one source. reads: the files that are its rows; none leaves them out.
    unread: the rows of the snapshot at the position that are left out as well; none when their number is unknown."""

    source: SourcePosition
    gap: InputGap
    reads: GapRange | None
    unread: int | None = 0

    @property
    def start(self) -> StreamOffset:
        """Where the next batch starts. Without a range, with the files that the oldest reachable snapshot appended."""
        if self.reads is not None:
            return self.reads.start_offset
        return StreamOffset(snapshot_id=self.gap.resumes_at.snapshot_id, position=0, scan_all_files=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """What a continuation leaves, reads and opens.

    leaves, opens: the generation that is left, and the one that begins. after_batch: the newest one that is done.
    continues, checkpoint: their checkpoints.
    gaps: what is missing, of each source that is cut. moves: of sources that are not any more what they were.
    accepts: the tables that are taken as they are: they were created again, and published rows are gone.
    rows_read: what the next batch reads, and at least what the next ones read of moved sources.
    rows_left_out: the missing rows that are never read, as far as they are known. rows_given_up: those that were read
        and never become visible.
    content: of the new checkpoint.
    """

    way: ContinuationWay
    leaves: int
    opens: int
    after_batch: int
    continues: str
    checkpoint: str
    gaps: tuple[SourceGap, ...]
    moves: tuple[SourceMove, ...]
    accepts: tuple[str, ...]
    rows_read: int
    rows_left_out: int
    rows_given_up: int
    content: ContinuedCheckpoint

    @property
    def evidence(self) -> dict[str, Any]:
        """The facts, without the content of the checkpoint."""
        return {
            "way": self.way,
            "leaves": self.leaves,
            "opens": self.opens,
            "after_batch": self.after_batch,
            "continues": self.continues,
            "checkpoint": self.checkpoint,
            "missing_snapshots": [step.snapshot_id for one in distinct_gaps(self.gaps) for step in one.gap.missing],
            "resumes_at": [one.gap.resumes_at.snapshot_id for one in distinct_gaps(self.gaps)],
            "rows_read": self.rows_read,
            "rows_left_out": self.rows_left_out,
            "rows_given_up": self.rows_given_up,
            "moves": {str(one.line): one.start for one in self.moves},
            "accepts": list(self.accepts),
        }


ContinuationPlan = OperationPlan[Continuation]


def distinct_gaps(gaps: Sequence[SourceGap]) -> tuple[SourceGap, ...]:
    """The gaps without those of an input that is read more than once, from the same position."""
    return tuple({(one.source.input, one.gap.position): one for one in gaps}.values())


def sentences_of_gap(one: SourceGap, *, has_state: bool) -> tuple[str, str]:
    """What is missing of an input, and what becomes of it."""
    gap, reads = one.gap, one.reads
    named = f"Input {one.source.input}: {gap}."
    if reads is None:
        state = " They are missing in the stream's state as well." if has_state else ""
        number = "an unknown number of" if one.unread is None else f"{one.unread:,}"
        rest = "" if one.unread == 0 else f" and {number} rows of snapshot {gap.position}, which was read in part,"
        return named, (
            f"Leave out {gap.rows:,} rows of {len(gap.missing)} expired snapshots{rest} for good; the next batch "
            f"begins with snapshot {gap.resumes_at.snapshot_id}.{state}"
        )
    return named, (
        f"Read {reads.rows:,} rows in one batch: files {reads.first} to {reads.end - 1} of snapshot "
        f"{reads.snapshot_id}. They are the rows of the {len(gap.missing)} expired snapshots and of "
        f"{_reachable(reads.reachable)}; each of these appended only, and every file of theirs is live."
    )


def _reachable(count: int) -> str:
    return "that one" if count == 1 else f"the {count} up to that one"


def ambiguous_merges(wanted: LoadedStream) -> Iterator[str]:
    """The outputs that cannot merge a batch in which a key occurs more than once, as it may in a long gap."""
    for name, declared in wanted.declaration.outputs.items():
        output = declared.iceberg
        if output is not None and output.mode == "merge" and not output.ordering:
            yield (
                f"Output {name} merges by {', '.join(output.keys)} without an `ordering_column`: if the missing rows "
                "hold a key more than once, their batch fails. Declare one first."
            )


def plan_checkpoint(
    old: CheckpointFiles,
    position: ReadingPosition,
    *,
    starts: Mapping[int, str],
    ends: Mapping[int, str],
) -> ContinuedCheckpoint:
    """The checkpoint that continues behind a batch. Nothing is written.

    Parameters
    ----------
    starts: by line of the batch's entry, the offset at which the next batch starts to read. ends: at which it ends;
        none leaves the next batch to Spark, and otherwise sources without one stand still in it.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    texts = {seen.path: old.read_text(seen.path) for seen in old.list_files("sources")}
    texts["metadata"] = old.read_text("metadata")
    commit = old.read_text(f"commits/{position.batch}") or EMPTY_COMMIT
    texts |= _before(old, position)
    texts[f"offsets/{position.batch}"] = position.moved_to(starts)
    texts[f"commits/{position.batch}"] = commit
    if ends:
        metadata = next_batch_metadata(position.metadata, commit)
        texts[f"offsets/{position.batch + 1}"] = position.moved_to({**starts, **ends}, metadata=metadata)
    return ContinuedCheckpoint(
        batch=position.batch,
        texts={path: text for path, text in texts.items() if text is not None and not path.endswith(".crc")},
        state=state_files(old, version=position.batch + 1),
    )


def _before(old: CheckpointFiles, position: ReadingPosition) -> dict[str, str | None]:
    """The batch before the newest one that is done. Spark reads its entry at each start behind batch 0, and refuses a
    checkpoint without one; it is taken for the start of nothing, so the newest one's will do where it was removed.

    Source: `MicroBatchExecution.populateStartOffsets` of Spark 4.1.
    """
    if position.batch == 0:
        return {}
    before = position.batch - 1
    return {
        f"offsets/{before}": old.read_text(f"offsets/{before}") or position.offsets,
        f"commits/{before}": old.read_text(f"commits/{before}") or EMPTY_COMMIT,
    }


def _is_of_a_try(old: CheckpointFiles, new: CheckpointFiles, files: Sequence[FileObservation]) -> bool:
    """Whether a folder has only what an earlier try to continue the same query can have written: no run has committed a
    batch in it behind those of the old checkpoint."""
    if any(one.path == BEGUN for one in files):
        return False
    planned, committed = log_files(files, OFFSETS), log_files(files, COMMITS)
    if not planned and not committed:
        return new.read_text(METADATA) in (None, old.read_text(METADATA))  # the state is copied first
    done, known = max(committed, default=-1), max(log_files(old.list_files(COMMITS), COMMITS), default=-1)
    is_own = all(_is_copied(old, new, number, behind=done) for number in planned if number > done)
    return new.read_text(METADATA) == old.read_text(METADATA) and done <= known and is_own


def _is_copied(old: CheckpointFiles, new: CheckpointFiles, batch: int, *, behind: int) -> bool:
    """Whether the entry of a batch has the time of another one, as what a try writes: of the same number in the old
    checkpoint, of the next one where that was removed there, or of the one that it is planned behind. A plan of Spark
    has a time of its own."""
    copied = {_planned_at(new, behind), _planned_at(old, batch), _planned_at(old, batch + 1)}
    return _planned_at(new, batch) in copied - {""}


def _planned_at(checkpoint: CheckpointFiles, batch: int) -> str:
    """When a batch was planned, as its entry in the log has it; empty where that cannot be read."""
    entry = checkpoint.read_text(f"{OFFSETS}/{batch}")
    try:
        return "" if entry is None else planned_time(json.loads(metadata_of(entry))).isoformat()
    except (IndexError, ValueError):
        return ""


def write_checkpoint(old: CheckpointFiles, new: CheckpointFiles, content: ContinuedCheckpoint, *, stream: str) -> None:
    """Write a planned checkpoint. A second try completes a first one, also one that was planned in another way.

    Raises
    ------
    CheckpointError: when the folder has files of another origin, or a storage does not answer.
    """
    own = {*content.texts, *(seen.path for seen in content.state)}
    files = new.list_files()
    foreign = [seen.path for seen in files if seen.path not in own]
    if foreign and not _is_of_a_try(old, new, files):
        raise CheckpointError(
            f"{new.location}, the folder of the new checkpoint, contains {foreign[0]} already. It may be that of a "
            "generation that the ledger does not know, as an older copy.",
            next_step=f"If it is, write the generation back first: `sluice stream repair {stream} --dry-run`. "
            "Otherwise find out whose it is, and move it away.",
        )
    for path in foreign:
        new.remove(path)
    copy_files(old, new, content.state)
    for path, text in content.texts.items():
        new.write_text(path, text)
