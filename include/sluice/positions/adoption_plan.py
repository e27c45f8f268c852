"""Plans what becomes of a table that is not any more what streams have published: rolled back, or created again.

| way    | a rolled back table                                      | a table that was created again               |
|--------|----------------------------------------------------------|----------------------------------------------|
| undo   | main is set to where the marks stand                     | refused: the catalog does not have the old   |
| accept | it stays; the rows that were taken out are never read    | it stays; the rows of the old one are gone   |
| reread | it stays; the stream reads again what was taken out      | refused: a reset reads every input again     |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.declarations.loaded_declarations import Declarations, LoadedStream, lookups_of
from sluice.declarations.source_declarations import IcebergSource
from sluice.errors import UsageError
from sluice.ledger.batches import BatchObservation, recent_batches
from sluice.ledger.connection import Ledger, database_time
from sluice.operations import OperationPlan, OperationVerb, Refusal, RefusalReason, Stake, steps_of
from sluice.positions.adoption import AdoptedOutput, Adoption, AdoptionWay, name_of, sentences_of, stake_of
from sluice.positions.judge_position import disagreeing, judge_position
from sluice.positions.observe_position import KNOWN_BATCHES, observe_position
from sluice.positions.repair_decision import decide_repair, refusal_of_unmarked
from sluice.positions.repair_stream import under_refresh
from sluice.positions.restore_copy import decide_write
from sluice.positions.rolled_back_table import find_goal, hidden_commits, missing_commits, rows_taken_out
from sluice.positions.source_reach import SourceReach, refuse_gone_input
from sluice.positions.stream_position import StreamPosition, Witness
from sluice.publication.chain import MarkPosition
from sluice.publication.command_runs import find_left_driver
from sluice.publication.direct_history import rolled_back_behind
from sluice.publication.marks import RolledBackMark, marked_outputs, position_in_history, rolled_back_marks
from sluice.publication.staged_batch import StagedOutput, staged_outputs
from sluice.publication.start_check import known_rejections
from sluice.publication.undeclared_outputs import load_output_tables
from sluice.settings import Settings
from sluice.sources.source_identities import output_table_name
from sluice.tables.declared_tables import require_table

AdoptionPlan = OperationPlan[Adoption]


def plan_adoption(
    ledger: Ledger,
    catalog: Catalog,
    declarations: Declarations,
    settings: Settings,
    *,
    table: str,
    way: AdoptionWay,
    own_runs: Mapping[str, str] | None = None,
) -> AdoptionPlan:
    """What `adopt_table` would do now. Nothing is changed.

    Parameters
    ----------
    own_runs: the run of the command that adopts, by stream; unset while the plan is only shown.

    Raises
    ------
    UsageError: when no declared stream writes the table.
    LakehouseError, DeliveryError, LedgerError: when something cannot be read.
    """
    loaded = require_table(catalog, table)
    streams = _writers(declarations, table, loaded)
    observed = _Observed(ledger=ledger, catalog=catalog, settings=settings, table=loaded, own_runs=own_runs or {})
    adoption = observed.adoption(table, way, streams)
    then = [observed.position(one, adoption) for one in streams]
    adoption = replace(
        _with_rows(adoption, then, settings),
        forgets=tuple(_forgotten(adoption, then)),
        taken_back=tuple(_taken_back(adoption, then)),
        readers=_readers(declarations, table),
        lookups=tuple(lookups_of(declarations, table)),
        direct=tuple(seen.stream for seen in then if seen.rolled_back_direct == table),
    )
    refusals = [*_of_table(adoption, loaded), *(refusal for one in streams for refusal in _of_stream(observed, one))]
    if way is AdoptionWay.REREAD and adoption.outputs:
        refusals += [one for stream in streams for one in _rejected(ledger, loaded, adoption, stream.name)]
    if way is AdoptionWay.REREAD and not refusals and adoption.outputs:
        refusals += [one for stream, seen in zip(streams, then, strict=True) for one in observed.reread(stream, seen)]
    return OperationPlan(
        verb=OperationVerb.ADOPT,
        subject=table,
        part=str(way),
        seen=adoption,
        steps=steps_of(*sentences_of(adoption, then)),
        refusals=tuple(_of_direct(table, then) if adoption.is_empty else refusals),
        at_stake=Stake.NOTHING if stake_of(adoption) == 0 else Stake.ROWS,
        rows=stake_of(adoption),
        evidence=adoption.evidence,
    )


def _writers(declarations: Declarations, table: str, loaded: Table) -> Sequence[LoadedStream]:
    """The declared streams that write a table; none where only former ones have a mark on it."""
    found = [
        one
        for one in declarations.streams.values()
        if table in one.declaration.tables_written
        or (one.declaration.quarantine and one.declaration.quarantine_table == table)
    ]
    if not found and not marked_outputs(loaded):
        raise UsageError(
            f"No declared stream writes {table}.", next_step="`sluice table list` shows the tables with their writers."
        )
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Observed:
    """What is asked about a table and its streams."""

    ledger: Ledger
    catalog: Catalog
    settings: Settings
    table: Table
    own_runs: Mapping[str, str]

    def adoption(self, name: str, way: AdoptionWay, streams: Sequence[LoadedStream]) -> Adoption:
        broken = rolled_back_marks(self.table)
        declared = {output for one in streams for output in staged_outputs(one.declaration)}
        goal = find_goal(self.table) if way is AdoptionWay.UNDO and broken else None
        replaced = {
            one.name: found
            for one in streams
            for found in self.observed(one, {}).replaced
            if found.name == output_table_name(name)
        }
        return Adoption(
            table=name,
            way=way,
            uuid=str(self.table.metadata.table_uuid),
            head=self.table.metadata.current_snapshot_id,
            goal=None if goal is None else goal.snapshot_id,
            hidden=() if goal is None else hidden_commits(self.table, goal),
            missing=() if way is AdoptionWay.UNDO else missing_commits(self.table),
            outputs=tuple(self.adopted(one, way, is_declared=one.output in declared) for one in broken),
            replaced=replaced,
            rows_of_the_old=sum(self.published(one, name) for one in streams if one.name in replaced),
            staged=tuple(found for one in streams if one.name in replaced for found in self.staged(one, name)),
        )

    def published(self, stream: LoadedStream, table: str) -> int:
        """The rows of the newest batches that the ledger has of a table of a stream."""
        declared = stream.declaration.outputs.items()
        outputs = {one.output for one in staged_outputs(stream.declaration) if one.target == table}
        outputs |= {name for name, one in declared if one.iceberg is not None and one.iceberg.table == table}
        recorded = recent_batches(self.ledger, stream.name, KNOWN_BATCHES)
        return sum(rows or 0 for one in recorded for name, rows in one.published_rows.items() if name in outputs)

    def staged(self, stream: LoadedStream, table: str) -> Iterator[tuple[StagedOutput, int]]:
        """The outputs of a stream of which batches are staged for another table of this name, with their rows."""
        for one in staged_outputs(stream.declaration):
            tables = load_output_tables(self.catalog, one)
            if one.target == table and tables.holds_batches_for_another_table:
                yield one, sum(batch.summary.rows or 0 for batch in tables.staged if not batch.is_overtaken)

    def adopted(self, found: RolledBackMark, way: AdoptionWay, *, is_declared: bool) -> AdoptedOutput:
        """An output with a mark that main does not hold. One that is not declared any more cannot read again."""
        held = position_in_history(self.table, found.output)
        becomes = {AdoptionWay.UNDO: None, AdoptionWay.ACCEPT: found.at, AdoptionWay.REREAD: held}[way]
        listed = rows_taken_out(self.table, found)
        recorded = recent_batches(self.ledger, found.output.stream, KNOWN_BATCHES) if listed is None else ()
        return AdoptedOutput(
            found=found,
            held=held,
            becomes=found.at if way is AdoptionWay.REREAD and not is_declared else becomes,
            rows=_rows_behind(held, found, recorded) if listed is None else listed,
            is_declared=is_declared,
        )

    def position(self, stream: LoadedStream, adoption: Adoption) -> StreamPosition:
        """The position of a stream as it will be found once the table is adopted."""
        marks = {
            one.names.output: one.becomes or one.found.at for one in adoption.outputs if one.names.stream == stream.name
        }
        return self.observed(stream, marks)

    def observed(self, stream: LoadedStream, marks: Mapping[str, MarkPosition]) -> StreamPosition:
        return observe_position(
            self.ledger,
            self.catalog,
            stream.declaration,
            self.settings,
            now=database_time(self.ledger),
            own_run_id=self.own_runs.get(stream.name, ""),
            is_whole=True,
            assumed=marks,
        )

    def reread(self, stream: LoadedStream, seen: StreamPosition) -> Iterator[Refusal]:
        """Why what was taken out could not be read again: a mark that was set back would stay without its rows."""
        if seen.newest_taken_back >= 0 and seen.remembers_batches:
            yield replace(refusal_of_unmarked(seen), next_step=_instead(stream.name))
        if not _needs_repair(seen) and seen.newest_taken_back < 0:
            return
        decided = decide_write(seen, self.settings.object_store)
        if isinstance(decided, Refusal):
            yield decided
        elif decided.reads_from is None:
            yield _unknown_beginning(stream.name, seen)
        elif decided.reads_from:
            reach = SourceReach(
                catalog=self.catalog,
                declaration=stream.declaration,
                settings=self.settings,
                checkpoint=seen.checkpoint,
            )
            yield from refuse_gone_input(reach, seen, decided)


def _rows_behind(held: MarkPosition | None, found: RolledBackMark, recorded: Sequence[BatchObservation]) -> int | None:
    """The published rows of the batches behind what main holds, up to the mark; unset when not all are recorded."""
    at = found.at
    first = held.batch + 1 if held is not None and held.generation == at.generation else 0
    rows = {
        one.key.batch: one.published_rows.get(found.output.output)
        for one in recorded
        if one.key.generation == at.generation and first <= one.key.batch <= at.batch
    }
    counted = [one for one in rows.values() if one is not None]
    return sum(counted) if len(counted) == at.batch - first + 1 else None


def _unknown_beginning(stream: str, seen: StreamPosition) -> Refusal:
    done = -1 if seen.done is None else seen.done
    return Refusal(
        reason=RefusalReason.NOT_PROVABLE,
        sentence=f"Neither tables, ledger nor checkpoint show where batch {done + 1} of {stream} begins, so it is not "
        "known whether its inputs still have what would be read again.",
        next_step=_instead(stream),
    )


def _instead(stream: str) -> str:
    return (
        f"`--undo` brings the rows back; after `--accept`, `sluice stream reset {stream} --dry-run` shows what reading "
        "the inputs again repeats."
    )


def _with_rows(adoption: Adoption, then: Sequence[StreamPosition], settings: Settings) -> Adoption:
    if adoption.way is not AdoptionWay.REREAD or not adoption.outputs:
        return adoption
    rows: int | None = 0
    for seen in then:
        decided = decide_write(seen, settings.object_store)
        again = None if isinstance(decided, Refusal) else decided.rows_read_again
        rows = None if rows is None or again is None else rows + again
    return replace(adoption, rows_read_again=rows)


def _forgotten(adoption: Adoption, then: Sequence[StreamPosition]) -> Iterator[tuple[str, int]]:
    """The checkpoints of which copies go: what they have committed beyond the tables is read again. A repair that puts
    one of them in place lets the others go itself."""
    if adoption.way is not AdoptionWay.REREAD or not adoption.outputs:
        return
    for seen in then:
        if seen.done is not None and not isinstance(decide_repair(seen), Refusal):
            yield seen.checkpoint, seen.done


def _taken_back(adoption: Adoption, then: Sequence[StreamPosition]) -> Iterator[tuple[str, int, int]]:
    if adoption.way is not AdoptionWay.REREAD or not adoption.outputs:
        return
    adopted = {one.names.stream for one in adoption.outputs}
    for seen in then:
        is_behind = seen.newest_taken_back >= 0 and not _needs_repair(seen)
        if seen.stream in adopted and seen.newest_held is not None and is_behind:
            yield seen.stream, seen.number, seen.newest_held


def _needs_repair(seen: StreamPosition) -> bool:
    """Whether a repair of the checkpoint has to follow."""
    return any(one.witness is Witness.CHECKPOINT for one in disagreeing(judge_position(seen)))


def _of_stream(observed: _Observed, stream: LoadedStream) -> Iterator[Refusal]:
    seen = observed.observed(stream, {})
    if seen.is_live or find_left_driver(observed.ledger, stream.name) is not None:
        yield Refusal(
            reason=RefusalReason.NOT_AT_REST,
            sentence=f"A run of {stream.name} lives, or its driver may, and publishes into {seen.stream}'s tables.",
            next_step=f"Stop it first: `sluice stream stop {stream.name}`.",
        )
    yield from under_refresh(observed.ledger, stream.name)


def _of_direct(table: str, then: Sequence[StreamPosition]) -> Iterator[Refusal]:
    for seen in then:
        if seen.rolled_back_direct == table:
            error = rolled_back_behind(seen.committed, stream=seen.stream, target=table)
            yield Refusal(reason=RefusalReason.OTHER_REMEDY, sentence=error.message, next_step=error.next_step or "")


def _of_table(adoption: Adoption, table: Table) -> Iterator[Refusal]:
    name = adoption.table
    for stream, one in adoption.replaced.items():
        if adoption.way is not AdoptionWay.ACCEPT:
            restores = "the catalog has no snapshot of the old one" if adoption.way is AdoptionWay.UNDO else ""
            yield Refusal(
                reason=RefusalReason.OTHER_REMEDY,
                sentence=f"{one}{f': {restores}' if restores else ', and every row is missing in the new one'}.",
                next_step=f"Choose: `sluice table adopt {name} --accept` continues without its rows; "
                f"`sluice stream reset {stream} --dry-run` shows what reading the inputs again repeats.",
            )
    if adoption.way is AdoptionWay.UNDO and adoption.outputs and adoption.goal is None:
        yield Refusal(
            reason=RefusalReason.NOT_PROVABLE,
            sentence=f"No snapshot of {name} holds all of its marks: {_why_none(adoption, table)}.",
            next_step=f"Choose: `sluice table adopt {name} --reread`, or `sluice table adopt {name} --accept`.",
        )
    if adoption.way is AdoptionWay.REREAD:
        behind = [one for one in adoption.outputs if one.is_declared]
        yield from (refusal for one in behind if (refusal := _unknown_position(adoption, one)) is not None)


def _why_none(adoption: Adoption, table: Table) -> str:
    gone = [one for one in adoption.outputs if table.snapshot_by_id(one.found.mark.snapshot_id) is None]
    if gone:
        return f"snapshot {gone[0].found.mark.snapshot_id}, which set the mark of {gone[0].names}, was expired"
    return "another stream has published into the rolled back table"


def _unknown_position(adoption: Adoption, one: AdoptedOutput) -> Refusal | None:
    at = one.becomes
    if at is not None and at.generation == one.found.at.generation:
        return None
    held = "no batch" if at is None else f"batch {name_of(at)}"
    return Refusal(
        reason=RefusalReason.NOT_PROVABLE,
        sentence=f"Main of {adoption.table} shows {held} of {one.names}, and its generation "
        f"{one.found.at.generation} began behind that: its checkpoint cannot be taken so far back.",
        next_step=f"`sluice table adopt {adoption.table} --undo` brings the rows back; after `--accept`, `sluice "
        f"stream reset {one.names.stream} --dry-run` shows what reading the inputs again repeats.",
    )


def _rejected(ledger: Ledger, table: Table, adoption: Adoption, stream: str) -> Iterator[Refusal]:
    """That a person rejected a batch is known by its number; read again, that number gets other rows."""
    for one in adoption.outputs:
        held, at = one.held, one.found.at
        if one.names.stream != stream or not one.is_declared or held is None:
            continue
        numbers = known_rejections(ledger, [(table, one.names)], stream=stream, generation=at.generation)
        if taken_out := sorted(number for number in numbers if held.batch < number):
            yield Refusal(
                reason=RefusalReason.NOT_PROVABLE,
                sentence=f"Batch {at.generation}:{taken_out[0]} of {stream} was rejected, and lies behind what main of "
                f"{adoption.table} shows: read again, its number would get other rows, which count as rejected.",
                next_step=f"Choose: `sluice table adopt {adoption.table} --undo`, or `--accept`.",
            )


def _readers(declarations: Declarations, table: str) -> tuple[str, ...]:
    """The declared streams that read a table batch by batch, by name."""
    sources = {
        name: [one.declared_source.source for one in stream.declaration.inputs.values() if one.is_stream]
        for name, stream in declarations.streams.items()
    }
    return tuple(
        name
        for name, read in sorted(sources.items())
        if any(isinstance(one, IcebergSource) and one.table == table for one in read)
    )
