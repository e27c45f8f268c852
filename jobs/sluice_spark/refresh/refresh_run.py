"""Runs a refresh: builds the shadow beside the live stream, stops the stream, catches up, and swaps the content."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property

from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession

from sluice.declarations.loaded_declarations import Declarations, LoadedStream
from sluice.declarations.maintenance_declaration import MaintenanceDeclaration
from sluice.errors import LeaseLostError, StagingError, UnpublishableError, UsageError, VerificationError
from sluice.ledger.batches import totals
from sluice.ledger.connection import Ledger
from sluice.ledger.events import EventAction
from sluice.ledger.refreshes import (
    RefreshObservation,
    RefreshState,
    begin_refresh,
    end_refresh,
    newest_refresh,
    require_its_generation,
)
from sluice.ledger.run_values import RunObservation
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.publish_batches import live_files
from sluice.publication.repair import with_raised_token
from sluice.refresh.observe_refresh import KEEPS, observe_refresh
from sluice.refresh.refresh_plan import plan_refresh
from sluice.refresh.settle_refresh import settle_refresh
from sluice.refresh.shadow_bound import observe_bound
from sluice.refresh.shadow_stream import Exchanged, drop_shadow, ensure_shadow, exchanged_outputs, shadow_of
from sluice.refresh.swap_shadow import keep_positions, stopped_stream, swap_shadow
from sluice.settings import Settings
from sluice.supervision.held_lease import HeldLease
from sluice.supervision.supervision_values import command_event
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import load_table, require_table
from sluice_spark.delivery.batch_recording import LedgerWriter
from sluice_spark.refresh.shadow_batches import ShadowBatches
from sluice_spark.run.job import recorded_end
from sluice_spark.run.run_threads import Heartbeat
from sluice_spark.run.stop_request import StopReason, StopRequest
from sluice_spark.run.supervised_run import SupervisedRun, admit_increment
from sluice_spark.session.columns import fingerprint, quoted_table

_log = logging.getLogger(__name__)

MOST_INCREMENTS = 5
"""So often the shadow is brought up to date beside the live stream: each increment reads what came during the one
before it. A shadow that is not close by then is not swapped: the stream would stand still for too long."""

CAUGHT_UP_ROWS = 100_000
"""So few rows of an increment, that the next one takes seconds: then the stream is stopped."""


@dataclass(frozen=True, kw_only=True)
class RefreshRun:
    """A refresh of one stream, begun or continued.

    keeps: for how long the earlier content is kept. asked_by: the person, as the ledger names them.
    open_session: called once, when the plan is not refused.
    allows_fewer: whether the new content may have fewer rows than the table.
    """

    settings: Settings
    ledger: Ledger
    declarations: Declarations
    stream: LoadedStream
    asked_by: str
    open_session: Callable[[], SparkSession]
    keeps: timedelta = KEEPS
    reached: Reached = unnoticed
    allows_fewer: bool = False

    def work(self) -> RefreshObservation:
        """Refresh the table of the stream, or complete what an earlier process began.

        Raises
        ------
        UnpublishableError: when the plan is refused, with every reason; when fewer rows would come than go, and that
            is not allowed.
        RunAlreadyLiveError: when another process builds the same shadow, or the live run does not end in time.
        UsageError: when the refresh was given up meanwhile, or the stream was reset.
        DeliveryError, LakehouseError, LedgerError: when the content cannot be built or exchanged: the table stays.
        """
        settled = settle_refresh(self._catalog, self.ledger, self.stream.declaration)
        newest = settled or newest_refresh(self.ledger, self.stream.name)
        if newest is not None and newest.state is RefreshState.SWAPPED and newest.ended_at is None:
            return self._cleared(newest, self.open_session())
        refresh = self._begun()
        self.reached(CrashPoint.BEGUN)
        ensure_shadow(self._catalog, self.stream, refresh)
        spark, shadow = self.open_session(), shadow_of(self.stream, refresh)
        self._build(spark, shadow, refresh)
        return self._cleared(self._swap(spark, shadow, refresh), spark)

    @cached_property
    def _catalog(self) -> Catalog:
        return open_catalog(self.settings)

    def _begun(self) -> RefreshObservation:
        seen = observe_refresh(
            self._catalog, self.ledger, self.declarations, self.stream, self.settings, keeps=self.keeps
        )
        plan_refresh(seen).require_unrefused()
        if seen.continues is not None:
            return seen.continues
        event = command_event(
            EventAction.REFRESH,
            self.stream.name,
            by=self.asked_by,
            explanation=f"The content of {seen.target} is built again from its sources, and then replaced.",
            evidence={"leaves": seen.generation, "rows": seen.rows, "keeps_days": self.keeps / timedelta(days=1)},
        )
        return begin_refresh(
            self.ledger,
            self.stream.name,
            digest=self.stream.digest,
            leaves=seen.generation or 0,
            keeps=self.keeps,
            asked_by=self.asked_by,
            event=event,
        )

    def _build(self, spark: SparkSession, shadow: LoadedStream, refresh: RefreshObservation) -> None:
        """Bring the shadow up to date while the live stream continues."""
        rows = 0
        for number in range(1, MOST_INCREMENTS + 1):
            rows = self._increment(spark, shadow, refresh)
            _log.info("increment %d of %s has read %d rows", number, shadow.name, rows)
            self.reached(CrashPoint.BUILT)
            if rows <= CAUGHT_UP_ROWS:
                return
        raise UnpublishableError(
            f"The shadow {shadow.name} has not caught up: its increment {MOST_INCREMENTS} still read {rows:,} rows, "
            f"and {self.stream.name} would stand still for about as many; {CAUGHT_UP_ROWS:,} are the limit.",
            next_step="Repeat the command: it continues with what the shadow has read.",
        )

    def _swap(self, spark: SparkSession, shadow: LoadedStream, refresh: RefreshObservation) -> RefreshObservation:
        """Stop the stream, read what it has read, and exchange the content."""
        what = f"refresh {refresh.number}"
        with stopped_stream(self.ledger, self.stream.name, requested_by=self.asked_by, what=what) as run:
            self.reached(CrashPoint.STOPPED)
            with self._held(run) as lease:
                self._increment(spark, shadow, refresh)
                self.reached(CrashPoint.CAUGHT_UP)
                keep_positions(
                    self._catalog, self.ledger, self.stream, refresh, object_store=self.settings.object_store
                )
                lease.require()
                declaration = self.stream.declaration
                fenced = with_raised_token(run, declaration, ledger=self.ledger, catalog=self._catalog)
                swapped = swap_shadow(
                    self._catalog,
                    self.ledger,
                    self.stream,
                    refresh,
                    token=fenced.token,
                    allows_fewer=self.allows_fewer,
                    reached=self.reached,
                )
        self.reached(CrashPoint.RECORDED)
        return swapped

    def _increment(self, spark: SparkSession, shadow: LoadedStream, refresh: RefreshObservation) -> int:
        """Let the shadow read exactly what the stream has read by now, in as many batches as that takes. Returns how
        many rows it has read.

        Raises
        ------
        LeaseLostError: when the increment ended early, because its lease is over.
        UnpublishableError: when it is unknown how far the stream has read.
        UsageError: when the stream was reset or continued meanwhile, so that its offsets are those of other batches.
        """
        require_its_generation(self.ledger, refresh.number)
        before = totals(self.ledger, shadow.name).input_rows
        bound = observe_bound(self._catalog, self.ledger, self.stream, self.settings)
        batches = None
        if bound is not None:
            batches = ShadowBatches(
                declaration=self.stream.declaration,
                ledger=self.ledger,
                settings=self.settings,
                bound=bound,
                reached=self.reached,
            )
        while True:
            try:
                self._run(spark, shadow, refresh, batches)
            except StagingError as error:
                if not isinstance(error.__cause__, FileNotFoundError):
                    raise
                way_out = (
                    f"Give the refresh up, and begin another: `sluice stream refresh {self.stream.name} --abandon`."
                )
                raise StagingError(error.message, next_step=way_out) from error
            if batches is None or batches.is_complete:
                return totals(self.ledger, shadow.name).input_rows - before

    def _run(
        self,
        spark: SparkSession,
        shadow: LoadedStream,
        refresh: RefreshObservation,
        batches: ShadowBatches | None,
    ) -> None:
        """Run the shadow once: over the next planned batch, or over all that is there when nothing bounds it."""
        run = admit_increment(self.ledger, shadow, launched_by=self.asked_by)
        work = SupervisedRun(
            settings=self.settings,
            ledger=self.ledger,
            stream=shadow,
            run=run,
            planned=batches,
            rejected_as=(self.stream.name, refresh.leaves + 1),
        )
        stop, lease = StopRequest(), HeldLease(stream=run.stream, token=run.token)
        with (
            recorded_end(self.ledger, run.run_id) as say_reason,
            Heartbeat(self.ledger, run.run_id, stop, lease=lease),
            LedgerWriter(self.ledger) as writer,
        ):
            reason = work.work_in(spark, stop=stop, lease=lease, hand_over=writer.hand_over)
            if reason is not StopReason.EXHAUSTED:
                raise LeaseLostError(f"Run {run.run_id} of {run.stream}, token {lease.token}: {reason}.")
            say_reason(reason)

    @contextmanager
    def _held(self, run: RunObservation) -> Iterator[HeldLease]:
        """Renew the lease of the stopped stream; what asks the stream to stop meanwhile changes nothing."""
        lease = HeldLease(stream=run.stream, token=run.token)
        lease.renewed(asked_at_seconds=lease.now_seconds())
        with Heartbeat(self.ledger, run.run_id, StopRequest(), lease=lease):
            yield lease

    def _cleared(self, refresh: RefreshObservation, spark: SparkSession) -> RefreshObservation:
        if refresh.state is not RefreshState.SWAPPED:
            raise UsageError(
                f"Refresh {refresh.number} of {refresh.stream} is {refresh.state}: it was ended meanwhile."
            )
        exchanged = exchanged_outputs(self.stream.declaration, refresh)[0]
        _require_same_content(
            spark, self._catalog, refresh, exchanged, most_bytes=self._content_check_bytes(exchanged.output.target)
        )
        drop_shadow(self._catalog, self.stream, refresh)
        self.reached(CrashPoint.CLEARED)
        return end_refresh(self.ledger, refresh.number)

    def _content_check_bytes(self, target: str) -> int:
        """How much is read at most to compare rows of a table; of one that is not declared, as by default."""
        declared = self.declarations.tables.get(target)
        policy = declared.declaration.maintenance if declared is not None else MaintenanceDeclaration()
        return int(policy.content_check_bytes)


def _require_same_content(
    spark: SparkSession, catalog: Catalog, refresh: RefreshObservation, exchanged: Exchanged, *, most_bytes: int
) -> None:
    """Compare what a refresh has computed with what readers of the table see since its commit.

    The commit exchanges entries of files, and whether they are there and fit is checked before it. This reads the rows
    of the table and of the shadow, and compares their sums, as backfills and compactions do, when the stream may run
    again. Of several outputs it is the declared one.

    Parameters
    ----------
    most_bytes: so much is read at most to compare the rows; beyond it they are counted.

    Raises
    ------
    VerificationError: when they differ; the shadow stays, and the command fails until it is taken back.
    LakehouseError: when a table cannot be loaded.
    """
    shadow, target = load_table(catalog, exchanged.built.target), require_table(catalog, exchanged.output.target)
    if shadow is None or refresh.snapshot_id is None or target.snapshot_by_id(refresh.snapshot_id) is None:
        _log.warning("%s is not compared any more: the shadow is dropped, or the snapshot has expired", refresh.shadow)
        return
    size = sum(file.file_size_in_bytes for file in live_files(shadow))
    computed = spark.table(quoted_table(catalog.name, exchanged.built.target))
    reader = spark.read.option("versionAsOf", str(refresh.snapshot_id))
    seen = reader.table(quoted_table(catalog.name, exchanged.output.target))
    is_hashed = 2 * size <= most_bytes
    expected, found = _content(computed, is_hashed=is_hashed), _content(seen, is_hashed=is_hashed)
    if expected != found:
        raise VerificationError(
            f"Since refresh {refresh.number}, readers of {exchanged.output.target} see {found}, and it has computed "
            f"{expected}.",
            next_step=f"Bring the earlier content back: `sluice stream refresh {refresh.stream} --take-back`.",
        )
    _log.info("readers of %s see what was computed: %s", exchanged.output.target, found)


def _content(rows: DataFrame, *, is_hashed: bool) -> str:
    if not is_hashed:
        return f"{rows.count():,} rows"
    content = fingerprint(rows)
    return f"{content.rows:,} rows with the sums {content.sums[0]} and {content.sums[1]}"
