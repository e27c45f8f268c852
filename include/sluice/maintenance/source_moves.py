"""How a continuation moves the position of a stream in one input, and what that means for rows.

Besides a gap there are inputs that are not any more what the position is in: a table that was rolled back or replaced,
and a topic or a table that was deleted and created again. Of these the stream continues at the common ancestor, or at
the beginning of the new one. An input that stands still keeps the read that a continuation before has planned.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from pyiceberg.table import Table

from sluice.checkpoints.checkpoint_layout import HEADER_LINES
from sluice.declarations.source_declarations import KafkaSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import CheckpointError, UsageError
from sluice.maintenance.reading_position import ReadingPosition, SourcePosition
from sluice.publication.marks import ADOPT, rolled_back_marks
from sluice.settings import KafkaConnection, Settings
from sluice.sources.gap_files import live_files
from sluice.sources.iceberg_positions import BEGINNING, StreamOffset, TableStep, history_of, step_of
from sluice.sources.input_gap import InputBranch
from sluice.sources.source_identities import Replaced
from sluice.sources.table_starts import NeedsAppend, Unreachable, observe_files, plan_whole_table

if TYPE_CHECKING:
    from sluice.sources.kafka_topics import KafkaTopics


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceMove:
    """A moved line of the offset log. start: where the next batch starts. end: where it ends; none leaves it to Spark.

    rows: that the stream reads there, as far as they are there now; none when their number is unknown.
    """

    line: int
    start: str
    end: str | None
    rows: int | None
    sentences: tuple[str, ...]


def refuse_unadopted(source: SourcePosition, table: Table) -> None:
    """Refuse to follow a table back that may be set forward again: what it would then show again was read already.

    Raises
    ------
    UsageError: while a person has to adopt the table. DeliveryError: when a mark on it cannot be read.
    """
    if broken := rolled_back_marks(table):
        raise UsageError(
            f"Input {source.input}: {source.table} was rolled back behind the mark of {broken[0].output}, which writes "
            "it. Whether its rows come back is not decided, and where this stream can continue depends on that.",
            next_step=f"Adopt the table first: `{ADOPT.format(table=source.table)}`, then look again.",
        )


def move_to_branch(source: SourcePosition, branch: InputBranch, table: Table, *, stream: str) -> SourceMove:
    """Continue in a table that was rolled back or replaced: behind the common ancestor, or with all that it holds now.

    Raises
    ------
    UsageError: when the rows of a replaced table cannot be read from its files alone, or when files were planned to be
        read that are older than the common ancestor.
    """
    named = f"Input {source.input}: {branch}."
    published = f"What was published of the {branch.withdrawn_rows:,} withdrawn rows stays in the outputs."
    common = branch.common
    if common is None:
        return _with_sentences(_move_to_beginning(source, table), named, published)
    if source.offset.scan_all_files and not branch.withdrawn[-1].is_read_by(source.offset):
        raise _planned_and_unread(source, branch, common, stream=stream)
    if branch.new:
        first = branch.new[0]
        start = StreamOffset(snapshot_id=first.snapshot_id, position=0, scan_all_files=False)
    else:
        start = StreamOffset(snapshot_id=common.snapshot_id, position=common.appended_files, scan_all_files=False)
    reads = f"Read {branch.new_rows:,} rows of {len(branch.new)} snapshots that came since, once."
    return SourceMove(
        line=source.line, start=start.text(), end=None, rows=branch.new_rows, sentences=(named, published, reads)
    )


def _planned_and_unread(source: SourcePosition, branch: InputBranch, common: TableStep, *, stream: str) -> UsageError:
    """The error of a position in front of the files of a snapshot, the older ones included."""
    return UsageError(
        f"Input {source.input}: {branch.table} was rolled back to snapshot {common.snapshot_id} before the next batch "
        f"was run, which is planned to read files of snapshot {branch.position}. Behind the older snapshot, the rows "
        "of these files that main still has would never be read.",
        next_step=f"Set main of {branch.table} to snapshot {branch.position}, and `sluice stream start {stream}` reads "
        f"them. Otherwise `sluice stream reset {stream} --dry-run` shows what reading the inputs again repeats.",
    )


def require_planned(source: SourcePosition, table: Table, *, stream: str) -> StreamOffset | None:
    """Where a read ends that a continuation has planned and no run has done; none where there is no such read. Planned
    by Spark, the batch would read all files behind its start, also older ones that were read.

    Raises
    ------
    CheckpointError: when the plan is lost.
    """
    offset, at = source.offset, table.snapshot_by_id(source.offset.snapshot_id)
    files = None if at is None else step_of(at).total_files
    if not offset.scan_all_files or files is None or offset.position >= files:
        return None
    if source.planned is None:
        raise CheckpointError(
            f"The checkpoint of {stream} has lost which files of snapshot {offset.snapshot_id} of {source.table} its "
            "next batch reads, as a continuation has planned it: Spark would read all of them, also those read before.",
            next_step="Bring the newer copy of the checkpoint back. Without one, `sluice stream reset "
            f"{stream} --dry-run` shows what reading the inputs again repeats.",
        )
    return source.planned


def keep_planned(source: SourcePosition, table: Table, *, stream: str) -> SourceMove | None:
    """The read that `require_planned` finds in an input that needs no move itself; none without one."""
    offset, planned = source.offset, require_planned(source, table, stream=stream)
    if planned is None:
        return None
    files = live_files(table, offset.snapshot_id) or ()
    rows = sum(file.rows for file in files[offset.position : planned.position])
    return SourceMove(
        line=source.line,
        start=offset.text(),
        end=planned.text(),
        rows=rows,
        sentences=(f"Input {source.input}: read the {rows:,} rows that its next batch is planned to read.",),
    )


def move_to_new_table(source: SourcePosition, replaced: Replaced, table: Table) -> SourceMove:
    """Continue at the beginning of a table that was created again.

    Raises
    ------
    UsageError: when its rows cannot be read from its files alone.
    """
    return _with_sentences(_move_to_beginning(source, table), f"Input {source.input}: {replaced}.")


def _with_sentences(move: SourceMove, *sentences: str) -> SourceMove:
    return SourceMove(
        line=move.line, start=move.start, end=move.end, rows=move.rows, sentences=(*sentences, *move.sentences)
    )


def _move_to_beginning(source: SourcePosition, table: Table) -> SourceMove:
    history = tuple(history_of(table))
    if not history:
        start = StreamOffset(snapshot_id=BEGINNING, position=0, scan_all_files=False)
        return SourceMove(
            line=source.line, start=start.text(), end=None, rows=0, sentences=(f"{source.table} is empty now.",)
        )
    plan = plan_whole_table(source.table, history, partial(observe_files, table))
    if isinstance(plan, Unreachable | NeedsAppend):
        reason = plan.reason if isinstance(plan, Unreachable) else "its newest snapshots do not only append"
        raise UsageError(
            f"Input {source.input} cannot continue at the beginning of {source.table}: {reason}.",
            next_step=plan.next_step if isinstance(plan, Unreachable) else "Append a row to the table first.",
        )
    rows = history[0].total_rows
    amount = "all rows" if rows is None else f"all {rows:,} rows"
    return SourceMove(
        line=source.line,
        start=plan.first.text(),
        end=None if plan.scan_end is None else plan.scan_end.text(),
        rows=rows,
        sentences=(f"Read {amount} that {source.table} holds now, then what is appended.",),
    )


def move_to_new_topics(
    position: ReadingPosition, declaration: StreamDeclaration, replaced: Sequence[Replaced], settings: Settings
) -> Iterator[SourceMove]:
    """Continue at the first records of topics that were created again; the other topics of an input stand still.

    Raises
    ------
    UsageError: when a line of the checkpoint may be of several inputs.
    LakehouseError: when Kafka does not answer.
    """
    for number, offsets in _topic_lines(position):
        source = _source_of(declaration, offsets)
        again = [topic for topic in offsets if any(one.is_topic(source.connection, topic) for one in replaced)]
        if not again:
            continue
        topics = _open_topics(settings, source)
        partitions = {topic: parts for topic, parts in topics.partitions_of(source).items() if topic in again}
        bounds = topics.bounds_of(partitions, isolation=source.isolation)
        firsts = {topic: {str(part): one.first for part, one in of.items()} for topic, of in bounds.items()}
        rows = sum(one.end - one.first for of in bounds.values() for one in of.values())
        yield SourceMove(
            line=number,
            start=json.dumps({**offsets, **firsts}, separators=(",", ":")),
            end=None,
            rows=rows,
            sentences=(
                *(f"{one}." for one in replaced if any(one.is_topic(source.connection, topic) for topic in again)),
                f"Read {', '.join(again)} from the first record on: now these are {rows:,} records. What was not read "
                "of the old one is lost, how much is unknown.",
            ),
        )


def _open_topics(settings: Settings, source: KafkaSource) -> KafkaTopics:
    from sluice.sources.kafka_topics import KafkaTopics  # a native library, which other inputs do not load

    return KafkaTopics(settings.connection(source.connection, KafkaConnection))


def _topic_lines(position: ReadingPosition) -> Iterator[tuple[int, dict[str, Mapping[str, int]]]]:
    """The lines of Kafka inputs: topic → partition → next offset."""
    for number, line in enumerate(position.offsets.splitlines()):
        if number < HEADER_LINES or not line.startswith("{"):
            continue
        found = json.loads(line)
        if found and all(isinstance(of_topic, dict) for of_topic in found.values()):
            yield number, found


def _source_of(declaration: StreamDeclaration, offsets: Mapping[str, object]) -> KafkaSource:
    found = {
        (source.connection, source.isolation): source
        for one in declaration.inputs.values()
        if one.is_stream and isinstance(source := one.declared_source.source, KafkaSource)
    }
    if len(found) != 1:
        raise UsageError(
            f"The topics {', '.join(offsets)} may be of several inputs of {declaration.stream}, by their names alone.",
            next_step=f"Read every input again: `sluice stream reset {declaration.stream}`.",
        )
    (source,) = found.values()
    return source
