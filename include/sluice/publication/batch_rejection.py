"""Rejects the next staged batch of a stream: one step that a crash does not split, under the stream's lease.

    admit a run ─► record in the ledger ─► move the mark of each output past the batch ─► end the run

No driver begins meanwhile, because the stream has one run at a time, and what an older driver may still send meets a
higher token. The ledger's record is the decision: after a crash behind it the next run of the stream, or the same
command typed again, moves the marks that have not moved, and neither publishes the batch nor writes it into a sink.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from pyiceberg.catalog import Catalog

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import DeliveryError, LeaseLostError, UsageError
from sluice.ledger.batches import PublicationKey, find_rejection, record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.events import REQUESTED, Actor, Event, EventAction, record_event
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import beat
from sluice.publication.batch_commands import OutputView, output_views
from sluice.publication.command_runs import CommandMode, refuse_live_run, run_of_command
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.mark_moves import reject_batch
from sluice.publication.repair import with_raised_token
from sluice.publication.staged_batch import StagedBatch, rejected_observation


class RejectionState(StrEnum):
    """How far a rejection was when the command found it.

    NEW: the batch waited. INTERRUPTED: an earlier command recorded it and did not move every mark. COMPLETE: nothing
    was left to do.
    """

    NEW = "new"
    INTERRUPTED = "interrupted"
    COMPLETE = "complete"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """The rejection of a batch.

    state: as the command found it. outputs: those whose marks it moves past the batch.
    rows: by output, as they are staged; they never become visible. Empty once the staging tables are cleared.
    """

    key: PublicationKey
    state: RejectionState
    outputs: tuple[str, ...]
    rows: Mapping[str, int]

    @property
    def digest(self) -> str:
        """Names the batch and its rows, so that what is carried out is what a person was shown."""
        return hashlib.sha256(json.dumps([str(self.key), dict(self.rows)], sort_keys=True).encode()).hexdigest()

    def sentence(self, *, is_done: bool) -> str:
        """What it does, for a person. is_done: whether it was carried out."""
        batch, outputs = f"Batch {self.key}", ", ".join(self.outputs)
        if self.state is RejectionState.COMPLETE:
            return f"{batch} was rejected before: the ledger and every mark have it. Nothing is left to do."
        if self.state is RejectionState.INTERRUPTED:
            verb = "is complete" if is_done else "would be completed"
            return f"{batch} was rejected by a command that was interrupted. The rejection {verb} now, in: {outputs}."
        rows = ", ".join(f"{count:,} rows of {output}" for output, count in self.rows.items())
        verb = "is rejected" if is_done else "would be rejected"
        return f"{batch} {verb}: {rows} never become visible."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """rejection: what the command says. batches: the staged batch by output. waiting: the outputs to move."""

    rejection: Rejection
    batches: Mapping[str, StagedBatch]
    waiting: tuple[OutputView, ...]


def next_waiting(catalog: Catalog, declaration: StreamDeclaration) -> int:
    """The number of the batch that is to be published next: the only one that can be rejected.

    Raises
    ------
    UsageError: when no batch waits.
    DeliveryError, LakehouseError: when a table was changed by another writer, or cannot be read.
    """
    waiting = [view.plan.ready[0].summary.key.batch for view in output_views(catalog, declaration) if view.plan.ready]
    if not waiting:
        raise UsageError(f"No batch of {declaration.stream} is staged and waits for its publication.")
    return min(waiting)


def plan_rejection(catalog: Catalog, ledger: Ledger, declaration: StreamDeclaration, *, number: int) -> Rejection:
    """Check whether a batch may be rejected now, and plan the rejection. Nothing is changed.

    Raises
    ------
    RunAlreadyLiveError: when the stream has a live run, which publishes the staged batches.
    UsageError: when the batch is not the next one, or not all of its outputs are staged.
    DeliveryError, LakehouseError: when a table was changed by another writer, or cannot be read.
    """
    refuse_live_run(ledger, declaration.stream)
    return _plan(ledger, declaration, output_views(catalog, declaration), number).rejection


def reject(
    catalog: Catalog,
    ledger: Ledger,
    declaration: StreamDeclaration,
    *,
    number: int,
    requested_by: str,
    planned: str | None = None,
    reached: Reached = unnoticed,
) -> Rejection:
    """Record that a staged batch is rejected, and move the mark of every output past it.

    After a crash in between, a second call completes the rejection; when nothing is left to do, it changes nothing.

    Parameters
    ----------
    requested_by: the person, as the ledger names them.
    planned: the digest of the plan that a person agreed to; unset: the batch as it is staged now.
    reached: is called with RECORDED, then with CHECKED before each commit, FIRST_OUTPUT_PUBLISHED when the first of
        several marks has moved, and PUBLISHED when all have.

    Raises
    ------
    LeaseLostError: when another run has taken the stream over meanwhile; the rejection is recorded, and completed by
        that run.
    UsageError: when the batch is not the one that was planned; nothing is changed.
    SluiceError: as `plan_rejection` does.
    """
    what = f"the rejection of batch {number}"
    stream = declaration.stream
    with run_of_command(ledger, stream, CommandMode.REJECTION, requested_by=requested_by, what=what) as admitted:
        run = with_raised_token(admitted, declaration, ledger=ledger, catalog=catalog)
        plan = _plan(ledger, declaration, output_views(catalog, declaration), number)
        if plan.rejection.state is RejectionState.COMPLETE:
            return plan.rejection
        _require_planned(plan.rejection, planned)
        record_event(ledger, _event(plan.rejection, run, requested_by=requested_by))
        record_batch(ledger, rejected_observation(declaration, plan.batches))
        reached(CrashPoint.RECORDED)
        for position, view in enumerate(plan.waiting):
            _require_lease(ledger, run)
            batch = plan.batches[view.output.output]
            reject_batch(catalog, view.output, batch, token=run.token, reached=reached)
            if position == 0 and len(plan.waiting) > 1:
                reached(CrashPoint.FIRST_OUTPUT_PUBLISHED)
        reached(CrashPoint.PUBLISHED)
    return plan.rejection


def _require_planned(rejection: Rejection, planned: str | None) -> None:
    """Refuse a batch that is another one than the plan showed. What the ledger has as rejected is only completed."""
    if planned is not None and rejection.state is RejectionState.NEW and rejection.digest != planned:
        rows = ", ".join(f"{count:,} rows of {output}" for output, count in rejection.rows.items())
        raise UsageError(
            f"The plan is out of date: what waits as batch {rejection.key} now has {rows}, or another generation.",
            next_step="Look at the plan again; nothing was rejected.",
        )


def _require_lease(ledger: Ledger, run: RunObservation) -> None:
    if not beat(ledger, run.run_id).holds_lease:
        raise LeaseLostError(
            f"The rejection lost the lease of stream {run.stream}, token {run.token}: another run has taken it over.",
            next_step="No action is needed: that run completes the rejection.",
        )


def _event(rejection: Rejection, run: RunObservation, *, requested_by: str) -> Event:
    return Event(
        name=run.stream,
        actor=Actor.person(requested_by),
        action=EventAction.REJECT_BATCH,
        reason=REQUESTED,
        explanation=f"Batch {rejection.key} is never published.",
        run_id=run.run_id,
        evidence={"batch": str(rejection.key), "rows": rejection.rows, "found": rejection.state},
    )


def _plan(ledger: Ledger, declaration: StreamDeclaration, views: Sequence[OutputView], number: int) -> _Plan:
    if not views:
        raise UsageError(f"Nothing is staged for {declaration.stream}: it has no staging table.")
    generations = {view.plan.position.generation for view in views}
    if len(generations) > 1:
        raise DeliveryError(
            f"The outputs of {declaration.stream} are at different generations: {sorted(generations)}.",
            next_step="Start the stream once: it opens its newest generation in every table.",
        )
    generation = generations.pop()
    recorded = find_rejection(ledger, declaration.stream, generation=generation, batch=number)
    waiting = tuple(view for view in views if _is_next(view, number))
    for view in views:
        is_past = view.has_passed(number) if recorded is not None else view.has_rejected(number)
        if view not in waiting and not is_past:
            raise _not_the_next(declaration, view, number)
    batches = {
        view.output.output: batch
        for view in views
        for batch in (*view.plan.published, *view.plan.ready)
        if batch.position == (generation, number)
    }
    rejection = Rejection(
        key=PublicationKey(stream=declaration.stream, generation=generation, batch=number),
        state=_state(is_recorded=recorded is not None, is_waiting=bool(waiting)),
        outputs=tuple(view.output.output for view in waiting),
        rows={output: batch.summary.rows or 0 for output, batch in batches.items()},
    )
    return _Plan(rejection=rejection, batches=batches, waiting=waiting)


def _is_next(view: OutputView, number: int) -> bool:
    return any(batch.summary.key.batch == number for batch in view.plan.ready[:1])


def _state(*, is_recorded: bool, is_waiting: bool) -> RejectionState:
    if not is_recorded:
        return RejectionState.NEW
    return RejectionState.INTERRUPTED if is_waiting else RejectionState.COMPLETE


def _not_the_next(declaration: StreamDeclaration, view: OutputView, number: int) -> UsageError:
    waiting = ", ".join(str(batch.summary.key.batch) for batch in view.plan.ready[:10]) or "none"
    return UsageError(
        f"Batch {number} of {declaration.stream} is not the next one of the output {view.output.output}; "
        f"staged and not visible are: {waiting}.",
        next_step="Only the first of them can be rejected, once all of its outputs are staged; start the stream to "
        "stage the missing ones.",
    )
