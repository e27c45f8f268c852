"""Runs the backfill of one interval: plans, computes, stages, audits and replaces it; again when others changed it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass

from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sluice.backfill.backfill_plan import BackfillObservation, plan_backfill
from sluice.backfill.backfill_steps import BackfillStep, ReachedStep, unnoticed_step
from sluice.backfill.balance import RowCounts, require_balance
from sluice.backfill.interval_gaps import Fingerprint
from sluice.backfill.intervals import Interval, divide
from sluice.backfill.observe_backfill import (
    backfill_of,
    backfilled_output,
    interval_of_table,
    is_merged,
    observe_backfill,
)
from sluice.backfill.settled_plan import PATIENCE_SECONDS, PlannedOn, settled_plan
from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.errors import DeliveryError, IntervalChangedError, LakehouseError, StarvedError, UnpublishableError
from sluice.ledger.backfill_attempts import begin_attempt, end_attempt, interval_lock, record_plan
from sluice.ledger.connection import Ledger
from sluice.ledger.records.backfill_attempt import BackfillAttemptKey, BackfillState
from sluice.ledger.table_locks import PublicationLocks
from sluice.publication.interval_files import TouchedFiles, touched_files
from sluice.publication.replace_interval import IntervalReplacement, replace_interval
from sluice.publication.staged_batch import canonical_offsets
from sluice.publication.staging_layout import BACKFILL_NAMESPACE, drop_staging_copy
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice_spark.backfill.interval_rows import IntervalRows, compute_interval, require_exact
from sluice_spark.backfill.rejected_rows import RejectedRows
from sluice_spark.backfill.table_rows import HeldRows, StagedRows, fingerprint, stage_rows
from sluice_spark.query.stream_plan import plan_stream
from sluice_spark.run.job import reason_of
from sluice_spark.session.spark_errors import first_line

_log = logging.getLogger(__name__)

MOST_ATTEMPTS = 10
"""How often an interval is computed before the run gives up: each time, somebody else has changed it meanwhile."""

LANE = "backfill"
"""The second part of the publication key of a backfill."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillResult:
    """How a backfill ended: PUBLISHED with its snapshot, or UNCHANGED; and its numbers of rows.

    followers: the results of the streams that followed it.
    """

    key: str
    state: BackfillState
    snapshot_id: int | None
    rows: Mapping[str, int]
    followers: tuple[BackfillResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRun:
    """The backfill of one interval of one stream.

    open_session: called once, when the plan is not refused.
    patience_seconds: how long the run waits for a batch of the stream without which the interval cannot be planned.
    """

    settings: Settings
    ledger: Ledger
    declarations: Declarations
    stream: LoadedStream
    interval: Interval
    launched_by: str
    open_session: Callable[[], SparkSession]
    reached: ReachedStep = unnoticed_step
    patience_seconds: float = PATIENCE_SECONDS

    def work(self) -> BackfillResult:
        """Backfill the interval.

        Raises
        ------
        UsageError: when the stream does not declare a backfill, or the interval is not whole.
        UnpublishableError: when the plan is refused; the message has every reason.
        VerificationError: when the numbers of rows do not add up; nothing is published.
        StarvedError: when others changed the interval before every attempt.
        LedgerError: when another run works on the same interval, or the ledger cannot be reached.
        DeliveryError, LakehouseError: when the interval cannot be staged or published.
        """
        divide(self.interval, backfill_of(self.stream).interval)
        start, end = self.interval.start, self.interval.end
        with interval_lock(self.ledger, self.stream.name, start=start, end=end):
            for number in range(MOST_ATTEMPTS):
                key = begin_attempt(self.ledger, self.stream.name, start=start, end=end, launched_by=self.launched_by)
                try:
                    return self._attempt(key, is_first=number == 0)
                except IntervalChangedError as changed:
                    _log.info("%s It is computed again.", changed)
                    end_attempt(self.ledger, key, BackfillState.CHANGED_MEANWHILE, reason=changed.message)
                except Exception as error:
                    end_attempt(self.ledger, key, BackfillState.FAILED, reason=reason_of(error))
                    raise
        raise StarvedError(
            f"The interval {self.interval.spoken} of {self.stream.name} changed {MOST_ATTEMPTS} times while it was "
            "computed.",
            next_step="Find who writes into this interval of the table, or try again later.",
        )

    def _attempt(self, attempt: BackfillAttemptKey, *, is_first: bool) -> BackfillResult:
        catalog = open_catalog(self.settings)

        def look() -> PlannedOn:
            seen, target = observe_backfill(catalog, self.ledger, self.declarations, self.stream, self.interval)
            return PlannedOn(plan=plan_backfill(seen), target=target)

        turn = self._turn if not is_first and is_merged(self.stream) else None
        with settled_plan(look, turn=turn, patience_seconds=self.patience_seconds) as planned:
            result = self._compute_and_replace(catalog, planned, attempt)
        end_attempt(self.ledger, attempt, result.state, rows=result.rows, snapshot_id=result.snapshot_id)
        self.reached(BackfillStep.RECORDED)
        return result

    def _turn(self) -> AbstractContextManager[object]:
        """The turn among those that merge into the target. A stream that merges every few seconds rewrites the files of
        the interval each time, and an interval that takes longer to compute would never be replaced."""
        return PublicationLocks(ledger=self.ledger).acquire(backfilled_output(self.stream).target)

    def _compute_and_replace(self, catalog: Catalog, planned: PlannedOn, attempt: BackfillAttemptKey) -> BackfillResult:
        seen = planned.plan.seen
        if seen.published is None:  # refused before
            raise UnpublishableError(f"Nothing is known of what {self.stream.name} has published.")
        record_plan(self.ledger, attempt, planned_on=seen.head, end_offsets=seen.published.end_offsets)
        self.reached(BackfillStep.PLANNED)
        spark = self.open_session()
        require_exact(plan_stream(spark, self.stream, self.settings), seen.published)
        computed = compute_interval(spark, self.stream, self.settings, seen)
        try:
            replacing = IntervalReplacing(
                run=self, spark=spark, catalog=catalog, seen=seen, target=planned.target, attempt=attempt
            )
            return replacing.replace(computed)
        finally:
            computed.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalReplacing:
    """One attempt to replace an interval by computed rows. target: as it was loaded for the plan."""

    run: BackfillRun
    spark: SparkSession
    catalog: Catalog
    seen: BackfillObservation
    target: Table
    attempt: BackfillAttemptKey

    @property
    def key(self) -> str:
        """The publication key."""
        return f"{self.attempt.stream}/{LANE}/{self.seen.interval}/{self.attempt.attempt}"

    def replace(self, computed: IntervalRows) -> BackfillResult:
        """Stage, audit and publish the rows, unless the table holds the very same ones.

        Raises
        ------
        IntervalChangedError: when the interval has changed since the plan.
        """
        held = HeldRows(
            spark=self.spark,
            catalog=self.run.settings.catalog.name,
            target=self.seen.output.target,
            head=self.seen.head,
            column=backfill_of(self.run.stream).column,
        )
        try:
            new = fingerprint(computed.rows)
        except (PySparkException, Py4JJavaError) as error:
            raise DeliveryError(
                f"The interval {self.seen.interval.spoken} of {self.attempt.stream} cannot be computed: "
                f"{first_line(error)}."
            ) from error
        touched = touched_files(self.target, interval_of_table(self.run.stream, self.seen.interval))
        old = fingerprint(held.of_interval(self.seen.interval)) if touched.rows else Fingerprint.of_no_rows()
        self.run.reached(BackfillStep.COMPUTED)
        rejected = RejectedRows(attempt=self.attempt, key=self.key, seen=self.seen, staging=self._staging("quarantine"))
        try:
            staged = None if new.is_same_as(old) else self._stage(computed, held, touched)
            self.run.reached(BackfillStep.STAGED)
            counts = self._audit(computed, new=new, old=old, staged=staged, touched=touched)
            self.run.reached(BackfillStep.AUDITED)
            if computed.rejected is not None:
                rejected.publish(self.spark, self.catalog, computed.rejected, catalog_name=self.catalog.name)
            self.run.reached(BackfillStep.QUARANTINED)
            snapshot_id = None if staged is None else self._publish(staged, touched, counts)
        finally:
            self._drop(self._staging(self.seen.output.output), self._staging("quarantine"))
        self.run.reached(BackfillStep.PUBLISHED)
        state = BackfillState.UNCHANGED if snapshot_id is None else BackfillState.PUBLISHED
        return BackfillResult(key=self.key, state=state, snapshot_id=snapshot_id, rows=asdict(counts))

    def _stage(self, computed: IntervalRows, held: HeldRows, touched: TouchedFiles) -> StagedRows:
        beside = held.beside(self.seen.interval, touched, self.target)
        return stage_rows(
            self.catalog,
            [computed.rows, beside] if touched.partial else [computed.rows],
            staging=self._staging(self.seen.output.output),
            target=self.seen.output.target,
            key=self.key,
        )

    def _audit(
        self,
        computed: IntervalRows,
        *,
        new: Fingerprint,
        old: Fingerprint,
        staged: StagedRows | None,
        touched: TouchedFiles,
    ) -> RowCounts:
        kept = touched.rows - old.rows
        counts = RowCounts(
            read=computed.read(),
            published=new.rows,
            outside=computed.results() - new.rows,
            quarantined=computed.rejected.count() if computed.rejected is not None else 0,
            duplicate=computed.duplicates(),
            replaced=old.rows,
            kept=kept,
            rewritten=touched.rows,
            staged=staged.rows if staged is not None else new.rows + kept,
        )
        require_balance(counts, accounts_for_rows=backfill_of(self.run.stream).balance == "rows", what=self.key)
        return counts

    def _publish(self, staged: StagedRows, touched: TouchedFiles, counts: RowCounts) -> int:
        replacement = IntervalReplacement(
            output=self.seen.output,
            key=self.key,
            interval=interval_of_table(self.run.stream, self.seen.interval),
            head=self.seen.head,
            touched=touched,
            staging=staged.table,
            staged=staged.files,
            is_merged=is_merged(self.run.stream),
            summary={
                "sluice.output": self.seen.output.output,
                "sluice.end-offsets": canonical_offsets(self.seen.published.end_offsets if self.seen.published else {}),
                "sluice.rows": str(counts.published),
            },
        )
        return replace_interval(self.catalog, replacement, reached=lambda _: self.run.reached(BackfillStep.CHECKED))

    def _staging(self, output: str) -> str:
        """The staging table of an output, of this interval only: parallel runs have different ones."""
        interval = str(self.seen.interval).replace("-", "_").lower()
        return f"{BACKFILL_NAMESPACE}.{self.seen.output.stream}__{output}__{interval}"

    def _drop(self, *names: str) -> None:
        for name in names:
            try:
                drop_staging_copy(self.catalog, name)
            except LakehouseError as error:
                _log.warning("a staging table stays until the interval is backfilled again: %s", error)
