"""What a continuation leaves, reads and opens, and the sentences that say so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.maintenance.continued_checkpoint import ContinuedCheckpoint
from sluice.maintenance.reading_position import SourcePosition
from sluice.maintenance.source_moves import SourceMove
from sluice.operations import OperationPlan
from sluice.sources.gap_files import GapRange
from sluice.sources.iceberg_positions import StreamOffset
from sluice.sources.input_gap import InputGap


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
