"""What a rewind takes back, how many rows are at stake, and the sentences that say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.positions.adoption import sentence_of_lookup
from sluice.positions.passed_readers import PassedReader, UnknownReader
from sluice.positions.repair_decision import CheckpointRepair
from sluice.positions.repair_sentences import sentence_of_forgotten, sentence_of_rows, sentences_of_files
from sluice.positions.rewind_target import RewoundTable
from sluice.positions.source_reach import InputLoss
from sluice.positions.stream_position import StreamPosition
from sluice.publication.staged_batch import StagedOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewind:
    """What goes back, and to where.

    seen: the position as it will be found once the tables are set back.
    checkpoint: what is written into it, and what is read again; unset where it cannot be taken back.
    losses: what the inputs do not have any more of what is read again, or where that is not known.
    staged: by output, the snapshots of staged batches beyond the batch. recorded: how many of these the ledger has.
    readers: the streams that have read what goes. unknown: those of which that cannot be seen. lookups: those that look
        a table up from which something goes, with the table.
    """

    seen: StreamPosition
    batch: int
    tables: tuple[RewoundTable, ...]
    checkpoint: CheckpointRepair | None
    losses: tuple[InputLoss, ...] = ()
    staged: Mapping[StagedOutput, tuple[int, ...]] = field(default_factory=dict, hash=False)
    recorded: int = 0
    readers: tuple[PassedReader, ...] = ()
    unknown: tuple[UnknownReader, ...] = ()
    lookups: tuple[tuple[str, str], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether the stream stands there already, and nothing of a former try is left."""
        is_there = all(one.goal is not None and one.commits is None for one in self.tables)
        is_written = self.checkpoint is not None and not self.checkpoint.is_empty
        return is_there and not is_written and not self.staged and not self.recorded

    @property
    def rows_hidden(self) -> int:
        """The rows that readers do not see any more, or see again, in all tables."""
        return sum(one.rows for table in self.tables for one in table.hidden)

    @property
    def rows_lost(self) -> int | None:
        """The rows that were read, and that the inputs do not have any more; unset when their number is unknown."""
        rows = [one.rows for one in self.losses if one.is_lost]
        if self.checkpoint is not None and self.checkpoint.reads_until is None:
            return None
        return None if None in rows else sum(one or 0 for one in rows)

    @property
    def rows_read_again(self) -> int | None:
        """The rows that were read, and are read again; unset when their number is unknown."""
        rows, lost = 0 if self.checkpoint is None else self.checkpoint.rows_read_again, self.rows_lost
        return None if rows is None or lost is None else max(0, rows - lost)

    @property
    def evidence(self) -> dict[str, Any]:
        """The facts, for a program."""
        written = self.checkpoint
        return {
            "generation": self.seen.number,
            "batch": self.batch,
            "tables": {one.name: _of_table(one) for one in self.tables},
            "rows_hidden": self.rows_hidden,
            "rows_read_again": self.rows_read_again,
            "rows_lost": self.rows_lost,
            "stands_at": self.batch if written is None else written.stands_at,
            "runs_again": None if written is None else written.runs_again,
            "removes": [] if written is None else list(written.removes),
            "writes": {} if written is None else dict(written.writes),
            "staged": {str(output): list(found) for output, found in self.staged.items()},
            "recorded": self.recorded,
            "readers": {one.stream: list(one.batches) for one in self.readers},
            "unknown_readers": [one.stream for one in self.unknown],
            "lookups": [stream for stream, _ in self.lookups],
        }


def sentences_of(rewind: Rewind) -> Iterator[str]:
    """What is done, step by step."""
    seen = rewind.seen
    if rewind.is_empty:
        yield f"{seen.stream} stands at batch {seen.number}:{rewind.batch}: nothing is changed."
        return
    if rewind.staged:
        staged = sum(map(len, rewind.staged.values()))
        yield f"Discard {staged} staged snapshots of later batches; their input is read again."
    for table in rewind.tables:
        yield from _of_main(table, batch=rewind.batch)
    if rewind.recorded:
        yield sentence_of_forgotten(rewind.recorded)
    if rewind.checkpoint is not None:
        if not rewind.checkpoint.is_empty:
            yield from sentences_of_files(seen, rewind.checkpoint)
        for loss in rewind.losses:
            yield f"Of its input {loss.input}: {loss.sentence}."
        yield sentence_of_rows(rewind.rows_read_again, rewind.rows_lost)
    for reader in rewind.readers:
        yield f"{reader}. What it has published of them stays: `sluice stream continue {reader.stream} --dry-run`."
    for unknown in rewind.unknown:
        yield f"{unknown}."
    yield from (sentence_of_lookup(*one) for one in rewind.lookups)
    yield f"Nothing is started. Then: `sluice stream start {seen.stream}`."


def _of_main(table: RewoundTable, *, batch: int) -> Iterator[str]:
    commits = table.commits
    if commits is None:
        return
    if commits.goal is not None:
        added, removed = sum(one.added for one in table.hidden), sum(one.removed for one in table.hidden)
        kept = "; a tag keeps them for a week" if commits.is_tagged else ""
        yield (
            f"Set main of {table.name} from snapshot {commits.head} to snapshot {commits.goal}: {len(table.hidden)} "
            f"commits with {added:,} added and {removed:,} removed rows are not in it then{kept}."
        )
    for one in commits.outputs:
        yield f"Set the mark of {one.names} back from batch {one.found.at.batch} to batch {batch}."


def _of_table(table: RewoundTable) -> dict[str, Any]:
    goal = None if table.goal is None else table.goal.snapshot_id
    return {
        "head": table.table.metadata.current_snapshot_id,
        "goal": goal,
        "hides": [one.snapshot_id for one in table.hidden],
        "marks": [str(one.names) for one in table.commits.outputs] if table.commits is not None else [],
    }
