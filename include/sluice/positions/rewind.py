"""What a rewind takes back, how many rows are at stake, the sentences that say so, and why it is refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sluice.ledger.connection import Ledger
from sluice.ledger.held_batches import find_held
from sluice.operations import Refusal, RefusalReason
from sluice.positions.adoption import sentence_of_lookup
from sluice.positions.judge_position import disagreeing, judge_position
from sluice.positions.repair_decision import CheckpointRepair
from sluice.positions.repair_stream import not_at_rest, other_remedies
from sluice.positions.repair_writes import sentence_of_forgotten, sentence_of_rows, sentences_of_files
from sluice.positions.rewind_target import PassedReader, RewoundTable, UnknownReader
from sluice.positions.source_reach import InputLoss
from sluice.positions.stream_position import Agreement, StreamPosition, Witness
from sluice.publication.marks import ADOPT, position_in_history
from sluice.publication.staged_batch import StagedOutput
from sluice.publication.start_check import known_rejections
from sluice.sources.source_identities import another_before, ids_of_inputs


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


def refusals_of_rewind(ledger: Ledger, rewind: Rewind, now: StreamPosition) -> Iterator[Refusal]:
    """What blocks a rewind, apart from the readers. now: the position as it is before."""
    seen = rewind.seen
    yield from not_at_rest(ledger, seen)
    yield from other_remedies(disagreeing(judge_position(seen)))
    yield from _of_ledger(now)
    for table in rewind.tables:
        yield from _refusals_of_table(table, now, batch=rewind.batch)
    yield from _of_batches(ledger, rewind)
    yield from _of_inputs(seen, batch=rewind.batch)
    if seen.has_other_outputs:
        yield Refusal(
            reason=RefusalReason.NOT_YET,
            sentence=f"{seen.stream} has outputs that cannot go back: what was delivered there stays, and would be "
            "delivered a second time.",
            next_step="Replace what is wrong in its tables by a backfill.",
        )


def _of_ledger(now: StreamPosition) -> Iterator[Refusal]:
    """Without the generation in the ledger nothing is known of its rejected batches and of the ids of its inputs, and
    no start would accept what the rewind leaves."""
    for one in disagreeing(judge_position(now)):
        if one.witness is Witness.LEDGER and one.agreement is not Agreement.UNKNOWN:
            yield Refusal(
                reason=RefusalReason.OTHER_REMEDY,
                sentence=f"{str(one)[0].upper()}{str(one)[1:]}.",
                next_step=f"Write it back first: `sluice stream repair {now.stream} --dry-run`.",
            )


def refusal_of_reader(reader: PassedReader | UnknownReader) -> Refusal:
    """Why a stream that reads a table blocks the rewind."""
    if isinstance(reader, UnknownReader):
        return Refusal(
            reason=RefusalReason.READERS_REPEAT,
            sentence=f"{reader}.",
            next_step=f"Look first: `sluice checkpoint check {reader.stream}`. With `--leave-readers` it is not asked.",
        )
    along = "" if reader.back_to is None else ", or together with this: `--with-readers`"
    return Refusal(
        reason=RefusalReason.READERS_REPEAT,
        sentence=f"{reader}: it would get these rows a second time.",
        next_step=f"Take it back first: `{reader.command}`{along}. With `--leave-readers` what it has published stays.",
    )


def _refusals_of_table(table: RewoundTable, now: StreamPosition, *, batch: int) -> Iterator[Refusal]:
    name, stream = table.name, now.stream
    yield from _of_marks(table)
    if table.goal is None:
        yield _without_goal(table, now, batch=batch)
    if table.foreign:
        rows = sum(one.rows for one in table.foreign)
        yield Refusal(
            reason=RefusalReason.OTHER_WRITERS,
            sentence=f"{name} was written by others since batch {batch} of {stream}, and {rows:,} rows of theirs would "
            f"be lost: {'; '.join(map(str, table.foreign[:6]))}.",
            next_step=f"Choose a batch behind them, or replace what is wrong alone: `sluice backfill {stream} --help`.",
        )
    for one in table.left:
        yield Refusal(
            reason=RefusalReason.OTHER_WRITERS,
            sentence=f"The mark of {one} was set on {name} since batch {batch} of {stream}.",
            next_step=f"Choose a batch behind that: `sluice table history {name}` shows the snapshots.",
        )


def _of_marks(table: RewoundTable) -> Iterator[Refusal]:
    """A rollback of which others' rows are a part is adopted first. Marks of the stream alone that main does not hold
    are set back with the others: so a rewind that was interrupted is completed."""
    others = [one for one in table.broken if one not in table.outputs]
    is_missing = table.broken and (table.missing is None or table.missing)
    if others or is_missing:
        what = f"of {others[0]}" if others else f"of {table.broken[0]}, with commits of others"
        yield Refusal(
            reason=RefusalReason.OTHER_REMEDY,
            sentence=f"Main of {table.name} was rolled back behind the mark {what}, and what becomes of that is not "
            "decided.",
            next_step=f"Adopt it first: `{ADOPT.format(table=table.name)}` shows what that changes.",
        )


def _without_goal(table: RewoundTable, now: StreamPosition, *, batch: int) -> Refusal:
    """No snapshot shows the batch: it has not come so far, or what shows it is gone."""
    name, stream = table.name, now.stream
    for output in table.outputs:
        at = position_in_history(table.table, output)
        if at is None or (at.generation, at.batch) < (now.number, batch):
            shows = "no batch" if at is None else f"batch {at.generation}:{at.batch}"
            return Refusal(
                reason=RefusalReason.NOT_PROVABLE,
                sentence=f"{name} does not show batch {now.number}:{batch} of {output}: {shows} is its newest one.",
                next_step=f"Choose an earlier batch of generation {now.number}: `sluice batch list {stream}` shows "
                "them.",
            )
    return Refusal(
        reason=RefusalReason.NOT_PROVABLE,
        sentence=f"No snapshot in the history of {name} shows {stream} up to batch {batch}: it was expired, or the "
        "batch became visible together with later ones.",
        next_step=f"Choose another batch: `sluice batch list {stream}` shows them, `sluice table history {name}` "
        "the snapshots.",
    )


def _of_batches(ledger: Ledger, rewind: Rewind) -> Iterator[Refusal]:
    seen, tables = rewind.seen, [(one.table, output) for one in rewind.tables for output in one.outputs]
    numbers = known_rejections(ledger, tables, stream=seen.stream, generation=seen.number)
    if taken := sorted(one for one in numbers if one > rewind.batch):
        yield Refusal(
            reason=RefusalReason.NOT_PROVABLE,
            sentence=f"Batch {seen.number}:{taken[0]} of {seen.stream} was rejected: read again, its number would "
            "get other rows, which count as rejected.",
            next_step=f"Choose batch {taken[-1]}, or a later one.",
        )
    if find_held(ledger, seen.stream) is not None:
        yield Refusal(
            reason=RefusalReason.BATCH_HELD,
            sentence=f"A staged batch of {seen.stream} waits for a person.",
            next_step=f"Decide about it first: `sluice batch list {seen.stream}`.",
        )


def _of_inputs(seen: StreamPosition, *, batch: int) -> Iterator[Refusal]:
    """An input that is not the one any more that the batch has read: its offsets are of another thing."""
    if seen.generation is None or Witness.SOURCES in seen.unknown:
        return
    known = seen.generation.identities
    for name in sorted(ids_of_inputs(known)):
        is_another = another_before(name, then=known, seen=seen.identities) > batch
        if name not in seen.identities or is_another:
            why = "is not there" if name not in seen.identities else "was deleted and created again since"
            yield Refusal(
                reason=RefusalReason.SOURCE_GONE,
                sentence=f"Batch {seen.number}:{batch} of {seen.stream} has read {name}, which {why}: what came after "
                "it cannot be read again.",
                next_step="Choose a later batch, or replace what is wrong in its tables by a backfill.",
            )
