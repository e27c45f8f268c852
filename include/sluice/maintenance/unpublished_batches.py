"""What is done for the checkpoint and not visible in the tables, when a stream is taken past a gap in its input.

Spark commits a batch as soon as it is staged. One that waits for others (`publish_every`) or for a person, or that a
driver left when it died, is not visible then; neither is what tables lost that were set back. A new generation begins
behind all of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pyiceberg.catalog import Catalog

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import UsageError
from sluice.ledger.batches import BatchObservation, recent_batches
from sluice.ledger.connection import Ledger
from sluice.ledger.held_batches import HeldDecision, find_held
from sluice.ledger.refreshes import unsettled_refresh
from sluice.maintenance.reading_position import ReadingPosition
from sluice.publication.chain import MarkPosition, plan_publication
from sluice.publication.data_files import missing_list
from sluice.publication.direct_history import direct_tables, is_set_back, recorded_snapshot, rolled_back_behind
from sluice.publication.staged_batch import StagedBatch, StagedOutput, staged_outputs
from sluice.publication.start_check import require_newest_checkpoint
from sluice.publication.undeclared_outputs import (
    OutputTables,
    UndeclaredOutput,
    find_undeclared_outputs,
    load_output_tables,
)

_KNOWN_BATCHES = 1_000
"""Of so many batches the ledger is asked for the rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpublishedBatch:
    """A batch of an output that is not visible there. staged: unset where it is not staged either, or its staging
    table cannot be read.

    rows: as it was staged, else as the ledger knows; unset where neither does.
    is_held: whether a person is to decide about it, and has not.
    """

    output: StagedOutput
    number: int
    staged: StagedBatch | None
    rows: int | None
    is_held: bool = False


@dataclass(frozen=True, slots=True)
class Unpublished:
    """All of them, of every declared output."""

    batches: tuple[UnpublishedBatch, ...]

    def __bool__(self) -> bool:
        return bool(self.batches)

    @property
    def rows(self) -> int:
        """Their rows, as far as these are known."""
        return sum(one.rows or 0 for one in self.batches)

    def __str__(self) -> str:
        numbers = {one.number for one in self.batches}
        what = f"{len(numbers)} batch{'es' * (len(numbers) > 1)}"
        known = [one.rows for one in self.batches if one.rows is not None]
        if not known:
            return f"{what} with an unknown number of rows that are not visible"
        more = "at least " if len(known) < len(self.batches) else ""
        return f"{what} with {more}{sum(known):,} rows that are not visible"


def find_unpublished(
    ledger: Ledger,
    catalog: Catalog,
    wanted: LoadedStream,
    *,
    generation: int,
    position: ReadingPosition,
    keeps_state: bool,
) -> Unpublished:
    """What a checkpoint has done of a generation and its tables do not show. What a person rejected is not to be shown.

    Parameters
    ----------
    position: where the stream continues: what is done for the checkpoint.
    keeps_state: whether it needs what is behind its newest batch in the checkpoint.

    Raises
    ------
    UsageError: when something waits for a former output, or an output shows more than is done.
    DivergedError: when the checkpoint is an older copy, beside an output without a mark.
    RolledBackError: when a table that Iceberg's own sink writes does not show what is done.
    DeliveryError, LakehouseError, LedgerError: when tables or the ledger cannot be read.
    """
    batches, held = recent_batches(ledger, wanted.name, _KNOWN_BATCHES), find_held(ledger, wanted.name)
    recorded = {one.key.batch: one for one in batches if one.key.generation == generation}
    tables = [load_output_tables(catalog, output) for output in staged_outputs(wanted.declaration)]
    for former in find_undeclared_outputs(catalog, wanted.name, tables):
        if waiting := former.waiting_in(generation):
            raise _of_former_output(former, waiting)
    shown = tuple(_shown(catalog, wanted.declaration, tables))
    if unsettled_refresh(ledger, wanted.name) is None:
        _refuse_later_generation(wanted.name, shown, generation=generation)
    require_newest_checkpoint(ledger, wanted.declaration, generation=generation, planned=position.planned)
    for output, table, newest in direct_tables(catalog, wanted.declaration):
        query_id, done = position.query_id, position.batch
        known = recorded_snapshot(ledger, wanted.name, output.output, query_id=query_id)
        if is_set_back(table, newest, known, generation=generation, query_id=query_id, done=done):
            raise rolled_back_behind(position.batch, stream=wanted.name, target=output.target)
    own = [one for one in shown if one[1].generation == generation]
    _refuse_more_than_done(wanted.name, own, position, keeps_state=keeps_state)
    done = position.batch
    found = [each for one in tables for each in _of_output(one, recorded, generation=generation, done=done)]
    number = held.key.batch if held is not None and held.key.generation == generation else None
    if held is not None and held.decision is HeldDecision.REJECTED:
        found = [one for one in found if one.number != number]
    elif held is not None and held.decision is None:
        found = [replace(one, is_held=one.number == number) for one in found]
    return Unpublished(tuple(found))


def _of_former_output(former: UndeclaredOutput, waiting: Sequence[StagedBatch]) -> UsageError:
    """A start would refuse until a person has decided, and a new generation would leave it behind."""
    name = f"{former.stream} {former.output}"
    return UsageError(
        f"{len(waiting)} batches with {sum(one.summary.rows or 0 for one in waiting):,} rows wait for {former}, which "
        "is not declared any more, or for another table.",
        next_step=f"Decide about them first: `sluice batch publish {name}` or `sluice batch abandon {name}`.",
    )


def unpublished_refusal(wanted: LoadedStream, found: Unpublished) -> UsageError:
    """The refusal to leave them behind, with the ways out."""
    name = wanted.name
    step = f"`sluice stream start {name}` publishes them, before it ends for what is missing; then continue it"
    if any(one.is_held for one in found.batches):
        step = f"Decide about the batch that is held, `sluice batch list {name}`. Then {step}"
    if any(one.staged is None for one in found.batches):
        step = f"`sluice stream repair {name} --dry-run` shows what brings tables and checkpoint together"
    return UsageError(
        f"Stream {name} has {found}: a new generation begins behind them, and they would never be.",
        next_step=f"{step}. Or `sluice stream continue {name} --leave-out` gives them up.",
    )


_Shown = tuple[StagedOutput, MarkPosition, OutputTables | None]
"""An output, how far it is visible, and its tables where it has a staging table."""


def _shown(catalog: Catalog, declaration: StreamDeclaration, outputs: Sequence[OutputTables]) -> Iterator[_Shown]:
    for one in outputs:
        if not one.is_left and (at := one.position) is not None:
            yield one.names, at, one
    for output, _, newest in direct_tables(catalog, declaration):
        if newest is not None:
            yield output, newest.at, None


def _refuse_later_generation(name: str, shown: Sequence[_Shown], *, generation: int) -> None:
    """Refuse while an output shows a generation that the ledger does not know: another one would take its number."""
    for output, at, _ in shown:
        if at.generation > generation:
            raise UsageError(
                f"{output.target} shows generation {at.generation} of {name}, and the ledger knows none behind "
                f"{generation}: it is an older copy.",
                next_step=f"`sluice stream repair {name} --dry-run` shows what writes the ledger back.",
            )


def _refuse_more_than_done(name: str, shown: Sequence[_Shown], position: ReadingPosition, *, keeps_state: bool) -> None:
    """Refuse while an output shows a batch that is not done: a new generation would read it again."""
    ahead = next((one for one in shown if one[1].batch > position.batch), None)
    if ahead is None:
        return
    output, at, _ = ahead
    generation, batch = at.generation, at.batch
    shows = f"{output.target} shows batch {generation}:{batch} of {name}"
    if batch > position.planned:
        raise UsageError(
            f"{shows}, and the checkpoint has planned no batch behind {position.planned}: it was set back.",
            next_step=f"`sluice stream repair {name} --dry-run` shows what brings tables and checkpoint together.",
        )
    others = [(names, tables) for names, mark, tables in shown if mark.batch < batch]
    is_staged = all(tables is not None and _holds(tables, (generation, batch)) for _, tables in others)
    lacking = [*(names.output for names, _ in others), *position.unshown]
    step = f"`sluice stream continue {name} --leave-out` takes it for done, and gives up what they lack of it"
    if keeps_state:
        step = f"`sluice stream reset {name}` reads the inputs again: the state behind that batch was never written"
    elif is_staged and not position.unshown:
        start = f"`sluice stream start {name}` publishes it, before it ends for what is missing; then continue it"
        step = f"{start}. Or {step}"
    raise UsageError(
        f"{shows}, and {', '.join(lacking)} {'does' if len(lacking) == 1 else 'do'} not: a new generation would read "
        "it again.",
        next_step=f"{step}.",
    )


def _holds(tables: OutputTables, position: tuple[int, int]) -> bool:
    return any(one.position == position for one in tables.staged) and not missing_list(tables.staging)


def _of_output(
    tables: OutputTables, recorded: Mapping[int, BatchObservation], *, generation: int, done: int
) -> Iterator[UnpublishedBatch]:
    """Those behind the mark of an output. A new output has no mark, and none behind it."""
    if tables.is_left:
        return
    output, mark = tables.names, tables.position
    ready = tables.staged if mark is None else plan_publication(mark, tables.staged).ready
    is_torn = bool(ready) and bool(missing_list(tables.staging))
    staged = {one.position[1]: one for one in ready if one.position[0] == generation and not one.is_overtaken}
    for number in sorted(staged) if mark is None else _behind(mark, recorded, generation=generation, done=done):
        batch = staged.get(number)
        known = recorded[number].published_rows.get(output.output) if number in recorded else None
        rows = batch.summary.rows if batch is not None else known
        yield UnpublishedBatch(output=output, number=number, staged=None if is_torn else batch, rows=rows)


def _behind(
    mark: MarkPosition, recorded: Mapping[int, BatchObservation], *, generation: int, done: int
) -> Iterable[int]:
    """A continuation that no run has followed leaves the mark in the generation before, and has said what it gave up. A
    refresh whose commit the ledger does not know has one in the next."""
    if mark.generation == generation:
        return range(mark.batch + 1, done + 1)
    return range(min(recorded), done + 1) if recorded and mark.generation < generation else ()
