"""Shows the batches of a stream, recorded and staged."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pyiceberg.catalog import Catalog

from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT, StreamDeclaration
from sluice.ledger.batches import BatchObservation, PublicationKey, recent_batches
from sluice.ledger.connection import Ledger
from sluice.publication.chain import PublicationPlan, plan_publication
from sluice.publication.mark_moves import MarkMove
from sluice.publication.marks import TargetState, entries_of, load_target_state
from sluice.publication.staged_batch import StagedBatch, StagedOutput, is_held, staged_outputs
from sluice.publication.staging_table import staged_batches
from sluice.publication.undeclared_outputs import find_undeclared_outputs, load_output_tables
from sluice.stored_keys import MARK_MOVE
from sluice.tables.declared_tables import load_table


class BatchState(StrEnum):
    """The progress of a batch.

    RECORDED: the ledger has it, and it is visible. REJECTED: the ledger has it as rejected by a person. VISIBLE: the
    tables have it and the ledger does not yet. STAGED: it waits for its publication. PARTLY_STAGED: some of its outputs
    are staged; the next run stages the rest. ABANDONED: it is never published. UNDECLARED: it waits for an output that
    the stream no longer declares.
    """

    RECORDED = "recorded"
    REJECTED = "rejected"
    VISIBLE = "visible"
    STAGED = "staged"
    PARTLY_STAGED = "partly_staged"
    ABANDONED = "abandoned"
    UNDECLARED = "undeclared"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchView:
    """One batch as the tables and the ledger show it.

    explanation: what happens next or why it is abandoned; empty for a recorded batch.
    rows: by output. staged_at: unset for a recorded batch.
    recorded: the batch as the ledger has it.
    """

    key: PublicationKey
    state: BatchState
    explanation: str
    rows: Mapping[str, int]
    staged_at: datetime | None = None
    recorded: BatchObservation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputView:
    """One output: the state of its target, whose mark is set, and the plan of its staged batches."""

    output: StagedOutput
    state: TargetState
    plan: PublicationPlan

    def has_passed(self, number: int) -> bool:
        """Whether the mark is at this batch of its generation or above."""
        return self.plan.position.batch >= number

    def has_rejected(self, number: int) -> bool:
        """Whether the mark was moved past exactly this batch by a rejection."""
        mark = self.state.mark
        snapshot = self.state.table.snapshot_by_id(mark.snapshot_id) if mark is not None else None
        why = entries_of(snapshot).get(MARK_MOVE) if snapshot is not None else None
        return mark is not None and mark.batch == number and why == MarkMove.REJECTED


def observe_batches(
    catalog: Catalog, ledger: Ledger, declaration: StreamDeclaration, *, limit: int
) -> tuple[BatchView, ...]:
    """The batches of a stream, the newest first: the staged ones, then at most `limit` recorded ones.

    Raises
    ------
    DeliveryError, LakehouseError: when a table was changed by another writer, or cannot be read.
    """
    recorded = recent_batches(ledger, declaration.stream, limit=limit)
    known = {(batch.key.generation, batch.key.batch) for batch in recorded}
    views = output_views(catalog, declaration)
    staged = [one for one in _staged_views(views) if (one.key.generation, one.key.batch) not in known]
    newest_first = sorted(staged, key=lambda one: (one.key.generation, one.key.batch), reverse=True)
    former = _undeclared_views(catalog, declaration)
    return (*former, *newest_first, *(_recorded_view(batch) for batch in recorded))


def output_views(catalog: Catalog, declaration: StreamDeclaration) -> list[OutputView]:
    """Every output that has a staging table and a mark; none before the first start.

    Raises
    ------
    DeliveryError, LakehouseError: when a table was changed by another writer, or cannot be read.
    """
    found = []
    for output in staged_outputs(declaration):
        staging = load_table(catalog, output.staging)
        if staging is None:
            continue
        state = load_target_state(catalog, output)
        if state.mark is None:
            continue
        staged = staged_batches(staging, stream=output.stream, output=output.output)
        plan = plan_publication(state.position(output), staged)
        found.append(OutputView(output=output, state=state, plan=plan))
    return found


def _staged_views(views: Sequence[OutputView]) -> Iterator[BatchView]:
    ready = [{batch.position: batch for batch in view.plan.ready} for view in views]
    visible = [{batch.position: batch for batch in view.plan.published} for view in views]
    for position in sorted({position for known in (*ready, *visible) for position in known}):
        found = [own[position] for own in (*ready, *visible) if position in own]
        if all(position in own for own in visible):
            yield _staged_view(found, BatchState.VISIBLE, "the next run records it")
        elif len(found) == len(views):
            yield _staged_view(found, BatchState.STAGED, _what_follows(found))
        else:
            yield _staged_view(found, BatchState.PARTLY_STAGED, "the next run stages the rest of it")
    for view in views:
        for lost in view.plan.abandoned:
            yield _staged_view([lost.batch], BatchState.ABANDONED, str(lost.reason))


def _what_follows(batches: Sequence[StagedBatch]) -> str:
    key = batches[0].summary.key
    if is_held({batch.summary.output: batch for batch in batches}):
        return f"a rule holds it: `sluice batch release {key.stream} {key.batch}`, or `reject`"
    return "the live run or the next one publishes it, in order"


def _undeclared_views(catalog: Catalog, declaration: StreamDeclaration) -> tuple[BatchView, ...]:
    declared = [load_output_tables(catalog, output) for output in staged_outputs(declaration)]
    found = find_undeclared_outputs(catalog, declaration.stream, declared)
    return tuple(
        _staged_view(
            [batch],
            BatchState.UNDECLARED,
            f"the start waits for `sluice batch publish {one.stream} {one.output}`, or `abandon`"
            if one.position is not None
            else f"its table is not there any more: `sluice batch abandon {one.stream} {one.output}`",
        )
        for one in found
        for batch in reversed(one.waiting)
    )


def _staged_view(batches: Sequence[StagedBatch], state: BatchState, explanation: str) -> BatchView:
    return BatchView(
        key=batches[0].summary.key,
        state=state,
        explanation=explanation,
        rows={batch.summary.output: batch.summary.rows or 0 for batch in batches},
        staged_at=min(batch.staged_at for batch in batches),
    )


def _recorded_view(batch: BatchObservation) -> BatchView:
    refused = {QUARANTINE_OUTPUT: batch.refused_rows} if batch.refused_rows else {}
    rows = {**batch.published_rows, **refused}
    state = BatchState.REJECTED if batch.is_rejected else BatchState.RECORDED
    explanation = "its rows never become visible" if batch.is_rejected else ""
    return BatchView(key=batch.key, state=state, explanation=explanation, rows=rows, recorded=batch)
