"""Computes intervals that touch as one batch, and replaces each in a commit of its own.

What Spark does for a batch before its first row is most of what a small interval costs; here it is done once for all.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from sluice.backfill.backfill_plan import BackfillObservation, plan_backfill
from sluice.backfill.interval_gaps import Fingerprint
from sluice.backfill.intervals import Interval, divide, spanned
from sluice.backfill.observe_backfill import backfill_of, interval_of_table
from sluice.backfill.results import RowCounts
from sluice.errors import IntervalChangedError, SluiceError, UnpublishableError
from sluice.ledger.backfill_attempts import BackfillAttemptKey, BackfillState, end_attempt
from sluice.publication.crash_points import CrashPoint
from sluice.publication.interval_files import TouchedFiles, is_whole, touched_files
from sluice.publication.resolved_rejections import RejectedAt
from sluice.tables.catalog import open_catalog
from sluice_spark.backfill.backfill_run import BackfillRun
from sluice_spark.backfill.held_rows import HeldRows, StagedRows, computing, fingerprints, stage_rows
from sluice_spark.backfill.interval_replacing import BackfillResult, IntervalReplacing
from sluice_spark.backfill.interval_rows import IntervalRows, computed_interval
from sluice_spark.run.job import reason_of

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointRun:
    """Backfills of intervals of one stream that touch, in the order in which they become visible.

    runs: with the same settings, ledger and declarations.
    ended: the attempts whose end is recorded; what fails after it changes nothing in it.
    """

    runs: tuple[BackfillRun, ...]
    ended: set[BackfillAttemptKey] = field(default_factory=set, init=False)

    def work(self) -> dict[Interval, BackfillResult]:
        """Replace the intervals, whose locks the caller has. Each has its own attempt, balance and commit.

        Returns
        -------
        The results of those that were replaced. The others have to be backfilled one by one: only alone an interval
        waits for the next batch of the stream, is computed again after a change, and fails with a reason of its own.
        """
        results: dict[Interval, BackfillResult] = {}
        try:
            self._replace(results)
        except SluiceError as error:
            left = len(self.runs) - len(results)
            _log.info("%d intervals of %s are computed one by one: %s", left, self._any.stream.name, error)
        return results

    @property
    def _any(self) -> BackfillRun:
        return self.runs[0]

    @property
    def _intervals(self) -> tuple[Interval, ...]:
        return tuple(run.interval for run in self.runs)

    def _replace(self, results: dict[Interval, BackfillResult]) -> None:
        run = self._any
        for interval in self._intervals:
            divide(interval, backfill_of(run.stream).interval)
        catalog, whole = open_catalog(run.settings), spanned(self._intervals)
        seen, target = replace(run, interval=whole).observe(catalog)
        plan_backfill(seen).require_unrefused()
        touched = touched_files(target, interval_of_table(run.stream, whole)).files
        files = self._apart(target, touched)
        replacing = {
            one.interval: one.replacing(*one.begin(), catalog=catalog, seen=seen, target=target) for one in self.runs
        }
        try:
            self._compute(seen, replacing, files, results, target=target)
        except Exception as error:
            for one in replacing.values():
                if one.attempt not in self.ended:
                    self._end(one, error)
            raise

    def _end(self, replacing: IntervalReplacing, error: Exception) -> None:
        is_changed = isinstance(error, IntervalChangedError)
        state = BackfillState.CHANGED_MEANWHILE if is_changed else BackfillState.FAILED
        end_attempt(self._any.ledger, replacing.attempt, state, reason=reason_of(error))
        self.ended.add(replacing.attempt)

    def _compute(
        self,
        seen: BackfillObservation,
        replacing: Mapping[Interval, IntervalReplacing],
        files: Mapping[Interval, Sequence[DataFile]],
        results: dict[Interval, BackfillResult],
        *,
        target: Table,
    ) -> None:
        run = self._any
        run.reached(CrashPoint.PLANNED)
        spark = run.open_session()
        with computed_interval(spark, run.stream, run.settings, seen, target) as (computed, held):
            try:
                prepared = self._prepare(spark, held, computed, replacing, files)
                corrected = replacing[run.interval].corrected(spark, computed, held, self._intervals)
                replacing[run.interval].require_unchanged()
                for interval, (staged, touched, counts) in prepared.items():
                    is_last = len(results) == len(prepared) - 1  # and all before it are visible
                    resolved = corrected if is_last else frozenset()
                    self._publish(replacing[interval], staged, touched, counts, results, corrected=resolved)
            finally:
                replacing[run.interval].drop_staging()

    def _prepare(
        self,
        spark: SparkSession,
        held: HeldRows,
        computed: IntervalRows,
        replacing: Mapping[Interval, IntervalReplacing],
        files: Mapping[Interval, Sequence[DataFile]],
    ) -> dict[Interval, tuple[StagedRows | None, TouchedFiles, RowCounts]]:
        """Stage and audit the rows of all intervals, and quarantine what is rejected, before any becomes visible."""
        run, first = self._any, replacing[self._any.interval]
        column, whole = backfill_of(run.stream).column, spanned(self._intervals)
        with computing(f"The interval {whole.spoken} of {run.stream.name}"):
            new = fingerprints(computed.rows, column, self._intervals)
        first.require_times(computed, held)
        computed.require_unbroken(run.stream.rules)
        within = held.of_interval(whole)
        old = fingerprints(within, column, self._intervals) if any(files.values()) else {}
        run.reached(CrashPoint.COMPUTED)
        staged = self._stage(computed, first, new=new, old=old)
        run.reached(CrashPoint.STAGED)
        moved = first.moved_rows(computed, held) if staged and any(old.values()) else 0
        if staged:
            first.require_removed(computed, held)
        totals, prepared = computed.totals(moved=moved), {}
        for interval, one in replacing.items():
            touched = TouchedFiles(whole=tuple(files[interval]), partial=())
            before, here = old.get(interval, Fingerprint.of_no_rows()), staged.get(interval)
            counts = one.audit(totals, new=new[interval], old=before, staged=here, touched=touched)
            prepared[interval] = (here, touched, counts)
        run.reached(CrashPoint.AUDITED)
        if computed.rejected is not None and totals.quarantined:
            first.rejected.publish(spark, first.catalog, computed.rejected, catalog_name=first.catalog.name)
        run.reached(CrashPoint.QUARANTINED)
        return prepared

    def _stage(
        self,
        computed: IntervalRows,
        first: IntervalReplacing,
        *,
        new: Mapping[Interval, Fingerprint],
        old: Mapping[Interval, Fingerprint],
    ) -> dict[Interval, StagedRows]:
        """Stage the rows of the intervals that change, in files of each interval alone."""
        output = first.seen.output
        changed = [one for one in self._intervals if new[one] != old.get(one, Fingerprint.of_no_rows())]
        if not changed:
            return {}
        rows = computed.of_intervals(changed, backfill_of(first.stream).column)
        staging = first.staging_of(output.output)
        staged = stage_rows(first.catalog, [rows], staging=staging, target=output.target, key=first.key)
        files = self._apart(staged.table, staged.files)
        return {one: StagedRows(table=staged.table, files=files[one]) for one in changed}

    def _publish(
        self,
        replacing: IntervalReplacing,
        staged: StagedRows | None,
        touched: TouchedFiles,
        counts: RowCounts,
        results: dict[Interval, BackfillResult],
        *,
        corrected: Set[RejectedAt],
    ) -> None:
        ledger = self._any.ledger
        try:
            result = replacing.publish(staged, touched, counts, corrected=corrected)
        except IntervalChangedError as changed:
            _log.info("%s It is computed again.", changed)
            self._end(replacing, changed)
            return
        end_attempt(ledger, replacing.attempt, result.state, rows=result.rows, snapshot_id=result.snapshot_id)
        self.ended.add(replacing.attempt)
        results[replacing.seen.interval] = result
        self._any.reached(CrashPoint.RECORDED)

    def _apart(self, table: Table, files: Sequence[DataFile]) -> dict[Interval, list[DataFile]]:
        """The files of each interval.

        Raises
        ------
        UnpublishableError: when a file does not hold the rows of one of the intervals alone.
        """
        found: dict[Interval, list[DataFile]] = {interval: [] for interval in self._intervals}
        for file in files:
            within = [one for one in self._intervals if is_whole(table, interval_of_table(self._any.stream, one), file)]
            if len(within) != 1:
                raise UnpublishableError(f"{file.file_path} does not hold the rows of one interval alone.")
            found[within[0]].append(file)
        return found
