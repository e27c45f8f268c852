"""Why a stream and its tables are not taken back to a batch, with what would be lost, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator

from sluice.ledger.connection import Ledger
from sluice.ledger.held_batches import find_held
from sluice.operations import Refusal, RefusalReason
from sluice.positions.judge_position import disagreeing, judge_position
from sluice.positions.passed_readers import PassedReader, UnknownReader
from sluice.positions.repair_stream import not_at_rest, other_remedies
from sluice.positions.rewind import Rewind
from sluice.positions.rewind_target import RewoundTable
from sluice.positions.stream_position import Agreement, StreamPosition, Witness
from sluice.publication.marks import ADOPT, position_in_history
from sluice.publication.start_check import known_rejections
from sluice.sources.source_identities import another_before, ids_of_inputs


def refusals_of_rewind(ledger: Ledger, rewind: Rewind, now: StreamPosition) -> Iterator[Refusal]:
    """What blocks a rewind, apart from the readers. now: the position as it is before."""
    seen = rewind.seen
    yield from not_at_rest(ledger, seen)
    yield from other_remedies(disagreeing(judge_position(seen)))
    yield from _of_ledger(now)
    for table in rewind.tables:
        yield from _of_table(table, now, batch=rewind.batch)
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


def _of_table(table: RewoundTable, now: StreamPosition, *, batch: int) -> Iterator[Refusal]:
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
