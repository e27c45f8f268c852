"""Carries out the maintenance plan of one table, one step after another.

Writers have priority: when a stream commits while a rewrite is running, the rewrite starts over a few times, and then
yields and reports it. After a failed step no later step runs, because expiry would remove the evidence. Small groups of
files are put together here (`file_rewrite`); what else reads and writes files is done by an engine, behind the port
`table_procedures.TableProcedures`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from tenacity import RetryError, Retrying, retry_if_exception_type, stop_after_attempt

from sluice.errors import DeliveryError, LakehouseError, UnpublishableError
from sluice.ledger.maintenance_runs import MaintenanceStep, StepObservation, StepOutcome
from sluice.maintenance.compaction_plan import after_conflict
from sluice.maintenance.file_rewrite import CommitConflictError, rewrite_small_files
from sluice.maintenance.maintenance_plan import MaintenancePlan
from sluice.maintenance.old_files import remove_old_files
from sluice.maintenance.position_pins import commit_pins, remove_references
from sluice.maintenance.row_retention import AGREED, ARRIVED_BEFORE, BEFORE, COLUMN, READ_UP_TO
from sluice.maintenance.statistics_plan import NewRefusalsError, compute_statistics
from sluice.maintenance.step_decision import (
    RewriteCall,
    StepAction,
    StepDecision,
    StepProgress,
    StepReason,
    TableProcedures,
)
from sluice.publication.crash_points import Reached, unnoticed
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.tables.catalog import catalog_refusals
from sluice.tables.inspection import observe_table
from sluice.tables.table_observation import TableObservation

if TYPE_CHECKING:
    from pyiceberg.table import Table


_Work = Callable[[StepDecision, MaintenancePlan, int | None], Mapping[str, Any]]

ATTEMPTS = 3
"""The attempts of a rewrite while writers commit. Each attempt repeats the whole work."""


class Setback(StrEnum):
    """Why a due step was not completed."""

    WRITERS_WON = "writers_won"
    CONTENT_CHANGED = "content_changed"
    PIN_LOST = "pin_lost"
    PROCEDURE_FAILED = "procedure_failed"
    EARLIER_STEP_FAILED = "earlier_step_failed"
    ORPHANS_NEEDED = "orphans_needed"
    NOT_ALLOWED = "not_allowed"
    STORE_REFUSES = "store_refuses"


class _SetbackError(Exception):
    """A step ended, and its result is wrong. Internal to this module."""

    def __init__(self, setback: Setback, explanation: str) -> None:
        super().__init__(explanation)
        self.setback = setback


@dataclass(frozen=True, slots=True, kw_only=True)
class TableMaintainer:
    """Carries out maintenance plans of one table.

    name: the name of the table.
    table: the table, loaded by pyiceberg.
    procedures: what needs an engine; unset for a plan that does not need one.
    before_step: called with each step that is due, before it is carried out; when it raises, nothing more is done.
    between_calls: the same before each call of a compaction by Spark but the first.
    identity: of the run, under which a rewrite without Spark writes.
    reached: called at the points of a rewrite without Spark.
    remove_orphans: moves what dead writers left behind to the trash, and says how much; unset for a plan without that.
    """

    name: str
    table: Table
    procedures: TableProcedures | None
    before_step: Callable[[StepDecision], None]
    identity: str
    reached: Reached = unnoticed
    remove_orphans: Callable[[], Mapping[str, Any]] | None = None
    between_calls: Callable[[], object] = lambda: None

    def carry_out(self, plan: MaintenancePlan) -> tuple[StepObservation, ...]:
        """Carry out the due steps of a plan in their order.

        Returns
        -------
        The outcome of every step. Errors of the engine, the catalog and the object store are outcomes; they are not
        raised.

        Raises
        ------
        LedgerError: when `before_step` cannot save the decision.
        """
        done: list[StepObservation] = []
        for decision in plan.steps:
            if decision.action is not StepAction.RUN:
                outcome = StepOutcome.SKIPPED if decision.action is StepAction.SKIP else StepOutcome.REFUSED
                done.append(_observation(decision, outcome))
            elif any(step.outcome is StepOutcome.FAILED for step in done):
                reason = "an earlier step failed, so this one was not started"
                done.append(_observation(decision, StepOutcome.REFUSED, Setback.EARLIER_STEP_FAILED, reason))
            elif done and (left := self._manifests_left(decision, done[-1])) is not None:
                few = replace(decision, reason=StepReason.FEW_MANIFESTS, explanation=left)
                done.append(_observation(few, StepOutcome.SKIPPED))
            else:
                self.before_step(decision)
                done.append(self._measured(decision, plan))
        return tuple(done)

    def _manifests_left(self, decision: StepDecision, before: StepObservation) -> str | None:
        """Why manifests are not rewritten after all: the rewrite of files before has left few."""
        enough = decision.options.get("min_manifests")
        if before.outcome is not StepOutcome.DONE or enough is None:
            return None
        with catalog_refusals(f"read the manifests of {self.name}"):
            newest = self.table.refresh().current_snapshot()
            left = len(newest.manifests(self.table.io)) if newest is not None else 0
        is_few = left < enough
        return f"the rewrite of files left {left} manifests; from {enough} on they are rewritten" if is_few else None

    def observe(self, *, small_file_bytes: int, now: datetime) -> TableObservation:
        """Reload and observe the table.

        Parameters
        ----------
        small_file_bytes: a smaller file counts as small.
        now: the time of the observation.
        """
        return observe_table(self._refreshed(), name=self.name, small_file_bytes=small_file_bytes, now=now)

    def _measured(self, decision: StepDecision, plan: MaintenancePlan) -> StepObservation:
        started = time.monotonic()
        done = self._done(decision, plan)
        return replace(done, duration_ms=round((time.monotonic() - started) * 1000))

    def _done(self, decision: StepDecision, plan: MaintenancePlan) -> StepObservation:
        attempts = 0
        progress = StepProgress(left=list(decision.calls or (RewriteCall(),)))
        works: Mapping[MaintenanceStep, _Work] = {
            MaintenanceStep.REMOVE_OLD_ROWS: self._remove_old_rows,
            MaintenanceStep.REWRITE_DATA_FILES: partial(self._rewrite_data_files, progress),
            MaintenanceStep.REWRITE_MANIFESTS: self._rewrite_manifests,
            MaintenanceStep.PIN_SNAPSHOTS: self._pin_snapshots,
            MaintenanceStep.EXPIRE_SNAPSHOTS: partial(self._expire_snapshots, progress),
            MaintenanceStep.REMOVE_ORPHANS: self._remove_orphans,
            MaintenanceStep.COMPUTE_STATISTICS: lambda due, _, __: compute_statistics(self._engine, due),
        }
        work = works[decision.step]
        tries = Retrying(stop=stop_after_attempt(ATTEMPTS), retry=retry_if_exception_type(CommitConflictError))
        try:
            since = self._head()
            for attempt in tries:
                with attempt:
                    attempts += 1
                    result = work(decision, plan, since)
        except RetryError as error:
            explanation = f"writers committed first, {attempts} times of {attempts}: {_cause(error)}{progress.share}"
            won, made = Setback.WRITERS_WON, progress.result
            return _observation(decision, StepOutcome.YIELDED, won, explanation, attempts=attempts, result=made)
        except _SetbackError as error:
            made = progress.result
            return _observation(decision, StepOutcome.FAILED, error.setback, str(error), attempts=attempts, result=made)
        except UnpublishableError as error:
            is_of_orphans = decision.step is MaintenanceStep.REMOVE_ORPHANS
            why = Setback.ORPHANS_NEEDED if is_of_orphans else Setback.NOT_ALLOWED
            return _observation(decision, StepOutcome.REFUSED, why, str(error), attempts=attempts)
        except NewRefusalsError as error:
            refuses = Setback.STORE_REFUSES
            return _observation(decision, StepOutcome.REFUSED, refuses, str(error), attempts=1, result=error.result)
        except (LakehouseError, DeliveryError) as error:  # also a commit whose answer was lost: it may have landed
            explanation, failed = f"{error}{progress.share}", Setback.PROCEDURE_FAILED
            made = progress.result
            return _observation(decision, StepOutcome.FAILED, failed, explanation, attempts=attempts, result=made)
        explanation = f"{decision.explanation}{progress.kept_deletes}"
        return _observation(decision, StepOutcome.DONE, explanation=explanation, attempts=attempts, result=result)

    def _remove_old_rows(self, decision: StepDecision, _: MaintenancePlan, __: int | None) -> Mapping[str, Any]:
        return remove_old_files(
            PyIcebergCommitter(self.table.catalog),
            self.name,
            column=decision.options[COLUMN],
            before=decision.options[BEFORE],
            read_up_to=decision.options[READ_UP_TO],
            agreed=decision.options[AGREED],
            arrived_before=decision.options[ARRIVED_BEFORE],
            reached=self.reached,
        )

    def _rewrite_data_files(
        self, progress: StepProgress, decision: StepDecision, plan: MaintenancePlan, since: int | None
    ) -> Mapping[str, Any]:
        if not decision.is_for_spark:
            result = self._rewrite_without_spark(decision, plan)
            _require_all_replaced(result)
            return result
        removed: Mapping[str, Any] = {}
        try:
            conflict = self._rewrite_by_spark(progress, decision)
            if conflict is None and decision.reason is StepReason.DELETED_ROWS:
                removed = {"removed_dangling_delete_files": self._removed_dangling_deletes(progress)}
        finally:  # what was committed is compared with its parent, whatever comes of the rest
            proof = self._verified(plan, since)
        if conflict is not None:
            raise conflict
        return {**progress.figures, **removed, **proof}

    def _rewrite_by_spark(self, progress: StepProgress, decision: StepDecision) -> CommitConflictError | None:
        """Make the calls that are left. One before which writers came does not keep the others from being made."""
        conflict = None
        for number, call in enumerate(tuple(progress.left)):
            if number:
                self.between_calls()
            options = {**decision.options, **call.options}
            try:
                figures = self._engine.rewrite_data_files(
                    options, where=call.where, is_sorted=decision.is_sorted, z_order=decision.z_order
                )
                _require_all_replaced(figures)
            except CommitConflictError as error:
                conflict = error
                progress.left[progress.left.index(call)] = after_conflict(call)
                continue
            progress.left.remove(call)
            progress.made += 1
            progress.figures.update(figures)
        return conflict

    def _removed_dangling_deletes(self, progress: StepProgress) -> int:
        """How many are gone: none where writers committed first each time. The rewrite was made and stays."""
        tries = Retrying(stop=stop_after_attempt(ATTEMPTS), retry=retry_if_exception_type(CommitConflictError))
        try:
            return tries(self._engine.remove_dangling_deletes)
        except RetryError as error:
            progress.kept_deletes = (
                f"; delete files that hide nothing stay, because writers committed first: {_cause(error)}"
            )
            return 0

    def _rewrite_without_spark(self, decision: StepDecision, plan: MaintenancePlan) -> Mapping[str, Any]:
        return rewrite_small_files(
            PyIcebergCommitter(self.table.catalog),
            self.name,
            partitions=decision.partitions,
            small_file_bytes=plan.seen.small_file_bytes,
            compared_bytes=plan.content_check_bytes,
            now=plan.seen.observed_at,
            identity=self.identity,
            reached=self.reached,
        )

    def _rewrite_manifests(self, _: StepDecision, plan: MaintenancePlan, since: int | None) -> Mapping[str, Any]:
        return {**self._engine.rewrite_manifests(), **self._verified(plan, since)}

    def _pin_snapshots(self, _: StepDecision, plan: MaintenancePlan, __: int | None) -> Mapping[str, Any]:
        pins = plan.pins
        commit_pins(self.table, to_set=pins.to_set, to_remove=pins.to_remove, properties=pins.properties)
        return {
            "set": [pin.tag for pin in pins.to_set],
            "removed": list(pins.to_remove),
            "properties": dict(pins.properties),
        }

    def _expire_snapshots(
        self, progress: StepProgress, decision: StepDecision, plan: MaintenancePlan, _: int | None
    ) -> Mapping[str, Any]:
        progress.references += remove_references(self.table, decision.references)
        result = self._engine.expire_snapshots(**decision.options)
        left = {snapshot.snapshot_id for snapshot in self._refreshed().snapshots()}
        if lost := [pin.tag for pin in plan.pins.pins if pin.snapshot_id not in left]:
            raise _SetbackError(Setback.PIN_LOST, f"expiry removed pinned snapshots: {', '.join(lost)}")
        return {**result, **progress.result}

    def _remove_orphans(self, _: StepDecision, __: MaintenancePlan, ___: int | None) -> Mapping[str, Any]:
        if self.remove_orphans is None:
            raise LakehouseError("the step looks for files of dead writers, and the run was made without that")
        return self.remove_orphans()

    @property
    def _engine(self) -> TableProcedures:
        if self.procedures is None:
            raise LakehouseError("the step needs Spark, and the plan was made for a run without it")
        return self.procedures

    def _refreshed(self) -> Table:
        with catalog_refusals(f"load the table {self.name}"):
            return self.table.refresh()

    def _head(self) -> int | None:
        newest = self._refreshed().current_snapshot()
        return newest.snapshot_id if newest else None

    def _verified(self, plan: MaintenancePlan, since: int | None) -> Mapping[str, Any]:
        """Compare the content of every rewrite after the snapshot `since` with its parent, an unbroken row at once."""
        now = self.observe(small_file_bytes=plan.seen.small_file_bytes, now=plan.seen.observed_at)
        rewrites = now.rewrites_since(since)
        rows = unbroken(rewrites)
        is_hashed = 2 * len(rows) * now.data_bytes <= plan.content_check_bytes
        if changed := self._engine.changed_content(rows, is_hashed=is_hashed):
            raise _SetbackError(Setback.CONTENT_CHANGED, changed)
        return {"rewrites_verified": len(rewrites), "rows_hashed": is_hashed}


def unbroken(rewrites: Sequence[tuple[int, int]]) -> Sequence[tuple[int, int]]:
    """Rewrites, each as (parent, rewrite), where one that follows another one directly is one with it: no writer came
    between, so the rows of the first parent are those of the last rewrite."""
    found: list[tuple[int, int]] = []
    for parent, rewrite in rewrites:
        first = found.pop()[0] if found and found[-1][1] == parent else parent
        found.append((first, rewrite))
    return found


def _observation(
    decision: StepDecision,
    outcome: StepOutcome,
    setback: Setback | None = None,
    explanation: str = "",
    *,
    attempts: int = 0,
    result: Mapping[str, Any] | None = None,
) -> StepObservation:
    return StepObservation(
        step=decision.step,
        outcome=outcome,
        reason=setback or decision.reason,
        explanation=explanation or decision.explanation,
        attempts=attempts,
        result=result or {},
    )


def _require_all_replaced(figures: Mapping[str, Any]) -> None:
    if figures["failed_data_files_count"]:
        raise CommitConflictError(f"{figures['failed_data_files_count']} files could not be replaced")


def _cause(error: RetryError) -> str:
    return str(error.last_attempt.exception())
