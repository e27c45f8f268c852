"""Replaces one interval by computed rows: stages, audits and publishes them; what is rejected is quarantined."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, field, replace
from uuid import uuid4

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from sluice.backfill.backfill_plan import BackfillObservation
from sluice.backfill.interval_gaps import Fingerprint
from sluice.backfill.intervals import Interval, name_part, publication_key
from sluice.backfill.observe_backfill import backfill_of, interval_of_table, replaces_rows
from sluice.backfill.read_bounds import InputBound, TableBound
from sluice.backfill.replayable_rows import PresentSource
from sluice.backfill.results import RowCounts, RowTotals, require_balance, require_removed, require_taken
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.errors import IntervalChangedError, LakehouseError
from sluice.ledger.backfill_attempts import BackfillAttemptKey, BackfillState
from sluice.operations import require_no_fewer
from sluice.publication.checked_commit import commit_checked, snapshot_of
from sluice.publication.crash_points import CrashPoint, Reached
from sluice.publication.interval_files import (
    IntervalReplacement,
    TouchedFiles,
    touched_files,
)
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.publication.resolved_rejections import RejectedAt
from sluice.publication.staged_batch import canonical_offsets
from sluice.publication.staging_layout import BACKFILL_NAMESPACE, drop_staging_copy
from sluice.stored_keys import END_OFFSETS, OUTPUT, ROWS
from sluice_spark.backfill.held_rows import HeldRows, StagedRows, computing, stage_rows
from sluice_spark.backfill.interval_rows import IntervalRows
from sluice_spark.backfill.rejected_rows import RejectedRows
from sluice_spark.session.columns import fingerprint

_log = logging.getLogger(__name__)


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
class IntervalReplacing:
    """One attempt to replace an interval by computed rows.

    target: as it was loaded for the plan. whole: what is computed at once: this interval, and maybe others beside it.
    planned: the intervals of the stream whose backfills are asked for. observe_sources: looks at what it reads.
    change_of: what has changed some inputs since the plan, in a phrase; none when nothing has.
    allows_fewer: whether the interval may have fewer rows afterwards.
    allows_repeated: whether the target may hold rows of it elsewhere already.
    identity: of the attempt. Its number is one of the ledger, and a ledger that was restored gives it again.
    """

    stream: LoadedStream
    catalog: Catalog
    seen: BackfillObservation
    target: Table
    whole: Interval
    attempt: BackfillAttemptKey
    reached: Reached
    planned: Callable[[], Sequence[Interval]]
    observe_sources: Callable[[], PresentSource]
    change_of: Callable[[Iterable[InputBound]], str | None]
    allows_fewer: bool = False
    allows_repeated: bool = False
    identity: str = field(default_factory=lambda: uuid4().hex)

    @property
    def key(self) -> str:
        """The publication key."""
        attempt = self.attempt
        return publication_key(attempt.stream, self.seen.interval, identity=self.identity, attempt=attempt.attempt)

    @property
    def rejected(self) -> RejectedRows:
        """What is rejected goes into the quarantine under this attempt."""
        staging = self.staging_of(QUARANTINE_OUTPUT)
        return RejectedRows(
            attempt=self.attempt,
            key=self.key,
            seen=self.seen,
            staging=staging,
            observe_sources=self.observe_sources,
            require_unchanged=self.require_unchanged,
        )

    def replace(self, spark: SparkSession, computed: IntervalRows, held: HeldRows) -> BackfillResult:
        """Stage, audit and publish the rows, unless the table holds the very same ones.

        Parameters
        ----------
        held: what the target held when the backfill was planned.

        Raises
        ------
        IntervalChangedError: when the interval has changed since the plan.
        DeliveryError, LakehouseError, VerificationError: as `BackfillRun.work` raises them.
        """
        with computing(f"The interval {self.seen.interval.spoken} of {self.attempt.stream}"):
            new = fingerprint(computed.rows)
        self.require_times(computed, held)
        computed.require_unbroken(self.stream.rules)
        touched = touched_files(self.target, interval_of_table(self.stream, self.seen.interval))
        old = fingerprint(held.of_interval(self.seen.interval)) if touched.rows else Fingerprint.of_no_rows()
        self.reached(CrashPoint.COMPUTED)
        try:
            staged = None if new == old else self._stage(computed, held, touched)
            self.reached(CrashPoint.STAGED)
            moved = self.moved_rows(computed, held) if staged is not None and old.rows else 0
            if staged is not None and new.rows:
                self.require_removed(computed, held)
            counts = self.audit(computed.totals(moved=moved), new=new, old=old, staged=staged, touched=touched)
            corrected = self.corrected(spark, computed, held, [self.seen.interval])
            self.reached(CrashPoint.AUDITED)
            if computed.rejected is not None and counts.quarantined:
                self.rejected.publish(spark, self.catalog, computed.rejected, catalog_name=self.catalog.name)
            self.reached(CrashPoint.QUARANTINED)
            self.require_unchanged()
            return self.publish(staged, touched, counts, corrected=corrected)
        finally:
            self.drop_staging()

    def require_unchanged(self) -> None:
        """Require that all that was computed, also what is staged, is of the inputs of the plan.

        Raises
        ------
        IntervalChangedError: when an input has changed since.
        """
        if (changed := self.change_of(self.seen.sources)) is not None:
            raise IntervalChangedError(f"{self.key}: an input changed while it was computed: {changed}.")

    def _changed_tables(self) -> str | None:
        """What has corrected tables since the plan: what is published is to be right at that time. What else changes
        once all is staged is the matter of a later backfill."""
        return self.change_of(one for one in self.seen.sources if isinstance(one, TableBound))

    def require_times(self, computed: IntervalRows, held: HeldRows) -> None:
        """Refuse rows that have no time, or have one now, and would be lost or there twice.

        Raises
        ------
        VerificationError: with their number; nothing was published.
        """
        computed.require_times(held, self.whole, stream=self.attempt.stream, allows_repeated=self.allows_repeated)

    @property
    def reads_whole(self) -> bool:
        """Whether all inputs are read whole."""
        return all(source.column is None for source in self.seen.sources)

    def corrected(
        self, spark: SparkSession, computed: IntervalRows, held: HeldRows, intervals: Sequence[Interval]
    ) -> Set[RejectedAt]:
        """The rejected rows whose records are all published once some intervals are. What a record becomes is not
        known: so the target has to hold every other row that is computed, of inputs that are read whole.

        Raises
        ------
        IntervalChangedError, UnpublishableError: as `RejectedRows.corrected` raises them.
        """
        if not self.reads_whole or not self.stream.declaration.quarantine:
            return frozenset()
        found = self.rejected.corrected(spark, self.catalog, computed.rejected, catalog_name=self.catalog.name)
        return found if found and computed.are_held_elsewhere(held, intervals) else frozenset()

    def moved_rows(self, computed: IntervalRows, held: HeldRows) -> int:
        """How many rows lie in other intervals now, all of which are asked for.

        Raises
        ------
        VerificationError: when the backfill of one of those intervals is not asked for.
        """
        moved = computed.moved(held, self.whole, backfill_of(self.stream).interval)
        if moved:
            stream, table = self.attempt.stream, self.seen.output.target
            require_taken(moved, self.planned(), stream=stream, table=table, interval=self.whole)
        return sum(moved.values())

    def require_removed(self, computed: IntervalRows, held: HeldRows) -> None:
        """Refuse rows that the target holds in other intervals, unless all of these are asked for, or it is allowed.

        Raises
        ------
        VerificationError: when the backfill of one of those intervals is not asked for.
        """
        if self.allows_repeated:
            return
        if arrived := computed.arrived(held, self.whole, backfill_of(self.stream).interval):
            stream, table = self.attempt.stream, self.seen.output.target
            require_removed(arrived, self.planned(), stream=stream, table=table, interval=self.whole)

    def audit(
        self,
        totals: RowTotals,
        *,
        new: Fingerprint,
        old: Fingerprint,
        staged: StagedRows | None,
        touched: TouchedFiles,
    ) -> RowCounts:
        """Check that the numbers of rows add up.

        Parameters
        ----------
        totals: of what was computed; the results of other intervals count as outside of this one.
        new, old: the rows of this interval, as computed and as the table holds them.
        staged: unset when they are the same. touched: the files of the interval.

        Raises
        ------
        VerificationError: with every sum that does not hold.
        UnpublishableError: when fewer rows would come than go, and that is not allowed.
        """
        kept = touched.rows - old.rows
        counts = RowCounts(
            read=totals.read,
            published=new.rows,
            outside=totals.results - totals.without_time - totals.moved - new.rows,
            moved=totals.moved,
            without_time=totals.without_time,
            quarantined=totals.quarantined,
            duplicate=totals.duplicate,
            replaced=old.rows,
            kept=kept,
            rewritten=touched.rows,
            staged=staged.rows if staged is not None else new.rows + kept,
        )
        require_balance(counts, accounts_for_rows=backfill_of(self.stream).balance == "rows", what=self.key)
        if not self.allows_fewer:
            require_no_fewer(
                came=counts.published,
                gone=counts.replaced,
                what=f"the interval {self.seen.interval.spoken} of {self.seen.output.target}",
            )
        return counts

    def publish(
        self,
        staged: StagedRows | None,
        touched: TouchedFiles,
        counts: RowCounts,
        *,
        corrected: Set[RejectedAt] = frozenset(),
    ) -> BackfillResult:
        """Exchange the files of the interval in one commit; nothing is committed when nothing is staged. Then mark the
        rows of the quarantine whose records are published by it.

        Parameters
        ----------
        corrected: those rows.

        Raises
        ------
        IntervalChangedError: when the interval or an input has changed since the plan.
        DeliveryError, LakehouseError: as `commit_checked` raises them.
        """
        snapshot_id = None if staged is None else self._exchange(staged, touched, counts)
        self.reached(CrashPoint.PUBLISHED)
        # An input may also have changed between the look before the commit and the commit itself.
        if (changed := self._changed_tables()) is not None:
            raise IntervalChangedError(f"{self.key}: an input changed while it was computed: {changed}.")
        if corrected:
            counts = replace(counts, resolved=self.rejected.resolve(self.catalog, corrected))
        state = BackfillState.UNCHANGED if snapshot_id is None else BackfillState.PUBLISHED
        return BackfillResult(key=self.key, state=state, snapshot_id=snapshot_id, rows=asdict(counts))

    def staging_of(self, output: str) -> str:
        """The staging table of an output, of this interval only: parallel runs have different ones."""
        return f"{BACKFILL_NAMESPACE}.{self.seen.output.stream}__{output}__{name_part(self.seen.interval)}"

    def drop_staging(self) -> None:
        """Drop the staging tables of the interval, without their files."""
        for output in (self.seen.output.output, QUARANTINE_OUTPUT):
            try:
                drop_staging_copy(self.catalog, self.staging_of(output))
            except LakehouseError as error:
                _log.warning("a staging table stays until the interval is backfilled again: %s", error)

    def _stage(self, computed: IntervalRows, held: HeldRows, touched: TouchedFiles) -> StagedRows:
        beside = held.beside(self.seen.interval, touched, self.target)
        return stage_rows(
            self.catalog,
            [computed.rows, beside] if touched.partial else [computed.rows],
            staging=self.staging_of(self.seen.output.output),
            target=self.seen.output.target,
            key=self.key,
        )

    def _exchange(self, staged: StagedRows, touched: TouchedFiles, counts: RowCounts) -> int:
        replacement = IntervalReplacement(
            output=self.seen.output,
            key=self.key,
            interval=interval_of_table(self.stream, self.seen.interval),
            head=self.seen.head,
            touched=touched,
            staging=staged.table,
            staged=staged.files,
            changed_inputs=self._changed_tables,
            replaces_rows=replaces_rows(self.stream),
            summary={
                OUTPUT: self.seen.output.output,
                END_OFFSETS: canonical_offsets(self.seen.published.end_offsets if self.seen.published else {}),
                ROWS: str(counts.published),
            },
        )
        committer, target = PyIcebergCommitter(self.catalog), self.seen.output.target
        what = f"{self.key} into {target}"
        landed = commit_checked(committer, target, replacement.plan, what=what, reached=self.reached)
        return snapshot_of(landed, what=what)
