"""Compares what a start finds: the tables with the ledger, and then the tables with the checkpoint.

Tables and ledger disagree only when somebody has changed one of them: an older copy has replaced the ledger, a table
property was removed, or the outputs are declared in another way. One look at the tables shows it, and `repair` is
called then and at no other time.

Tables and checkpoint are compared once no older run can publish any more, and a disagreement refuses the start. Spark
numbers batches by its checkpoint. With a checkpoint that is older than a table it plans a known number again, up to the
present end of its input: the batch would count as visible, and its new rows would be lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import DivergedError
from sluice.ledger.batches import BatchObservation, newest_batch, rejected_batches
from sluice.ledger.connection import Ledger
from sluice.publication.chain import CheckpointPosition, MarkPosition
from sluice.publication.direct_history import direct_batches, older_checkpoint
from sluice.publication.mark_moves import MarkMove
from sluice.publication.marks import batch_of, find_lost_mark, history_of_main, moved_mark, read_mark
from sluice.publication.staged_batch import (
    BatchSummary,
    StagedOutput,
    offsets_digest,
    staged_outputs,
)
from sluice.publication.staging_table import newest_token
from sluice.publication.undeclared_outputs import (
    OutputTables,
    UndeclaredOutput,
    find_undeclared_outputs,
    load_output_tables,
    remembers_batches,
)
from sluice.tables.declared_tables import load_table


class Disagreement(StrEnum):
    """What a start finds that no run leaves behind.

    TOKEN: the tables have seen the run's fencing token, or a higher one. An older copy of the ledger, or another one,
    has replaced it. REJECTION: a table shows a rejection that the ledger does not have, for the same reason.
    MARK: an output has no mark and traces of one: somebody has removed the table property.
    UNDECLARED: something is staged for an output that is not declared any more. REDECLARED: an output is declared again
    after the stream continued without it.
    """

    TOKEN = "token"  # noqa: S105  # a fencing token is not a secret
    REJECTION = "rejection"
    MARK = "mark"
    UNDECLARED = "undeclared"
    REDECLARED = "redeclared"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTables:
    """The tables of a stream, as one look at a start shows them.

    outputs: those that go through staging tables. former: those that did so before.
    direct: the tables into which Iceberg's own sink writes, by output.
    """

    stream: str
    outputs: tuple[OutputTables, ...]
    former: tuple[UndeclaredOutput, ...] = ()
    direct: Mapping[str, Table] = field(default_factory=dict)

    @property
    def highest_token(self) -> int:
        """The highest fencing token that they have seen, in marks, staging tables and snapshots, also those of former
        outputs; 0 before the first run. They remember the tokens longer than a ledger that was replaced."""
        staged = (token for one in self.outputs for token in _seen_tokens(one))
        direct = (
            batch.token
            for output, table in self.direct.items()
            for batch in direct_batches(table, stream=self.stream, output=output)
        )
        return max((0, *staged, *direct, *(one.token for one in self.former)))

    @property
    def unmarked(self) -> frozenset[str]:
        """The outputs without a mark."""
        return frozenset(one.names.output for one in self.outputs if not _is_marked(one))

    @property
    def lost(self) -> tuple[OutputTables, ...]:
        """The outputs without a mark that a run has begun with: they have a staging table, or their history shows it.
        The history that the metadata lists costs nothing to read."""
        return tuple(
            one
            for one in self.outputs
            if one.target is not None
            and not _is_marked(one)
            and (one.staging is not None or find_lost_mark(one.target, one.names, in_log=False) is not None)
        )

    @property
    def redeclared(self) -> tuple[StagedOutput, ...]:
        """The outputs that the stream continued without, for a while."""
        return tuple(one.names for one in self.outputs if one.is_left)

    def are_before(self, generation: int) -> bool:
        """Whether an output is not open in a generation, and was in an earlier one."""
        marks = (
            read_mark(one.target, stream=one.names.stream, output=one.names.output)
            for one in self.outputs
            if one.target is not None
        )
        return any(mark is not None and mark.generation < generation for mark in marks)

    def forgotten(self, generation: int, *, recorded: Collection[int]) -> tuple[int, ...]:
        """The rejected batches of a generation, in order, that are still staged and of which the ledger has no record.
        Of those that are cleared it needs none, and deletes it with other old records.

        Parameters
        ----------
        recorded: the rejected batches that it has.
        """
        unrecorded = self.rejected(generation) - frozenset(recorded)
        if not unrecorded:
            return ()
        staged = {batch.position for one in self.outputs for batch in one.staged if not batch.is_overtaken}
        return tuple(number for number in sorted(unrecorded) if (generation, number) in staged)

    def rejected(self, generation: int) -> frozenset[int]:
        """The batches of a generation that a person has rejected: the snapshot that moved the mark past one says so.

        A rejection whose snapshots were expired on every target is not found.
        """
        targets = ((one.names, one.target) for one in self.outputs if one.target is not None)
        return frozenset(
            number for names, table in targets for number in _rejections(history_of_main(table), names, generation)
        )


def observe_tables(catalog: Catalog, declaration: StreamDeclaration) -> StreamTables:
    """Load the tables of a stream, once each.

    Raises
    ------
    DeliveryError, LakehouseError: when a table cannot be read.
    """
    outputs = tuple(load_output_tables(catalog, output) for output in staged_outputs(declaration))
    return StreamTables(
        stream=declaration.stream,
        outputs=outputs,
        former=find_undeclared_outputs(catalog, declaration.stream, outputs),
        direct=_direct_tables(catalog, declaration),
    )


def disagreements(
    tables: StreamTables, *, token: int, generation: int, rejected: Collection[int]
) -> frozenset[Disagreement]:
    """What has to be repaired before a run begins; nothing, as a rule.

    Parameters
    ----------
    token: of the run. generation: the open one. rejected: its rejected batches, as the ledger has them.

    Raises
    ------
    MarkError: when a mark cannot be read.
    """
    found = {
        Disagreement.TOKEN: tables.highest_token >= token,
        Disagreement.REJECTION: bool(tables.forgotten(generation, recorded=rejected)),
        Disagreement.MARK: bool(tables.lost),
        Disagreement.UNDECLARED: not all(one.is_settled(generation) for one in tables.former),
        Disagreement.REDECLARED: bool(tables.redeclared),
    }
    return frozenset(one for one, is_found in found.items() if is_found)


def _is_marked(tables: OutputTables) -> bool:
    return tables.target is not None and tables.names.mark_property in tables.target.properties


def _seen_tokens(tables: OutputTables) -> Iterator[int]:
    names = tables.names
    mark = read_mark(tables.target, stream=names.stream, output=names.output) if tables.target is not None else None
    if mark is not None:
        yield mark.token
    if tables.staging is not None:
        yield newest_token(tables.staging)


def known_rejections(
    ledger: Ledger, tables: Iterable[tuple[Table, StagedOutput]], *, stream: str, generation: int
) -> frozenset[int]:
    """The batches of a generation that a person has rejected: those of the ledger, and those that only the snapshots of
    its targets show, because an older copy of the ledger was put back. Main need not lead to these snapshots any more.
    """
    shown = (_rejections(table.snapshots(), output, generation) for table, output in tables)
    return rejected_batches(ledger, stream, generation=generation).union(*shown)


def _rejections(snapshots: Iterable[Snapshot], output: StagedOutput, generation: int) -> Iterator[int]:
    moves = (moved_mark(one, output, why=MarkMove.REJECTED) for one in snapshots)
    return (at.batch for at in moves if at is not None and at.generation == generation)


def _direct_tables(catalog: Catalog, declaration: StreamDeclaration) -> Mapping[str, Table]:
    names = {
        name: declared.iceberg.table
        for name, declared in declaration.outputs.items()
        if declared.iceberg is not None and declared.iceberg.is_direct
    }
    loaded = {output: load_table(catalog, name) for output, name in names.items()}
    return {output: table for output, table in loaded.items() if table is not None}


def require_newest_checkpoint(ledger: Ledger, declaration: StreamDeclaration, *, generation: int, planned: int) -> None:
    """Require that a checkpoint has planned every batch that the ledger has of its generation, where an output has no
    mark to compare it with and knows a batch by its number. An older copy plans other batches under these numbers, and
    what an output has of a number it does not take a second time.

    Parameters
    ----------
    planned: the newest batch that the checkpoint has planned; -1 without any.

    Raises
    ------
    DivergedError: when the ledger has more.
    LedgerError: when it cannot be reached.
    """
    if not remembers_batches(declaration):
        return
    newest = newest_batch(ledger, declaration.stream, generation=generation)
    if newest is None or newest.key.batch <= planned:
        return
    raise older_checkpoint(
        declaration.stream, planned=planned, shows=f"The ledger shows that batch {newest.key} is delivered"
    )


NO_OFFSETS = "an unknown offset"


def published_beyond(table: Table, output: StagedOutput, checkpoint: CheckpointPosition) -> tuple[BatchSummary, ...]:
    """The publications in a table's history that hold batches which its stream's checkpoint has not planned, oldest
    first; fewer than there were when some are expired."""
    in_order = sorted(table.metadata.snapshots, key=lambda one: one.sequence_number or 0)
    batches = [batch for snapshot in in_order if (batch := batch_of(snapshot, output)) is not None]
    return tuple(
        batch
        for batch in batches
        if batch.key.generation == checkpoint.generation and batch.key.batch > checkpoint.newest_planned
    )


def refuse_newer_table(
    position: MarkPosition, checkpoint: CheckpointPosition, *, output: StagedOutput, known: Sequence[BatchSummary]
) -> None:
    """Refuse to start when a table holds batches that the checkpoint has not planned, or planned with other offsets.

    Parameters
    ----------
    position: how far the output is published.
    known: from `published_beyond`, for the message.

    Raises
    ------
    DivergedError: with the batches, rows and offsets in which they differ.
    """
    if position.generation != checkpoint.generation or position.batch < 0:
        return
    if position.batch > checkpoint.newest_planned:
        raise DivergedError(
            f"The checkpoint of stream {output.stream}, generation {checkpoint.generation}, is older than "
            f"{output.target}: it ends with batch {checkpoint.newest_planned} at "
            f"{checkpoint.end_offsets.get(checkpoint.newest_planned, NO_OFFSETS)}, and the table holds "
            f"{_beyond(position, checkpoint, known)}. The start would plan other batches under these numbers, whose "
            "rows would be lost.",
            next_step=_ways_out(output.stream),
        )
    planned = checkpoint.end_offsets.get(position.batch)
    if planned is not None and position.end_offsets_digest not in (None, offsets_digest(planned)):
        raise DivergedError(
            f"{output.target} already holds another batch {output.stream}:{position.generation}:{position.batch}: its "
            f"end offsets differ from those that the checkpoint has planned, {planned}.",
            next_step=_ways_out(output.stream),
        )


def refuse_set_back(tables: Sequence[OutputTables], *, generation: int, recorded: Sequence[BatchObservation]) -> None:
    """Refuse to open a generation in a table of which the ledger has its batches already: an older copy of the table
    has replaced it, and opening would count as published what the checkpoint has committed.

    Parameters
    ----------
    recorded: the newest batches of the stream, as the ledger has them.

    Raises
    ------
    DivergedError: with the batch that is missing. MarkError: when a mark cannot be read.
    """
    own = sorted((one for one in recorded if one.key.generation == generation), key=lambda one: one.key.batch)
    for one in tables:
        names, target = one.names, one.target
        mark = read_mark(target, stream=names.stream, output=names.output) if target is not None else None
        published = [batch for batch in own if names.output in batch.snapshot_ids]
        if target is None or mark is None or mark.generation >= generation or not published:
            continue
        newest = published[-1]
        if target.snapshot_by_id(newest.snapshot_ids[names.output]) is None:
            raise DivergedError(
                f"{names.target} is at batch {mark.generation}:{mark.batch} of {names}, and the ledger has batches of "
                f"generation {generation} in it up to {newest.key.batch}: an older copy has replaced the table, and "
                "their rows are gone.",
                next_step=f"Restore the table as it was, or choose: `sluice stream reset {names.stream} --dry-run` "
                "shows what reading the inputs again repeats.",
            )


def refuse_missing_batches(position: MarkPosition, checkpoint: CheckpointPosition, *, output: StagedOutput) -> None:
    """Refuse to start when the checkpoint has committed batches that are neither visible nor staged any more.

    Parameters
    ----------
    position: how far the output is published, once everything that was staged is.

    Raises
    ------
    DivergedError: with the batches and offsets that are missing.
    """
    if position.generation != checkpoint.generation or position.batch >= checkpoint.newest_committed:
        return
    first, last = position.batch + 1, checkpoint.newest_committed
    number = last - position.batch
    raise DivergedError(
        f"The checkpoint of stream {output.stream} has committed batches up to {last}, and {output.target} holds them "
        f"up to {position.batch}: {number} {'batch is' if number == 1 else 'batches are'} missing, {first} to {last}, "
        f"from {checkpoint.end_offsets.get(position.batch, NO_OFFSETS)} to "
        f"{checkpoint.end_offsets.get(last, NO_OFFSETS)}. They were staged and the staging table {output.staging} no "
        "longer has them.",
        next_step=_ways_out(output.stream),
    )


def _beyond(position: MarkPosition, checkpoint: CheckpointPosition, known: Sequence[BatchSummary]) -> str:
    """The batches that only the table has: how many, and as far as known their rows and offsets."""
    number = position.batch - checkpoint.newest_planned
    batches = f"{number} {'batch' if number == 1 else 'batches'} more, up to {position.batch}"
    if not known:
        return f"{batches}, whose rows and offsets its history no longer lists"
    rows = sum(summary.rows or 0 for summary in known)
    return f"{batches}, with {rows:,} rows, from {known[0].start_offsets} to {known[-1].end_offsets}"


def _ways_out(stream: str) -> str:
    return f"`sluice stream repair {stream} --dry-run` shows what writes the checkpoint back."
