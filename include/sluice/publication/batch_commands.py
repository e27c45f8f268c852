"""Shows the batches of a stream, recorded and staged, and rejects the next staged one.

Publication is strictly in order, so a staged batch that cannot be published blocks all later ones. Rejecting it moves
the stream's mark past it in every table.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pyiceberg.catalog import Catalog

from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT, StreamDeclaration
from sluice.errors import DeliveryError, UsageError
from sluice.ledger.batches import recent_batches, record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.events import record_event
from sluice.ledger.records.event import REQUESTED, Actor, Event, EventAction
from sluice.ledger.records.run import LIVE_STATES
from sluice.ledger.records.stream_batch import BatchObservation, PublicationKey
from sluice.ledger.runs import already_live, newest_run
from sluice.publication.chain import PublicationPlan, plan_publication
from sluice.publication.mark_moves import MARK_MOVE, MarkMove, reject_batch
from sluice.publication.marks import TargetState, load_target_state
from sluice.publication.staged_batch import StagedBatch, StagedOutput
from sluice.publication.staging_table import staged_batches
from sluice.publication.undeclared_outputs import find_undeclared_outputs
from sluice.tables.declared_tables import load_table


class BatchState(StrEnum):
    """The progress of a batch.

    RECORDED: the ledger has it; it is visible or was rejected. VISIBLE: the tables have it and the ledger does not yet.
    STAGED: it waits for its publication. PARTLY_STAGED: some of its outputs are staged; the next run stages the rest.
    ABANDONED: it is never published. UNDECLARED: it waits for an output that the stream no longer declares.
    """

    RECORDED = "recorded"
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
class Rejection:
    """The rejection of a batch. outputs: those whose mark moves past it. rows: by output; they never become visible."""

    key: PublicationKey
    outputs: tuple[str, ...]
    rows: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _OutputView:
    """One output: the state of its target, and the plan of its staged batches."""

    output: StagedOutput
    state: TargetState
    plan: PublicationPlan

    def has_rejected(self, number: int) -> bool:
        """Whether the mark was moved past exactly this batch by a rejection."""
        mark = self.state.mark
        snapshot = self.state.table.snapshot_by_id(mark.snapshot_id) if mark is not None else None
        why = snapshot.summary.additional_properties.get(MARK_MOVE) if snapshot and snapshot.summary else None
        return mark is not None and mark.batch == number and why == MarkMove.REJECTED


def observe_batches(
    catalog: Catalog, ledger: Ledger, declaration: StreamDeclaration, *, limit: int
) -> tuple[BatchView, ...]:
    """The batches of a stream, the newest first: the staged ones, then at most `limit` recorded ones.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    DeliveryError, LakehouseError: when a table was changed by another writer, or cannot be read.
    """
    recorded = recent_batches(ledger, declaration.stream, limit=limit)
    known = {(batch.key.generation, batch.key.batch) for batch in recorded}
    views = _output_views(catalog, declaration)
    staged = [one for one in _staged_views(views) if (one.key.generation, one.key.batch) not in known]
    newest_first = sorted(staged, key=lambda one: (one.key.generation, one.key.batch), reverse=True)
    former = _undeclared_views(catalog, declaration)
    return (*former, *newest_first, *(_recorded_view(batch) for batch in recorded))


def plan_rejection(catalog: Catalog, ledger: Ledger, declaration: StreamDeclaration, *, number: int) -> Rejection:
    """Check whether a batch may be rejected now, and plan the rejection.

    Raises
    ------
    RunAlreadyLiveError: when the stream has a live run, which publishes the staged batches.
    UsageError: when the batch is not the next one, or not all of its outputs are staged.
    DeliveryError, LakehouseError: as `observe_batches` raises them.
    """
    return _plan_rejection(ledger, declaration, _output_views(catalog, declaration), number)[0]


def reject(
    catalog: Catalog, ledger: Ledger, declaration: StreamDeclaration, *, number: int, requested_by: str
) -> Rejection:
    """Move the mark of every output past the next staged batch, and record all its rows as rejected.

    After a crash in between, a second call completes the rejection. The commits carry the mark's own token: a driver
    that begins meanwhile has a higher one, and then the rejection is refused.

    Parameters
    ----------
    requested_by: the person, as the ledger names them.

    Raises
    ------
    StaleTokenError: when a driver has begun meanwhile.
    SluiceError: as `plan_rejection` does.
    """
    views = _output_views(catalog, declaration)
    rejection, batches = _plan_rejection(ledger, declaration, views, number)
    record_event(ledger, _event(declaration.stream, rejection, requested_by=requested_by))
    for view in views:
        if not view.has_rejected(number):
            token = view.state.position(view.output).token
            reject_batch(catalog, view.output, batches[view.output.output], token=token)
    record_batch(ledger, _rejected_observation(declaration, batches))
    return rejection


def _event(stream: str, rejection: Rejection, *, requested_by: str) -> Event:
    return Event(
        name=stream,
        actor=Actor.person(requested_by),
        action=EventAction.REJECT_BATCH,
        reason=REQUESTED,
        explanation=f"Batch {rejection.key} is never published.",
        evidence={"batch": str(rejection.key), "rows": rejection.rows},
    )


def _output_views(catalog: Catalog, declaration: StreamDeclaration) -> list[_OutputView]:
    """Every output that has a staging table and a mark; none before the first start."""
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
        found.append(_OutputView(output=output, state=state, plan=plan))
    return found


def staged_outputs(declaration: StreamDeclaration) -> Iterator[StagedOutput]:
    """The outputs of a stream that go through staging tables, the quarantine last."""
    for name, declared in declaration.outputs.items():
        if declared.iceberg is not None and not declared.iceberg.is_direct:
            yield StagedOutput(stream=declaration.stream, output=name, target=declared.iceberg.table)
    if declaration.quarantine:
        target = declaration.quarantine_table
        yield StagedOutput(stream=declaration.stream, output=QUARANTINE_OUTPUT, target=target)


def _staged_views(views: Sequence[_OutputView]) -> Iterator[BatchView]:
    ready = [{batch.position: batch for batch in view.plan.ready} for view in views]
    visible = [{batch.position: batch for batch in view.plan.published} for view in views]
    for position in sorted({position for known in (*ready, *visible) for position in known}):
        found = [own[position] for own in (*ready, *visible) if position in own]
        if all(position in own for own in visible):
            yield _staged_view(found, BatchState.VISIBLE, "the next run records it")
        elif len(found) == len(views):
            yield _staged_view(found, BatchState.STAGED, "the live run or the next one publishes it")
        else:
            yield _staged_view(found, BatchState.PARTLY_STAGED, "the next run stages the rest of it")
    for view in views:
        for lost in view.plan.abandoned:
            yield _staged_view([lost.batch], BatchState.ABANDONED, str(lost.reason))


def _undeclared_views(catalog: Catalog, declaration: StreamDeclaration) -> tuple[BatchView, ...]:
    found = find_undeclared_outputs(catalog, declaration.stream, tuple(staged_outputs(declaration)))
    return tuple(
        _staged_view(
            [batch],
            BatchState.UNDECLARED,
            f"the start waits for `sluice batch publish {one.stream} {one.output}`, or `abandon`",
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
    return BatchView(key=batch.key, state=BatchState.RECORDED, explanation="", rows=rows, recorded=batch)


def _plan_rejection(
    ledger: Ledger, declaration: StreamDeclaration, views: Sequence[_OutputView], number: int
) -> tuple[Rejection, Mapping[str, StagedBatch]]:
    live = newest_run(ledger, declaration.stream)
    if live is not None and live.state in LIVE_STATES:
        raise already_live(live)
    if not views:
        raise UsageError(f"Nothing is staged for {declaration.stream}: it has no staging table.")
    batches: dict[str, StagedBatch] = {}
    for view in views:
        known = view.plan.published if view.has_rejected(number) else view.plan.ready[:1]
        own = [batch for batch in known if batch.summary.key.batch == number]
        if not own:
            waiting = ", ".join(str(batch.summary.key.batch) for batch in view.plan.ready[:10]) or "none"
            raise UsageError(
                f"Batch {number} of {declaration.stream} is not the next one of the output {view.output.output}; "
                f"staged and not visible are: {waiting}.",
                next_step="Only the first of them can be rejected, once all of its outputs are staged; start the "
                "stream to stage the missing ones.",
            )
        batches[view.output.output] = own[0]
    keys = {batch.summary.key for batch in batches.values()}
    if len(keys) != 1:
        raise DeliveryError(f"The outputs of {declaration.stream} hold different batches: {sorted(map(str, keys))}.")
    rejection = Rejection(
        key=keys.pop(),
        outputs=tuple(batches),
        rows={output: batch.summary.rows or 0 for output, batch in batches.items()},
    )
    return rejection, batches


def _rejected_observation(declaration: StreamDeclaration, batches: Mapping[str, StagedBatch]) -> BatchObservation:
    """The batch as the ledger records it: no output got a row, all rows were rejected."""
    summary = next(iter(batches.values())).summary
    rows = sum(batch.summary.rows or 0 for batch in batches.values())
    return BatchObservation(
        key=summary.key,
        run_id=summary.run_id,
        started_at=min(batch.staged_at for batch in batches.values()),
        duration_ms=0,
        input_rows=rows,
        published_rows=dict.fromkeys(declaration.outputs, 0),
        refused_rows=rows,
        watermark=summary.watermark,
        start_offsets=json.loads(summary.start_offsets),
        end_offsets=json.loads(summary.end_offsets),
    )
