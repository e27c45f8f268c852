"""Observes what a backfill depends on, and plans it: how far the stream has published, its sources, the readers of its
target, and the streams that follow. Some reasons against a plan are removed by the next batch of the stream."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.backfill.backfill_plan import (
    BackfillObservation,
    BackfillPlan,
    PublishedBatch,
    TargetReader,
    inputs_behind,
    plan_backfill,
)
from sluice.backfill.intervals import Follower, Interval, divide, followers_of
from sluice.backfill.observe_inputs import ObservedInputs
from sluice.backfill.old_input_rows import shortened_lookups
from sluice.backfill.read_bounds import InputBound
from sluice.declarations.checks.backfill_checks import unfit_outputs
from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.declarations.output_declaration import OutputDeclaration
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.transformation_declaration import BackfillDeclaration
from sluice.errors import UsageError
from sluice.ledger.batches import BatchObservation, PublicationKey, find_batch, newest_batch_before
from sluice.ledger.connection import Ledger
from sluice.operations import PlannedStep
from sluice.processes.deadline import Deadline, wait_until
from sluice.publication.chain import MarkPosition
from sluice.publication.interval_files import IntervalOfTable
from sluice.publication.marks import UNNAMED_SOURCE, TargetState, load_target_state, marked_outputs
from sluice.publication.staged_batch import StagedOutput, canonical_offsets, offsets_digest, read_summary
from sluice.settings import Settings

PATIENCE_SECONDS = 60.0
"""How long a run waits for the next batch of the stream. A batch takes seconds; a stream that has not delivered one by
then is stopped, or far behind, and the task is tried again later."""

_POLL_SECONDS = 1.0


def backfill_of(stream: LoadedStream) -> BackfillDeclaration:
    """The backfill of a stream.

    Raises
    ------
    UsageError: when the stream does not declare one.
    """
    backfill = stream.declaration.backfill
    if backfill is None:
        unfit = next(unfit_outputs(stream), None)
        raise UsageError(
            f"{stream.name} cannot be backfilled: its declaration has no key `backfill`."
            if unfit is None
            else f"{stream.name} cannot be backfilled yet: {unfit.reason}.",
            next_step=f"Declare `backfill: {{column: …}}` in {stream.file.name}." if unfit is None else unfit.instead,
        )
    return backfill


def backfilled_output(stream: LoadedStream) -> StagedOutput:
    """The one output of a stream that declares a backfill."""
    name, declared = next(iter(stream.declaration.outputs.items()))
    return StagedOutput(stream=stream.name, output=name, target=declared.iceberg.table if declared.iceberg else "")


def replaces_rows(stream: LoadedStream) -> bool:
    """Whether a batch of the stream replaces rows of the backfilled output, by their keys or with whole partitions."""
    return any(declared.iceberg is not None and declared.iceberg.mode != "append" for declared in _outputs(stream))


def interval_of_table(stream: LoadedStream, interval: Interval) -> IntervalOfTable:
    """The rows of the target that an interval covers."""
    return IntervalOfTable(column=backfill_of(stream).column, start=interval.start, end=interval.end)


def observe_backfill(
    catalog: Catalog,
    ledger: Ledger,
    declarations: Declarations,
    stream: LoadedStream,
    interval: Interval,
    *,
    settings: Settings,
) -> tuple[BackfillObservation, Table]:
    """Observe what a backfill of an interval depends on, and load its target.

    Parameters
    ----------
    settings: the connections of the deployment.

    Returns
    -------
    The observation, and the table from which it was read: its newest snapshot is the head.

    Raises
    ------
    UsageError: when the stream does not declare a backfill.
    DeliveryError: when the mark cannot be read, or nothing can be published into the target.
    LakehouseError, CheckpointError, LedgerError: when a source, a table or the ledger cannot be reached.
    SettingsError: when the deployment lacks a connection.
    """
    backfill, output = backfill_of(stream), backfilled_output(stream)
    margin = backfill.margin or timedelta(0)
    state = load_target_state(catalog, output)
    position = state.position(output) if state.mark is not None else None
    published = published_batch(ledger, state, output, position) if position is not None else None
    sources, behind = tuple[InputBound, ...](), tuple[str, ...]()
    if position is not None and published is not None:
        inputs = _inputs(catalog, ledger, stream, position, interval.widened(margin), settings)
        sources = tuple(inputs.bounds(published))
        former = newest_batch_before(ledger, stream.name, generation=position.generation)
        if former is not None:
            behind = tuple(inputs_behind(catalog, stream, before=former.end_offsets, now=published.end_offsets))
    head = state.table.current_snapshot()
    return BackfillObservation(
        output=output,
        interval=interval,
        margin=margin,
        head=head.snapshot_id if head is not None else None,
        position=position,
        published=published,
        sources=sources,
        behind=behind,
        readers=tuple(readers_of(declarations, output.target)),
        other_writers=tuple(other_writers_of(declarations, state.table, output)),
        lookups=tuple(shortened_lookups(stream.declaration, catalog)),
    ), state.table


def change_of(
    catalog: Catalog,
    ledger: Ledger,
    stream: LoadedStream,
    seen: BackfillObservation,
    sources: Iterable[InputBound],
    *,
    settings: Settings,
) -> str | None:
    """What has changed some inputs of a stream since they were observed for a plan, in a phrase; none when nothing has.

    Parameters
    ----------
    seen: of the plan. sources: of these.

    Raises
    ------
    LakehouseError, CheckpointError, LedgerError: when a source, a table or the ledger cannot be reached.
    SettingsError: when the deployment lacks a connection.
    """
    if seen.position is None or seen.published is None:  # then nothing was read
        return None
    published, wide = seen.published, seen.interval.widened(seen.margin)
    inputs = _inputs(catalog, ledger, stream, seen.position, wide, settings)
    return next(filter(None, (inputs.change(one, published) for one in sources)), None)


def _inputs(
    catalog: Catalog, ledger: Ledger, stream: LoadedStream, position: MarkPosition, wide: Interval, settings: Settings
) -> ObservedInputs:
    return ObservedInputs(
        catalog=catalog,
        ledger=ledger,
        stream=stream,
        settings=settings,
        generation=position.generation,
        batch=position.batch,
        wide=wide,
    )


def plan_with_followers(
    catalog: Catalog,
    ledger: Ledger,
    declarations: Declarations,
    stream: LoadedStream,
    whole: Interval,
    *,
    settings: Settings,
) -> BackfillPlan:
    """What a backfill of a whole interval does now, and those of the streams that follow. Nothing is changed.

    Parameters
    ----------
    whole: made of whole hours, days or months, as the stream declares it.

    Raises
    ------
    UsageError: when the stream does not declare a backfill, or the interval is not made of whole parts.
    SluiceError: as `observe_backfill` raises it.
    """

    def plan_of(one: Follower) -> BackfillPlan:
        seen, _ = observe_backfill(catalog, ledger, declarations, one.stream, one.interval, settings=settings)
        return plan_backfill(seen)

    divide(whole, backfill_of(stream).interval)
    plan, followers = plan_of(Follower(stream=stream, interval=whole)), followers_of(declarations, stream, whole)
    return replace(
        plan,
        steps=(*plan.steps, *map(_followed, followers)),
        refusals=(*plan.refusals, *(refusal for one in followers for refusal in plan_of(one).refusals)),
    )


def _followed(one: Follower) -> PlannedStep:
    return PlannedStep(sentence=f"{one.stream.name} follows: its rows of {one.interval.spoken} are replaced too.")


def has_published(catalog: Catalog, stream: LoadedStream) -> bool:
    """Whether the backfilled output of a stream has published a batch in its open generation.

    Raises
    ------
    UsageError: when the stream does not declare a backfill.
    DeliveryError: when the mark cannot be read.
    LakehouseError: when the target does not exist or cannot be reached.
    """
    backfill_of(stream)
    output = backfilled_output(stream)
    state = load_target_state(catalog, output)
    return state.mark is not None and state.position(output).end_offsets_digest is not None


def _outputs(stream: LoadedStream) -> Iterable[OutputDeclaration]:
    return stream.declaration.outputs.values()


def other_writers_of(declarations: Declarations, target: Table, output: StagedOutput) -> Iterator[str]:
    """The other streams whose rows lie in the target: those that declare it, and those that have a mark on it."""
    declared = {
        name for name, stream in declarations.streams.items() if output.target in stream.declaration.tables_written
    }
    marked = {one.stream for one in marked_outputs(target)}
    yield from sorted((declared | marked) - {output.stream})


def published_batch(
    ledger: Ledger, state: TargetState, output: StagedOutput, position: MarkPosition
) -> PublishedBatch | None:
    """The newest published batch, from the history of the target or from the ledger; none when neither has exactly the
    batch of the mark.

    The offset log of a query has a line for each place where it reads a source, and the digest of a mark is of all of
    them. What the ledger has is what Spark reports, which is each source once.
    """
    key = PublicationKey(stream=output.stream, generation=position.generation, batch=position.batch)
    for snapshot in reversed(state.table.metadata.snapshots):
        summary = read_summary(snapshot.summary.additional_properties) if snapshot.summary is not None else None
        if summary is None or (summary.key, summary.output) != (key, output.output):
            continue
        if offsets_digest(summary.end_offsets) != position.end_offsets_digest:
            continue
        if (offsets := _of_inputs(_parsed(summary.end_offsets))) is not None:
            return PublishedBatch(end_offsets=offsets, watermark=summary.watermark)
    recorded = find_batch(ledger, key)
    if recorded is None or not _is_marked(recorded, state, output, position):
        return None
    return PublishedBatch(end_offsets=recorded.end_offsets, watermark=recorded.watermark)


_MOST_PLACES = 64
"""At so many places a query reads its one source at most, where its batch is known by its offsets alone."""


def _of_inputs(offsets: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The offsets of the lines that have the name of an input; none where there are further lines, and several inputs:
    then a line may have the name of another input than the one that is read at its place."""
    named = {name: offset for name, offset in offsets.items() if not name.startswith(UNNAMED_SOURCE)}
    return None if len(named) > 1 and len(named) < len(offsets) else named


def _is_marked(recorded: BatchObservation, state: TargetState, output: StagedOutput, position: MarkPosition) -> bool:
    """Whether a batch of the ledger is that of the mark: it was made visible by the same snapshot, or its offsets have
    the same digest. A ledger that was restored may have another one under the number."""
    if state.published_by is not None and recorded.snapshot_ids.get(output.output) == state.published_by:
        return True
    offsets = recorded.end_offsets
    places = range(1, _MOST_PLACES) if len(offsets) == 1 else (1,)
    repeated = next(iter(offsets.values()), None)
    return any(
        offsets_digest(
            canonical_offsets({**offsets, **{f"{UNNAMED_SOURCE}{place}": repeated for place in range(1, number)}})
        )
        == position.end_offsets_digest
        for number in places
    )


def readers_of(declarations: Declarations, target: str) -> Iterator[TargetReader]:
    """The declared inputs that read a table."""
    for stream in declarations.streams.values():
        for name, declared in stream.declaration.inputs.items():
            source = declared.declared_source.source
            if isinstance(source, IcebergSource) and source.table == target:
                backfill = stream.declaration.backfill
                yield TargetReader(
                    stream=stream.name,
                    input=name,
                    on_overwrite=source.on_overwrite if declared.is_stream else None,
                    follows=backfill is not None and name in backfill.follows,
                )


def _parsed(offsets: str) -> Mapping[str, Any]:
    parsed: Mapping[str, Any] = json.loads(offsets)
    return parsed


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedOn:
    """A plan, and the target as it was loaded for it: its newest snapshot is the head of the plan."""

    plan: BackfillPlan
    target: Table


@contextmanager
def settled_plan(
    look: Callable[[], PlannedOn],
    *,
    turn: Callable[[], AbstractContextManager[object]] | None,
    patience_seconds: float = PATIENCE_SECONDS,
    pause: Callable[[float], object] = time.sleep,
) -> Iterator[PlannedOn]:
    """A plan that is not refused, in a turn that lasts as long as the block.

    The turn is never held while the next batch of the stream is waited for: the stream needs it to publish.

    Parameters
    ----------
    look: observes and plans once.
    turn: begins the turn of this run among those that merge into the target; unset when it needs none.
    pause: makes the pause between two looks.

    Raises
    ------
    UnpublishableError: when the plan is refused, with every reason.
    """
    deadline = Deadline.after(patience_seconds)
    while True:
        found = wait_until(look, _is_decided, seconds=patience_seconds, poll_seconds=_POLL_SECONDS, pause=pause)
        found.plan.require_unrefused()
        if turn is None:
            yield found
            return
        with turn():
            found = look()
            if _is_decided(found) or deadline.is_over():
                found.plan.require_unrefused()
                yield found
                return


def _is_decided(found: PlannedOn) -> bool:
    return not found.plan.is_refused_for_now
