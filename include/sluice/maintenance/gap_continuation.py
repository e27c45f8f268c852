"""`sluice stream continue`: takes a stream past a gap in the history of its input, by a plan that is shown first.

Purpose: snapshots that the stream had not read were expired. When their rows can be proved to be a range of the files
of a reachable snapshot, the stream reads exactly these, once. Otherwise a person chooses what is to happen. An input
that was rolled back, replaced, or deleted and created again is continued where the two meet, or at its beginning
(`source_moves`); a target that was created again is accepted as it is, with `--leave-out`.

How it works: a new generation begins with the checkpoint of the old one, its state included, in which the offsets of
the cut inputs are moved: the newest batch that is done ends where the range begins, and the next one is planned as the
range; inputs that are whole stand still in it. Batch numbers continue, so nothing that is published is published again.

What it does not do: a stream with state whose newest batch is visible and not committed in the checkpoint is refused:
the watermark behind that batch, which the state of the next one depends on, is nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.checkpoints.checkpoint_files import STATE, CheckpointFiles, open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import BEGUN, METADATA, REPLAY, query_id_in, refuse_pending_replay
from sluice.checkpoints.compatibility import STATE_OPERATORS
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import UsageError
from sluice.ledger.batches import newest_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.events import Event, EventAction
from sluice.ledger.generations import (
    GenerationObservation,
    checkpoint_of,
    find_generation,
)
from sluice.ledger.next_generation import open_next_generation, require_at_rest
from sluice.maintenance.continuation import (
    Continuation,
    ContinuationPlan,
    ContinuationWay,
    SourceGap,
    ambiguous_merges,
    distinct_gaps,
    plan_checkpoint,
    sentences_of_gap,
    write_checkpoint,
)
from sluice.maintenance.reading_position import ReadingPosition, SourcePosition, observe_reading_position
from sluice.maintenance.source_moves import (
    SourceMove,
    keep_planned,
    move_to_branch,
    move_to_new_table,
    move_to_new_topics,
    refuse_unadopted,
)
from sluice.maintenance.unpublished_batches import Unpublished, find_unpublished, unpublished_refusal
from sluice.operations import OperationPlan, OperationVerb, Stake, steps_of
from sluice.publication.chain import BEFORE_THE_FIRST_BATCH
from sluice.settings import Settings
from sluice.sources.gap_files import GapRange, NotProved, ends_of, live_files, plan_gap_range, unread_rows
from sluice.sources.iceberg_positions import history_of
from sluice.sources.input_gap import InputGap, find_branch, find_gap
from sluice.sources.source_identities import Replaced, find_replaced, observe_identities
from sluice.supervision.supervision_values import command_event
from sluice.tables.declared_tables import require_table

_LAST_STEPS = ("Leave generation", "Open generation", "Copy its state")
"""How the sentences begin that every continuation has; an event does not repeat them."""


def plan_continuation(
    ledger: Ledger, catalog: Catalog, wanted: LoadedStream, settings: Settings, *, leaves_out: bool
) -> ContinuationPlan:
    """What `continue_stream` would do now. Nothing is changed, and the stream need not be stopped.

    Parameters
    ----------
    leaves_out: leave the missing rows out, instead of reading them exactly once.

    Raises
    ------
    UsageError: when there is no gap, or the rows cannot be proved; the message names the choices.
    CheckpointError, DeliveryError, LakehouseError, LedgerError: when something cannot be read.
    """
    left = find_generation(ledger, wanted.name)
    if left is None:
        raise UsageError(f"Stream {wanted.name} has never been started: there is nothing to continue.")
    old = open_checkpoint_files(left.checkpoint, settings.object_store)
    refuse_pending_replay(wanted.name, old.list_files(REPLAY))
    keeps_state = bool(left.fingerprint.get(STATE_OPERATORS) or old.list_files(STATE))
    reading = _observe_left(ledger, catalog, wanted, old, left, leaves_out=leaves_out)
    position = _require_known(wanted, reading, keeps_state=keeps_state)
    seen = observe_identities(wanted.declaration, settings, catalog)
    replaced = find_replaced(left.identities, seen)
    moves = tuple(_moves(catalog, wanted, settings, position, replaced))
    accepts = _accepted(wanted, replaced, leaves_out=leaves_out)
    moved = {one.line for one in moves}
    whole = [one for one in position.sources if one.line not in moved]
    gaps = [found for one in whole if (found := _find(catalog, wanted, one, leaves_out=leaves_out))]
    is_skipped = wanted.declaration.direct_output is not None and not position.is_committed
    if not gaps and not moves and not accepts and not is_skipped:
        raise _no_gap(wanted, position)
    _refuse_unshown(wanted, position, leaves_out=leaves_out)
    cut = {one.source.line for one in gaps}
    still = [one for one in whole if one.line not in cut]
    kept = [keep_planned(one, require_table(catalog, one.table), stream=wanted.name) for one in still]
    unpublished = find_unpublished(
        ledger, catalog, wanted, generation=left.generation, position=position, keeps_state=keeps_state
    )
    if unpublished and not leaves_out:
        raise unpublished_refusal(wanted, unpublished)
    return _plan(
        wanted,
        settings,
        left=left,
        old=old,
        position=position,
        gaps=gaps,
        moves=(*moves, *filter(None, kept)),
        accepts=accepts,
        unpublished=unpublished,
    )


def continue_stream(
    ledger: Ledger, catalog: Catalog, wanted: LoadedStream, settings: Settings, plan: ContinuationPlan, *, asked_by: str
) -> GenerationObservation:
    """Carry out a plan: write the checkpoint of the new generation, then open it. A second try finishes a first one.

    A run may have begun and ended since the plan was shown: what it made visible would be read and published again.

    Raises
    ------
    RunAlreadyLiveError, UsageError: when the stream is not at rest, or the plan would be another one now.
    CheckpointError: when the folder has files of another origin, or its storage does not answer.
    """
    require_at_rest(ledger, wanted.name)
    leaves_out = plan.seen.way is ContinuationWay.LEAVE_OUT
    plan_continuation(ledger, catalog, wanted, settings, leaves_out=leaves_out).require_same(plan.digest)
    left, planned = find_generation(ledger, wanted.name), plan.seen
    # What is planned is what there is: another thing of the same name would be another plan.
    seen = observe_identities(wanted.declaration, settings, catalog)
    new = open_checkpoint_files(planned.checkpoint, settings.object_store)
    old = open_checkpoint_files(planned.continues, settings.object_store)
    write_checkpoint(old, new, planned.content, stream=wanted.name)
    return open_next_generation(
        ledger,
        wanted.name,
        leaving=planned.leaves,
        checkpoints_root=settings.checkpoints,
        opened_by=asked_by,
        event=_event(wanted, plan, asked_by),
        query_id=query_id_in(planned.content.texts.get(METADATA, "")),
        continues_behind=planned.content.batch,
        fingerprint=None if left is None else left.fingerprint,
        identities=seen,
    )


def _observe_left(
    ledger: Ledger,
    catalog: Catalog,
    wanted: LoadedStream,
    old: CheckpointFiles,
    left: GenerationObservation,
    *,
    leaves_out: bool,
) -> ReadingPosition | None:
    """Where the stream stands in the generation that is left."""
    newest = newest_batch(ledger, wanted.name, generation=left.generation)
    is_begun = left.begun_at is not None or old.read_text(BEGUN) is not None  # the ledger may be an older copy
    return observe_reading_position(
        catalog,
        old,
        wanted.declaration,
        generation=left.generation,
        begun_since=left.may_deliver_since if is_begun else None,
        is_left=True,
        gives_up=leaves_out,
        delivered=BEFORE_THE_FIRST_BATCH if newest is None else newest.key.batch,
    )


def _no_gap(wanted: LoadedStream, position: ReadingPosition) -> UsageError:
    tables = ", ".join(dict.fromkeys(one.table for one in position.sources))
    history = f"The history of {tables} reaches back to" if tables else "Its inputs are those of"
    return UsageError(
        f"{history} where {wanted.name} continues: there is no gap.",
        next_step=f"Start it: `sluice stream start {wanted.name}`.",
    )


def _event(wanted: LoadedStream, plan: ContinuationPlan, asked_by: str) -> Event:
    return command_event(
        EventAction.CONTINUE,
        wanted.name,
        by=asked_by,
        explanation=" ".join(step.sentence for step in plan.steps if not step.sentence.startswith(_LAST_STEPS)),
        evidence=plan.evidence,
    )


def _require_known(wanted: LoadedStream, position: ReadingPosition | None, *, keeps_state: bool) -> ReadingPosition:
    reread = f"To read again what is left: `sluice stream reset {wanted.name}`."
    if position is None:
        raise UsageError(
            f"Stream {wanted.name} cannot be continued past a gap: that needs a batch that is done, and "
            "offsets in the checkpoint of which it is known of which table they are.",
            next_step=f"`sluice stream repair {wanted.name} --dry-run` writes a lost checkpoint back. {reread}",
        )
    if keeps_state and not position.is_committed:
        raise UsageError(
            f"Stream {wanted.name} keeps state, and its driver ended between the publication of batch {position.batch} "
            "and its commit in the checkpoint: the watermark behind that batch, by which the next one drops late rows "
            "and closes windows, was never written.",
            next_step=reread,
        )
    return position


def _moves(
    catalog: Catalog,
    wanted: LoadedStream,
    settings: Settings,
    position: ReadingPosition,
    replaced: Sequence[Replaced],
) -> Iterator[SourceMove]:
    """The moves of inputs that are not any more what the position is in."""
    if kinesis := [one for one in replaced if one.is_kinesis]:
        raise UsageError(
            f"{kinesis[0]}; a position in it cannot be moved to the new one.",
            next_step=f"Read every input again: `sluice stream reset {wanted.name}`.",
        )
    for source in position.sources:
        table = require_table(catalog, source.table)
        refuse_unadopted(source, table)
        another = next((one for one in replaced if one.is_input_table(source.table)), None)
        if another is not None:
            yield move_to_new_table(source, another, table)
        elif branch := find_branch(table, name=source.table, position=source.offset.snapshot_id):
            yield move_to_branch(source, branch, table, stream=wanted.name)
    yield from move_to_new_topics(position, wanted.declaration, replaced, settings)


def _accepted(wanted: LoadedStream, replaced: Sequence[Replaced], *, leaves_out: bool) -> tuple[str, ...]:
    """A sentence for each target that was created again and is taken as it is."""
    outputs = [one for one in replaced if one.is_output]
    if outputs and not leaves_out:
        raise UsageError(
            f"{'; '.join(map(str, outputs))}. The rows that {wanted.name} had published into it are gone.",
            next_step=f"Choose: `sluice stream continue {wanted.name} --leave-out` continues without them, "
            f"`sluice stream reset {wanted.name}` reads the inputs again.",
        )
    return tuple(f"{one}: the rows that were published into it are gone and are not brought back." for one in outputs)


def _find(catalog: Catalog, wanted: LoadedStream, source: SourcePosition, *, leaves_out: bool) -> SourceGap | None:
    table = require_table(catalog, source.table)
    gap = find_gap(table, name=source.table, position=source.offset.snapshot_id)
    if gap is None:
        return None
    if leaves_out:
        unread = unread_rows(table, gap, offset=source.offset, planned=source.planned)
        return SourceGap(source=source, gap=gap, reads=None, unread=unread)
    found = _prove(table, gap, source)
    if isinstance(found, NotProved):
        raise _not_proved(wanted, source, gap, found)
    return SourceGap(source=source, gap=gap, reads=found)


def _prove(table: Table, gap: InputGap, source: SourcePosition) -> GapRange | NotProved:
    """The first range that is proved; why none is, of the one that is asked last: it reads least."""
    reachable = tuple(history_of(table))[::-1]
    found: GapRange | NotProved = NotProved(reason="the table has no history")
    for end in ends_of(reachable):
        behind = reachable[: reachable.index(end) + 1]
        found = plan_gap_range(gap, live_files(table, end.snapshot_id), offset=source.offset, followed_by=behind)
        if isinstance(found, GapRange):
            break
    return found


def _plan(
    wanted: LoadedStream,
    settings: Settings,
    *,
    left: GenerationObservation,
    old: CheckpointFiles,
    position: ReadingPosition,
    gaps: Sequence[SourceGap],
    moves: Sequence[SourceMove],
    accepts: Sequence[str],
    unpublished: Unpublished,
) -> ContinuationPlan:
    opens = left.generation + 1
    checkpoint = checkpoint_of(wanted.name, opens, checkpoints_root=settings.checkpoints)
    content = plan_checkpoint(
        old,
        position,
        starts={one.source.line: one.start.text() for one in gaps} | {one.line: one.start for one in moves},
        ends={one.source.line: one.reads.end_offset.text() for one in gaps if one.reads is not None}
        | {one.line: one.end for one in moves if one.end is not None},
    )
    gives_up = bool(accepts or unpublished or position.unshown)
    is_exact = not gives_up and all(one.reads is not None for one in gaps)
    distinct = distinct_gaps(gaps)
    sentences = (
        *(sentence for one in distinct for sentence in sentences_of_gap(one, has_state=bool(content.state))),
        *dict.fromkeys(sentence for one in moves for sentence in one.sentences),
        *accepts,
        *([f"Give up {unpublished}, for good."] if unpublished else ()),
        *_sentences_of_unshown(position),
        *(ambiguous_merges(wanted) if is_exact else ()),
        f"Leave generation {left.generation} after batch {position.batch}; its checkpoint {left.checkpoint} is kept.",
        f"Open generation {opens} with the checkpoint {checkpoint}, which continues behind batch {position.batch}.",
        *([f"Copy its state: {len(content.state):,} files, {content.state_bytes:,} bytes."] if content.state else ()),
        f"{wanted.name} stays stopped until it is started.",
    )
    found = Continuation(
        way=ContinuationWay.EXACT if is_exact else ContinuationWay.LEAVE_OUT,
        leaves=left.generation,
        opens=opens,
        after_batch=position.batch,
        continues=left.checkpoint,
        checkpoint=checkpoint,
        gaps=tuple(gaps),
        moves=tuple(moves),
        accepts=tuple(accepts),
        rows_read=sum(one.reads.rows for one in distinct if one.reads) + sum(one.rows or 0 for one in moves),
        rows_left_out=sum(one.gap.rows + (one.unread or 0) for one in distinct if one.reads is None),
        rows_given_up=unpublished.rows,
        content=content,
    )
    return OperationPlan(
        verb=OperationVerb.CONTINUE,
        subject=wanted.name,
        seen=found,
        steps=steps_of(*sentences),
        at_stake=Stake.CHECKPOINT,
        rows=found.rows_read + found.rows_left_out + found.rows_given_up,
        evidence=found.evidence,
    )


def _sentences_of_unshown(position: ReadingPosition) -> Iterator[str]:
    """What may become of a batch in outputs of which nothing shows whether they have it."""
    for name in position.unshown:
        yield f"Batch {position.planned} may be missing in {name}: it is not read again."


def _refuse_unshown(wanted: LoadedStream, position: ReadingPosition, *, leaves_out: bool) -> None:
    """Read again, a batch may be twice in an output that has it already, and of which nothing shows that."""
    if not position.unshown or leaves_out:
        return
    raise UsageError(
        f"The driver of {wanted.name} ended in batch {position.planned}, and nothing shows whether "
        f"{', '.join(position.unshown)} has it.",
        next_step=f"Choose: `sluice stream continue {wanted.name} --leave-out` does not read it again, "
        f"`sluice stream reset {wanted.name}` reads the inputs again.",
    )


def _not_proved(wanted: LoadedStream, source: SourcePosition, gap: InputGap, found: NotProved) -> UsageError:
    return UsageError(
        f"The rows that {wanted.name} has not read from its input {source.input} cannot be proved: {found.reason}. "
        f"Known: {gap}.",
        next_step=f"Choose: `sluice stream continue {wanted.name} --leave-out` never reads them and continues with "
        f"the oldest reachable snapshot; `sluice stream reset {wanted.name}` rereads what the table's history still "
        "has, which doubles rows of an appended output and replaces those of a merged one.",
    )
