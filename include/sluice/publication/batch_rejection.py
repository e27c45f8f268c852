"""Rejects the next staged batch of a stream: one step that a crash does not split, under the stream's lease.

    admit a run ─► record in the ledger ─► move the mark of each output past the batch ─► end the run

No driver begins meanwhile, because the stream has one run at a time, and what an older driver may still send meets a
higher token. The ledger's record is the decision: after a crash behind it the next run of the stream, or the same
command typed again, moves the marks that have not moved, and neither publishes the batch nor writes it into a sink.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from pyiceberg.catalog import Catalog

from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import DeliveryError, LeaseLostError, UsageError
from sluice.ledger.batches import BatchObservation, PublicationKey, find_rejection, record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.events import REQUESTED, Actor, Event, EventAction, record_event
from sluice.ledger.held_batches import HeldDecision, decide_held, find_held, let_go
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import beat
from sluice.operations import OperationPlan, OperationVerb, Stake, steps_of
from sluice.publication.batch_views import OutputView, output_views
from sluice.publication.command_runs import CommandMode, refuse_live_run, run_of_command
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.mark_moves import reject_batch
from sluice.publication.repair import with_raised_token
from sluice.publication.staged_batch import StagedBatch, rejected_observation
from sluice.publication.staging_table import load_staging_table, staged_batches


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

    state: as the command found it. waiting: the outputs whose marks it moves past the batch.
    batches: by output, as they are staged; their rows never become visible. Empty once the staging tables are cleared.
    released_by: who has released it, where it cannot be published because files of it are gone; empty otherwise.
    files_gone: how many.
    """

    key: PublicationKey
    state: RejectionState
    waiting: tuple[OutputView, ...] = field(repr=False)
    batches: Mapping[str, StagedBatch] = field(repr=False)
    released_by: str = ""
    files_gone: int = 0

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the outputs whose marks it moves."""
        return tuple(view.output.output for view in self.waiting)

    @property
    def rows(self) -> Mapping[str, int]:
        """The rows that never become visible, by output."""
        return {output: batch.summary.rows or 0 for output, batch in self.batches.items()}

    def plan(self) -> OperationPlan[Rejection]:
        """The rejection for a person who is to agree to it."""
        evidence: dict[str, Any] = {
            "batch": str(self.key),
            "found": self.state,
            "outputs": self.outputs,
            "rows": self.rows,
        }
        if self.released_by:
            evidence |= {"released_by": self.released_by, "files_gone": self.files_gone}
        return OperationPlan(
            verb=OperationVerb.REJECT_BATCH,
            subject=self.key.stream,
            part=f"batch {self.key.generation}:{self.key.batch}",
            seen=self,
            steps=steps_of(*self._sentences()),
            at_stake=Stake.ROWS if self.state is RejectionState.NEW else Stake.NOTHING,
            rows=sum(self.rows.values()),
            evidence=evidence,
        )

    def _sentences(self) -> tuple[str, ...]:
        if not self.outputs:
            return (self.sentence(is_done=False),)
        return (
            self.sentence(is_done=False),
            f"The ledger records it as rejected, and {', '.join(self.outputs)} continue behind it. Its rows stay in "
            "files that no table refers to, until `sluice table remove-orphans`. This cannot be undone.",
            "Backfills leave its records of topics out; the plans of whatever else reads its input again name it.",
            "No driver can begin meanwhile; the next start of the stream publishes what waits behind it.",
        )

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
        lost = f" {self.released_by} has released it, and {self.files_gone} of its files are gone."
        return f"{batch} {verb}: {rows} never become visible.{lost if self.released_by else ''}"


def name_of(batch: BatchObservation) -> str:
    """A batch as plans name it."""
    return f"{batch.key.generation}:{batch.key.batch}"


def returning_sentence(rejections: Sequence[BatchObservation]) -> str:
    """What of the rejected batches of a stream a reading from the beginning brings back; empty without any."""
    if not rejections:
        return ""
    named = ", ".join(f"{name_of(one)} with {one.input_rows:,} rows" for one in rejections)
    return (
        f"What a person rejected is read again, and its rows become visible unless the transformation leaves them out: "
        f"{named}."
    )


def _next_of(declaration: StreamDeclaration, views: Sequence[OutputView]) -> int:
    """The number of the batch that is to be published next: the only one that can be rejected."""
    waiting = [view.plan.ready[0].summary.key.batch for view in views if view.plan.ready]
    if not waiting:
        raise UsageError(f"No batch of {declaration.stream} is staged and waits for its publication.")
    return min(waiting)


def plan_rejection(
    catalog: Catalog, ledger: Ledger, declaration: StreamDeclaration, *, number: int | None = None
) -> OperationPlan[Rejection]:
    """Check whether a batch may be rejected now, and plan the rejection. Nothing is changed.

    Parameters
    ----------
    number: of the batch; unset: the one that is to be published next.

    Raises
    ------
    RunAlreadyLiveError: when the stream has a live run, which publishes the staged batches.
    UsageError: when no batch waits, the batch is not the next one, not all of its outputs are staged, or a person has
        released it and its files are there.
    DeliveryError, LakehouseError: when a table was changed by another writer, or cannot be read.
    """
    refuse_live_run(ledger, declaration.stream)
    views = output_views(catalog, declaration)
    found = _find(ledger, declaration, views, _next_of(declaration, views) if number is None else number)
    return _require_unpublishable(catalog, ledger, found).plan()


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
        found = _find(ledger, declaration, output_views(catalog, declaration), number)
        if found.state is RejectionState.COMPLETE:
            return found
        found = _require_unpublishable(catalog, ledger, found)
        _require_planned(found, planned)
        _record_decision(catalog, ledger, found, run, requested_by=requested_by)
        record_batch(ledger, rejected_observation(declaration, found.batches))
        reached(CrashPoint.RECORDED)
        for position, view in enumerate(found.waiting):
            _require_lease(ledger, run)
            batch = found.batches[view.output.output]
            reject_batch(catalog, view.output, batch, token=run.token, reached=reached)
            if position == 0 and len(found.waiting) > 1:
                reached(CrashPoint.FIRST_OUTPUT_PUBLISHED)
        reached(CrashPoint.PUBLISHED)
        let_go(ledger, found.key)
    return found


def _require_planned(rejection: Rejection, planned: str | None) -> None:
    """Refuse a batch that is another one than the plan showed. What the ledger has as rejected is only completed."""
    if planned is not None and rejection.state is RejectionState.NEW and rejection.plan().digest != planned:
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


def _record_decision(
    catalog: Catalog, ledger: Ledger, found: Rejection, run: RunObservation, *, requested_by: str
) -> None:
    """Record who rejects the batch. One that a rule holds can be released until then, and not any more afterwards."""
    event = _event(found, run, requested_by=requested_by)
    if not decide_held(ledger, found.key, HeldDecision.REJECTED, event, by=requested_by):
        _require_unpublishable(catalog, ledger, found)
        record_event(ledger, event)


def _require_unpublishable(catalog: Catalog, ledger: Ledger, found: Rejection) -> Rejection:
    """Refuse a batch that a person has released, unless files of it are gone: then no run can publish it any more.

    Returns
    -------
    The rejection, with who has released the batch.
    """
    held = find_held(ledger, found.key.stream)
    is_same = held is not None and held.key == found.key and found.state is RejectionState.NEW
    if held is None or not is_same or held.decision is None or not held.decision.is_release:
        return found
    gone = sum(_files_gone(catalog, view, found.key) for view in found.waiting)
    if gone:
        return replace(found, released_by=held.decided_by or "", files_gone=gone)
    raise UsageError(
        f"Batch {found.key.batch} of {found.key.stream} was released by {held.decided_by}, and no run has carried "
        "that out yet.",
        next_step=f"Start the stream, which publishes it: `sluice stream start {found.key.stream}`.",
    )


def _files_gone(catalog: Catalog, view: OutputView, key: PublicationKey) -> int:
    """How many files of a batch are gone, of what was staged first and of what was staged again."""
    from sluice.publication.file_preparation import find_missing_files  # pandas, which few commands need

    staging = load_staging_table(catalog, view.output)
    staged = staged_batches(staging, stream=view.output.stream, output=view.output.output)
    of_batch = [one for one in staged if one.summary.key == key and not one.is_overtaken]
    return sum(len(missing.files) for missing in find_missing_files(staging, of_batch))


def _event(rejection: Rejection, run: RunObservation, *, requested_by: str) -> Event:
    return Event(
        name=run.stream,
        actor=Actor.person(requested_by),
        action=EventAction.REJECT_BATCH,
        reason=REQUESTED,
        explanation=f"Batch {rejection.key} is never published.",
        run_id=run.run_id,
        evidence=rejection.plan().evidence,
    )


def _find(ledger: Ledger, declaration: StreamDeclaration, views: Sequence[OutputView], number: int) -> Rejection:
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
    return Rejection(
        key=PublicationKey(stream=declaration.stream, generation=generation, batch=number),
        state=_state(is_recorded=recorded is not None, is_waiting=bool(waiting)),
        waiting=waiting,
        batches=batches,
    )


def _is_next(view: OutputView, number: int) -> bool:
    return any(batch.summary.key.batch == number for batch in view.plan.ready[:1])


def _state(*, is_recorded: bool, is_waiting: bool) -> RejectionState:
    if not is_recorded:
        return RejectionState.NEW
    return RejectionState.INTERRUPTED if is_waiting else RejectionState.COMPLETE


def _not_the_next(declaration: StreamDeclaration, view: OutputView, number: int) -> UsageError:
    waiting = ", ".join(str(batch.summary.key.batch) for batch in view.plan.ready[:10])
    if not waiting:
        return UsageError(
            f"Batch {number} of {declaration.stream} does not wait: of the output {view.output.output} nothing is "
            "staged and not visible.",
            next_step=f"See its batches with `sluice batch list {declaration.stream}`.",
        )
    return UsageError(
        f"Batch {number} of {declaration.stream} is not the next one of the output {view.output.output}; "
        f"staged and not visible are: {waiting}.",
        next_step="Only the first of them can be rejected, once all of its outputs are staged; start the stream to "
        "stage the missing ones.",
    )
