"""`sluice stream continue`: takes a stream past a gap in the history of its input, by a plan that is shown first.

Purpose: snapshots that the stream had not read were expired. When their rows can be proved to be a range of the files
of the oldest reachable snapshot, the stream reads exactly these, once. Otherwise a person chooses what is to happen.

How it works: a new generation begins with the checkpoint of the old one, in which the offset of the input is moved: the
newest batch that is done ends where the range begins, and the next batch is planned as the range. Spark runs a planned
batch to exactly its end. Batch numbers continue, so nothing that is published is published again.

What it does not do: streams with state are refused, because their state would have to be copied; so are streams with
several Iceberg inputs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from pyiceberg.catalog import Catalog

from sluice.checkpoints.checkpoint_files import CheckpointFiles, open_checkpoint_files
from sluice.checkpoints.compatibility import STATE_OPERATORS
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import CheckpointError, UsageError
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import (
    checkpoint_of,
    find_generation,
    open_next_generation,
    record_fingerprint,
    require_at_rest,
)
from sluice.ledger.records.event import Event, EventAction
from sluice.ledger.records.generation import GenerationObservation
from sluice.maintenance.reading_position import ReadingPosition, observe_reading_position
from sluice.settings import Settings
from sluice.sources.gap_files import GapRange, NotProved, live_files, plan_gap_range
from sluice.sources.iceberg_positions import StreamOffset
from sluice.sources.input_gap import InputGap, find_gap
from sluice.supervision.control_plans import ControlPlan, PlannedStep
from sluice.supervision.supervision_events import command_event
from sluice.tables.declared_tables import require_table

_EMPTY_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
"""What Spark writes into the commit log for a batch of a query without event time."""


class Continuation(StrEnum):
    """How a stream is taken past a gap. EXACT: its rows are read once. LEAVE_OUT: they are never read."""

    EXACT = "exact"
    LEAVE_OUT = "leave_out"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuationPlan(ControlPlan):
    """The plan of a continuation.

    leaves, opens: the generation that is left, and the one that begins. checkpoint: of the latter.
    gap: what is missing. rows_read: what the next batch reads. rows_left_out: the missing rows that are never read.
    files: the files of the new checkpoint, by path.
    """

    way: Continuation
    leaves: int
    opens: int
    checkpoint: str
    gap: InputGap
    rows_read: int
    rows_left_out: int
    files: dict[str, str]


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
    position = _require_simple(
        wanted, left, observe_reading_position(catalog, old, wanted.declaration, generation=left.generation)
    )
    table = require_table(catalog, position.table)
    gap = find_gap(table, name=position.table, position=position.offset.snapshot_id)
    if gap is None:
        raise UsageError(
            f"The history of {position.table} reaches back to where {wanted.name} continues: there is no gap.",
            next_step=f"Start it: `sluice stream start {wanted.name}`.",
        )
    found = plan_gap_range(gap, live_files(table, gap.resumes_at.snapshot_id), offset=position.offset)
    if isinstance(found, NotProved) and not leaves_out:
        raise _not_proved(wanted, gap, found)
    reads = found if isinstance(found, GapRange) and not leaves_out else None
    return _plan(wanted, settings, left=left, old=old, position=position, gap=gap, reads=reads)


def continue_stream(
    ledger: Ledger, wanted: LoadedStream, settings: Settings, plan: ContinuationPlan, *, asked_by: str
) -> GenerationObservation:
    """Carry out a plan: write the checkpoint of the new generation, then open it. A second try finishes a first one.

    Raises
    ------
    RunAlreadyLiveError, UsageError: when the stream is not at rest, or its generation was left meanwhile.
    CheckpointError: when the folder has files of another origin, or its storage does not answer.
    LedgerError: when the ledger cannot be reached.
    """
    require_at_rest(ledger, wanted.name)
    left = find_generation(ledger, wanted.name)
    new = open_checkpoint_files(plan.checkpoint, settings.object_store)
    if foreign := [seen.path for seen in new.list_files() if seen.path not in plan.files]:
        raise CheckpointError(
            f"{plan.checkpoint}, the folder of the new checkpoint, contains {foreign[0]} already.",
            next_step="Find out whose it is, and move it away.",
        )
    for path, text in plan.files.items():
        new.write_text(path, text)
    opened = open_next_generation(
        ledger,
        wanted.name,
        leaving=plan.leaves,
        checkpoints_root=settings.checkpoints,
        opened_by=asked_by,
        event=_event(wanted, plan, asked_by),
    )
    if left is not None and left.fingerprint:
        record_fingerprint(ledger, wanted.name, opened.generation, left.fingerprint)
    return opened


def _event(wanted: LoadedStream, plan: ContinuationPlan, asked_by: str) -> Event:
    return command_event(
        EventAction.CONTINUE,
        wanted.name,
        by=asked_by,
        explanation=" ".join(step.sentence for step in plan.steps[:2]),
        evidence={
            "way": plan.way,
            "leaves": plan.leaves,
            "opens": plan.opens,
            "checkpoint": plan.checkpoint,
            "missing_snapshots": [step.snapshot_id for step in plan.gap.missing],
            "rows_read": plan.rows_read,
            "rows_left_out": plan.rows_left_out,
        },
    )


def _require_simple(
    wanted: LoadedStream, left: GenerationObservation, position: ReadingPosition | None
) -> ReadingPosition:
    reread = f"To read again what is left: `sluice stream reset {wanted.name}`."
    if position is None:
        raise UsageError(
            f"Stream {wanted.name} cannot be continued past a gap: that needs exactly one Iceberg input and a batch "
            "that is done.",
            next_step=reread,
        )
    if left.fingerprint.get(STATE_OPERATORS):
        raise UsageError(
            f"Stream {wanted.name} keeps state, which cannot be carried into a new generation.", next_step=reread
        )
    return position


def _plan(
    wanted: LoadedStream,
    settings: Settings,
    *,
    left: GenerationObservation,
    old: CheckpointFiles,
    position: ReadingPosition,
    gap: InputGap,
    reads: GapRange | None,
) -> ContinuationPlan:
    opens = left.generation + 1
    checkpoint = checkpoint_of(wanted.name, opens, checkpoints_root=settings.checkpoints)
    # Without a range, the next batch begins with the files that the oldest reachable snapshot appended.
    start = StreamOffset(snapshot_id=gap.resumes_at.snapshot_id, position=0, scan_all_files=False)
    what = (
        f"Leave out {gap.rows:,} rows of {len(gap.missing)} expired snapshots for good; the next batch begins with "
        f"snapshot {gap.resumes_at.snapshot_id}."
    )
    if reads is not None:
        start = reads.start_offset
        what = (
            f"Read {reads.rows:,} rows in one batch: files {reads.first} to {reads.end - 1} of snapshot "
            f"{reads.snapshot_id}. They are the rows of the {len(gap.missing)} expired snapshots and of that one; each "
            "of these appended only, and every file of theirs is live."
        )
    sentences = (
        f"Input {position.input}: {gap}.",
        what,
        *(_ambiguous_merges(wanted) if reads is not None else ()),
        f"Leave generation {left.generation} after batch {position.batch}; its checkpoint {left.checkpoint} is kept.",
        f"Open generation {opens} with the checkpoint {checkpoint}, which continues behind batch {position.batch}.",
        f"{wanted.name} stays stopped until it is started.",
    )
    return ContinuationPlan(
        verb="continue",
        stream=wanted.name,
        steps=tuple(PlannedStep(sentence=sentence) for sentence in sentences),
        way=Continuation.LEAVE_OUT if reads is None else Continuation.EXACT,
        leaves=left.generation,
        opens=opens,
        checkpoint=checkpoint,
        gap=gap,
        rows_read=0 if reads is None else reads.rows,
        rows_left_out=gap.rows if reads is None else 0,
        files=_checkpoint_files(old, position, start=start, reads=reads),
    )


def _ambiguous_merges(wanted: LoadedStream) -> Iterator[str]:
    """The outputs that cannot merge a batch in which a key occurs more than once, as it may in a long gap."""
    for name, declared in wanted.declaration.outputs.items():
        output = declared.iceberg
        if output is not None and output.mode == "merge" and not output.ordering:
            yield (
                f"Output {name} merges by {', '.join(output.keys)} without an `ordering_column`: if the missing rows "
                "hold a key more than once, their batch fails. Declare one first."
            )


def _checkpoint_files(
    old: CheckpointFiles, position: ReadingPosition, *, start: StreamOffset, reads: GapRange | None
) -> dict[str, str]:
    """The files of the new checkpoint: the query's id, its sources, and one or two batches of its logs."""
    files = {seen.path: old.read_text(seen.path) for seen in old.list_files("sources")}
    files["metadata"] = old.read_text("metadata")
    files[f"offsets/{position.batch}"] = position.moved_to(start)
    files[f"commits/{position.batch}"] = old.read_text(f"commits/{position.batch}") or _EMPTY_COMMIT
    if reads is not None:
        files[f"offsets/{position.batch + 1}"] = position.moved_to(reads.end_offset)
    return {path: text for path, text in files.items() if text is not None and not path.endswith(".crc")}


def _not_proved(wanted: LoadedStream, gap: InputGap, found: NotProved) -> UsageError:
    return UsageError(
        f"The rows that {wanted.name} has not read cannot be proved: {found.reason}. Known: {gap}.",
        next_step=f"Choose: `sluice stream continue {wanted.name} --leave-out` never reads them and continues with "
        f"the oldest reachable snapshot; `sluice stream reset {wanted.name}` rereads what the table's history still "
        "has, which doubles rows of an appended output and replaces those of a merged one.",
    )
