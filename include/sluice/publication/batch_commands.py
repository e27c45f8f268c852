"""What a person sees of a stream's batches and does about one: those in the ledger, and those that wait staged.

A batch that is staged and cannot become visible stands in the way of all behind it: publication is strictly in order.
Rejecting it moves the stream's mark past it in every table, so that the next one is the next.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from pyiceberg.catalog import Catalog

from sluice.declarations.streams import QUARANTINE_OUTPUT, StreamDeclaration
from sluice.errors import DeliveryError, UsageError
from sluice.ledger.batches import recent_batches, record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.records.run import LIVE_STATES
from sluice.ledger.records.stream_batch import BatchObservation, PublicationKey
from sluice.ledger.runs import already_live, newest_run
from sluice.publication.chain import PublicationPlan, plan_publication
from sluice.publication.mark_moves import MARK_MOVE, MarkMove, reject_batch
from sluice.publication.marks import TargetState, load_target_state
from sluice.publication.staged_batch import StagedBatch, StagedOutput
from sluice.publication.staging_table import staged_batches
from sluice.tables.declared_tables import load_table


class BatchState(StrEnum):
    """Where a batch is.

    RECORDED: the ledger has it, so it is visible, or was rejected. VISIBLE: the tables show it and the ledger does not
    have it yet. STAGED: it waits for its publication. PARTLY_STAGED: some outputs of it are staged; the next run stages
    the rest. ABANDONED: it is never published.
    """

    RECORDED = "recorded"
    VISIBLE = "visible"
    STAGED = "staged"
    PARTLY_STAGED = "partly_staged"
    ABANDONED = "abandoned"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSight:
    """One batch as the tables and the ledger show it.

    explanation: what the state means for it; empty when the state says it all.
    rows: by output. staged_at: unset for one that the ledger has.
    recorded: what the ledger has of it.
    """

    key: PublicationKey
    state: BatchState
    explanation: str
    rows: Mapping[str, int]
    staged_at: datetime | None = None
    recorded: BatchObservation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A batch that is to be rejected. outputs: whose mark moves past it. rows: by output, never to become visible."""

    key: PublicationKey
    outputs: tuple[str, ...]
    rows: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class _OutputSight:
    """One output: its state, and the plan of what is staged for it."""

    output: StagedOutput
    state: TargetState
    plan: PublicationPlan

    def has_rejected(self, number: int) -> bool:
        """Whether its mark was moved past this very batch without its rows."""
        mark = self.state.mark
        snapshot = self.state.table.snapshot_by_id(mark.snapshot_id) if mark is not None else None
        why = snapshot.summary.additional_properties.get(MARK_MOVE) if snapshot and snapshot.summary else None
        return mark is not None and mark.batch == number and why == MarkMove.REJECTED


def observe_batches(
    catalog: Catalog, ledger: Ledger, declaration: StreamDeclaration, *, limit: int
) -> tuple[BatchSight, ...]:
    """The batches of a stream, the newest first: what is staged, then at most `limit` of the ledger.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    DeliveryError, LakehouseError: when a table is not as publication left it, or cannot be read.
    """
    recorded = recent_batches(ledger, declaration.stream, limit=limit)
    known = {(batch.key.generation, batch.key.batch) for batch in recorded}
    sights = _sights(catalog, declaration)
    staged = [one for one in _staged_sights(sights) if (one.key.generation, one.key.batch) not in known]
    newest_first = sorted(staged, key=lambda one: (one.key.generation, one.key.batch), reverse=True)
    return (*newest_first, *(_recorded_sight(batch) for batch in recorded))


def plan_rejection(catalog: Catalog, ledger: Ledger, declaration: StreamDeclaration, *, number: int) -> Rejection:
    """See whether a batch may be rejected now, and what that would do.

    Raises
    ------
    RunAlreadyLiveError: when the stream has a live run, which publishes what is staged.
    UsageError: when the batch is not the next one, or not staged whole.
    DeliveryError, LakehouseError: as `observe_batches` raises them.
    """
    return _plan_rejection(ledger, declaration, _sights(catalog, declaration), number)[0]


def reject(catalog: Catalog, ledger: Ledger, declaration: StreamDeclaration, *, number: int) -> Rejection:
    """Move the mark of every output past the next staged batch, and record its rows as refused.

    Doing it again after a crash in between finishes it. The token is the mark's own: a driver that begins meanwhile has
    a higher one, and then nothing is rejected any more.

    Raises
    ------
    StaleTokenError: when a driver has begun meanwhile.
    SluiceError: as `plan_rejection` does.
    """
    sights = _sights(catalog, declaration)
    rejection, batches = _plan_rejection(ledger, declaration, sights, number)
    for sight in sights:
        if not sight.has_rejected(number):
            token = sight.state.position(sight.output).token
            reject_batch(catalog, sight.output, batches[sight.output.output], token=token)
    record_batch(ledger, _rejected_observation(declaration, batches))
    return rejection


def _sights(catalog: Catalog, declaration: StreamDeclaration) -> list[_OutputSight]:
    """Every output that is staged; none before the first start."""
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
        found.append(_OutputSight(output=output, state=state, plan=plan))
    return found


def staged_outputs(declaration: StreamDeclaration) -> Iterator[StagedOutput]:
    """The outputs of a stream that go through staging tables, the quarantine last."""
    for name, declared in declaration.outputs.items():
        if declared.iceberg is not None and not declared.iceberg.is_direct:
            yield StagedOutput(stream=declaration.stream, output=name, target=declared.iceberg.table)
    if declaration.quarantine:
        target = declaration.quarantine_table
        yield StagedOutput(stream=declaration.stream, output=QUARANTINE_OUTPUT, target=target)


def _staged_sights(sights: Sequence[_OutputSight]) -> Iterator[BatchSight]:
    ready = [{batch.position: batch for batch in sight.plan.ready} for sight in sights]
    visible = [{batch.position: batch for batch in sight.plan.published} for sight in sights]
    for position in sorted({position for known in (*ready, *visible) for position in known}):
        found = [own[position] for own in (*ready, *visible) if position in own]
        if all(position in own for own in visible):
            yield _staged_sight(found, BatchState.VISIBLE, "the next run records it")
        elif len(found) == len(sights):
            yield _staged_sight(found, BatchState.STAGED, "the next run publishes it, or the present one does")
        else:
            yield _staged_sight(found, BatchState.PARTLY_STAGED, "the next run stages the rest of it")
    for sight in sights:
        for lost in sight.plan.abandoned:
            yield _staged_sight([lost.batch], BatchState.ABANDONED, str(lost.reason))


def _staged_sight(batches: Sequence[StagedBatch], state: BatchState, explanation: str) -> BatchSight:
    return BatchSight(
        key=batches[0].summary.key,
        state=state,
        explanation=explanation,
        rows={batch.summary.output: batch.summary.rows or 0 for batch in batches},
        staged_at=min(batch.staged_at for batch in batches),
    )


def _recorded_sight(batch: BatchObservation) -> BatchSight:
    refused = {QUARANTINE_OUTPUT: batch.refused_rows} if batch.refused_rows else {}
    rows = {**batch.published_rows, **refused}
    return BatchSight(key=batch.key, state=BatchState.RECORDED, explanation="", rows=rows, recorded=batch)


def _plan_rejection(
    ledger: Ledger, declaration: StreamDeclaration, sights: Sequence[_OutputSight], number: int
) -> tuple[Rejection, Mapping[str, StagedBatch]]:
    live = newest_run(ledger, declaration.stream)
    if live is not None and live.state in LIVE_STATES:
        raise already_live(live)
    if not sights:
        raise UsageError(f"Nothing is staged for {declaration.stream}: no table of it has a staging table.")
    batches: dict[str, StagedBatch] = {}
    for sight in sights:
        known = sight.plan.published if sight.has_rejected(number) else sight.plan.ready[:1]
        own = [batch for batch in known if batch.summary.key.batch == number]
        if not own:
            waiting = ", ".join(str(batch.summary.key.batch) for batch in sight.plan.ready[:10]) or "none"
            raise UsageError(
                f"Batch {number} of {declaration.stream} is not the next one of the output {sight.output.output}; "
                f"staged and not visible are: {waiting}.",
                next_step="Only the first of them can be rejected, once every output of it is staged; a start of the "
                "stream stages what is missing.",
            )
        batches[sight.output.output] = own[0]
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
    """The batch as the ledger keeps it: no output got a row, all of them are refused."""
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
