"""Plans what becomes of a table that is not any more what streams have published: rolled back, or created again.

| way    | a rolled back table                                      | a table that was created again               |
|--------|----------------------------------------------------------|----------------------------------------------|
| undo   | main is set to where the marks stand                     | refused: the catalog does not have the old   |
| accept | it stays; the rows that were taken out are never read    | it stays; the rows of the old one are gone   |
| reread | it stays; the stream reads again what was taken out      | refused: a reset reads every input again     |
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.errors import UsageError
from sluice.ledger.batches import BatchObservation, recent_batches
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.refreshes import unsettled_refresh
from sluice.ledger.vacated_runs import find_left_driver
from sluice.operations import OperationPlan, OperationVerb, Refusal, RefusalReason, Stake, steps_of
from sluice.positions.judge_position import disagreeing, judge_position
from sluice.positions.observe_position import KNOWN_BATCHES, observe_position
from sluice.positions.repair_decision import decide_repair
from sluice.positions.rolled_back_table import (
    HiddenCommit,
    RolledBackMark,
    find_goal,
    hidden_commits,
    rolled_back_marks,
)
from sluice.positions.source_reach import refuse_gone_input
from sluice.positions.stream_position import StreamPosition, Witness
from sluice.publication.chain import MarkPosition
from sluice.publication.marks import position_in_history
from sluice.publication.staged_batch import StagedOutput, staged_outputs
from sluice.settings import Settings
from sluice.sources.source_identities import Replaced, output_table_name
from sluice.tables.declared_tables import require_table


class AdoptionWay(StrEnum):
    """What is to become of the table."""

    UNDO = "undo"
    ACCEPT = "accept"
    REREAD = "reread"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptedOutput:
    """A mark that main does not hold. becomes: where it is set; unset where main moves instead.
    rows: the published rows that were taken out of main; unset when their number is unknown."""

    found: RolledBackMark
    becomes: MarkPosition | None
    rows: int | None

    @property
    def names(self) -> StagedOutput:
        """The output."""
        return self.found.output


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """What an adoption changes.

    head: the snapshot of main now. goal: the one that main is set to; unset where it stays.
    hidden: the commits that are not in main then.
    outputs: the marks that main does not hold. replaced: the table, by stream, where it was created again.
    rows_of_the_old: that the ledger knows to be published into the one that the new one replaced.
    rows_read_again: by a repair that follows; unset when that is unknown.
    """

    table: str
    way: AdoptionWay
    uuid: str
    head: int | None
    goal: int | None = None
    hidden: tuple[HiddenCommit, ...] = ()
    outputs: tuple[AdoptedOutput, ...] = ()
    replaced: Mapping[str, Replaced] = field(default_factory=dict, hash=False)
    rows_of_the_old: int = 0
    rows_read_again: int | None = 0

    @property
    def is_empty(self) -> bool:
        """Whether the table is what its streams have published."""
        return not self.outputs and not self.replaced

    @property
    def evidence(self) -> dict[str, Any]:
        """The facts, for a program."""
        gone = [one.rows for one in self.outputs]
        return {
            "way": self.way,
            "uuid": self.uuid,
            "head": self.head,
            "goal": self.goal,
            "hides": [one.snapshot_id for one in self.hidden],
            "rows_hidden": sum(one.rows for one in self.hidden),
            "marks": {str(one.names): _name_of(one.found.at) for one in self.outputs},
            "marks_become": {str(one.names): _name_of(one.becomes) for one in self.outputs if one.becomes is not None},
            "accepts": sorted(self.replaced),
            "rows_taken_out": None if None in gone else self.rows_of_the_old + sum(one or 0 for one in gone),
            "rows_read_again": self.rows_read_again,
        }


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
    streams = _writers(declarations, table)
    observed = _Observed(ledger=ledger, catalog=catalog, settings=settings, table=loaded, own_runs=own_runs or {})
    adoption = observed.adoption(table, way, streams)
    then = [observed.position(one, adoption) for one in streams]
    adoption = _with_rows(adoption, then)
    refusals = [*_of_table(adoption, loaded), *(refusal for one in streams for refusal in _of_stream(observed, one))]
    if way is AdoptionWay.REREAD and not refusals and adoption.outputs:
        refusals += [one for stream, seen in zip(streams, then, strict=True) for one in observed.reread(stream, seen)]
    return OperationPlan(
        verb=OperationVerb.ADOPT,
        subject=table,
        part=str(way),
        seen=adoption,
        steps=steps_of(*_sentences(adoption, then)),
        refusals=() if adoption.is_empty else tuple(refusals),
        at_stake=Stake.NOTHING if _stake_of(adoption) == 0 else Stake.ROWS,
        rows=_stake_of(adoption),
        evidence=adoption.evidence,
    )


def _writers(declarations: Declarations, table: str) -> Sequence[LoadedStream]:
    found = [
        one
        for one in declarations.streams.values()
        if table in one.declaration.tables_written
        or (one.declaration.quarantine and one.declaration.quarantine_table == table)
    ]
    if not found:
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
            outputs=tuple(self.adopted(one, way) for one in broken),
            replaced=replaced,
            rows_of_the_old=sum(self.published(one, name) for one in streams if one.name in replaced),
        )

    def published(self, stream: LoadedStream, table: str) -> int:
        """The rows of the newest batches that the ledger has of a table of a stream."""
        outputs = {one.output for one in staged_outputs(stream.declaration) if one.target == table}
        recorded = recent_batches(self.ledger, stream.name, KNOWN_BATCHES)
        return sum(rows or 0 for one in recorded for name, rows in one.published_rows.items() if name in outputs)

    def adopted(self, found: RolledBackMark, way: AdoptionWay) -> AdoptedOutput:
        held = position_in_history(self.table, found.output)
        becomes = {AdoptionWay.UNDO: None, AdoptionWay.ACCEPT: found.at, AdoptionWay.REREAD: held}[way]
        recorded = recent_batches(self.ledger, found.output.stream, KNOWN_BATCHES)
        return AdoptedOutput(found=found, becomes=becomes, rows=_rows_behind(held, found, recorded))

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
        if not any(one.witness is Witness.CHECKPOINT for one in disagreeing(judge_position(seen))):
            return
        decided = decide_repair(seen)
        if isinstance(decided, Refusal):
            yield decided
        elif decided.reads_from:
            yield from refuse_gone_input(self.catalog, stream.declaration, self.settings, decided.reads_from)


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


def _with_rows(adoption: Adoption, then: Sequence[StreamPosition]) -> Adoption:
    if adoption.way is not AdoptionWay.REREAD or not adoption.outputs:
        return adoption
    rows: int | None = 0
    for seen in then:
        decided = decide_repair(seen)
        again = None if isinstance(decided, Refusal) else decided.rows_read_again
        rows = None if rows is None or again is None else rows + again
    return replace(adoption, rows_read_again=rows)


def _stake_of(adoption: Adoption) -> int | None:
    """How many rows are at stake; unset when that is unknown."""
    match adoption.way:
        case AdoptionWay.UNDO:
            return sum(one.rows for one in adoption.hidden)
        case AdoptionWay.REREAD:
            return adoption.rows_read_again
    gone = [one.rows for one in adoption.outputs]
    return None if None in gone else adoption.rows_of_the_old + sum(one or 0 for one in gone)


def _of_stream(observed: _Observed, stream: LoadedStream) -> Iterator[Refusal]:
    seen = observed.observed(stream, {})
    if seen.is_live or find_left_driver(observed.ledger, stream.name) is not None:
        yield Refusal(
            reason=RefusalReason.NOT_AT_REST,
            sentence=f"A run of {stream.name} lives, or its driver may, and publishes into {seen.stream}'s tables.",
            next_step=f"Stop it first: `sluice stream stop {stream.name}`.",
        )
    if unsettled_refresh(observed.ledger, stream.name) is not None:
        yield Refusal(
            reason=RefusalReason.OTHER_REMEDY,
            sentence=f"A refresh of {stream.name} is under way, and its commit may have replaced the content.",
            next_step=f"End it first: `sluice stream refresh {stream.name}`.",
        )


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
        yield from (refusal for one in adoption.outputs if (refusal := _unknown_position(adoption, one)) is not None)


def _why_none(adoption: Adoption, table: Table) -> str:
    gone = [one for one in adoption.outputs if table.snapshot_by_id(one.found.mark.snapshot_id) is None]
    if gone:
        return f"snapshot {gone[0].found.mark.snapshot_id}, which set the mark of {gone[0].names}, was expired"
    return "another stream has published into the rolled back table"


def _unknown_position(adoption: Adoption, one: AdoptedOutput) -> Refusal | None:
    at = one.becomes
    if at is not None and at.generation == one.found.at.generation:
        return None
    held = "no batch" if at is None else f"batch {_name_of(at)}"
    return Refusal(
        reason=RefusalReason.NOT_PROVABLE,
        sentence=f"Main of {adoption.table} shows {held} of {one.names}, and its generation "
        f"{one.found.at.generation} began behind that: its checkpoint cannot be taken so far back.",
        next_step=f"`sluice table adopt {adoption.table} --undo` brings the rows back; after `--accept`, `sluice "
        f"stream reset {one.names.stream} --dry-run` shows what reading the inputs again repeats.",
    )


def _sentences(adoption: Adoption, then: Sequence[StreamPosition]) -> Iterator[str]:
    table = adoption.table
    if adoption.is_empty:
        yield f"{table} is what its streams have published: nothing is changed."
    for one in adoption.outputs:
        yield one.found.problem
        yield from _of_output(adoption, one)
    for stream, found in adoption.replaced.items():
        yield f"{found}."
        if adoption.way is AdoptionWay.ACCEPT:
            yield (
                f"Take {table} as it is: {stream} continues in it behind its newest batch, and the rows that it had "
                f"published into the old one are gone: {adoption.rows_of_the_old:,} by the ledger's newest batches."
            )
    if adoption.goal is not None:
        yield f"Set main of {table} from snapshot {adoption.head} to snapshot {adoption.goal}."
    rows = sum(one.rows for one in adoption.hidden)
    if adoption.hidden:
        named = "; ".join(map(str, adoption.hidden[:6]))
        more = f"; and {len(adoption.hidden) - 6} more" if len(adoption.hidden) > 6 else ""
        yield (
            f"Readers do not see {len(adoption.hidden)} later commits with {rows:,} rows any more: {named}{more}. A "
            "tag keeps them for a week."
        )
    for seen in then:
        yield _next_command(seen)


def _of_output(adoption: Adoption, one: AdoptedOutput) -> Iterator[str]:
    rows = "an unknown number of" if one.rows is None else f"{one.rows:,}"
    if adoption.way is AdoptionWay.UNDO:
        yield f"{rows[0].upper()}{rows[1:]} rows of {one.names} come back."
    elif adoption.way is AdoptionWay.ACCEPT:
        yield (
            f"Keep the mark of {one.names} at batch {_name_of(one.found.at)}, on main as it is: {rows} rows of it are "
            "gone, and are not read again."
        )
    elif one.becomes is not None:
        again = adoption.rows_read_again
        read = "an unknown number of" if again is None else f"{again:,}"
        yield (
            f"Set the mark of {one.names} back from batch {_name_of(one.found.at)} to {_name_of(one.becomes)}, the "
            f"newest one in main: {rows} of its rows are gone, and {read} input rows are read again."
        )


def _next_command(seen: StreamPosition) -> str:
    findings = [one for one in disagreeing(judge_position(seen)) if one.witness is not Witness.MARK]
    if not findings:
        return f"Nothing is started. Then: `sluice stream start {seen.stream}`."
    return f"Nothing is started. Then: `sluice stream repair {seen.stream}`, and start it."


def _name_of(position: MarkPosition) -> str:
    return f"{position.generation}:{position.batch}"
