"""One run of a stream, from its session to its end: it observes its checkpoint, delivers batches, and stops."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import LeaseLostError
from sluice.failure_reasons import FailureReason
from sluice.ledger.connection import Ledger
from sluice.ledger.refreshes import unsettled_refresh
from sluice.ledger.run_values import RunObservation
from sluice.maintenance.input_check import require_unbroken_input
from sluice.maintenance.position_pins import pinned_tables
from sluice.publication.crash_points import Reached, unnoticed
from sluice.publication.seen_tokens import with_raised_token
from sluice.refresh.swap_content import settle_refresh
from sluice.settings import Settings
from sluice.sources.skipped_input_watch import SkippedInputWatch
from sluice.supervision.held_lease import HeldLease
from sluice.tables.catalog import open_catalog
from sluice_spark.delivery.batch_recording import HandOver, LedgerWriter, Recording
from sluice_spark.delivery.choose_delivery import choose_delivery
from sluice_spark.delivery.delivery_context import DeliveringRun, DeliveryContext, RunControls
from sluice_spark.query.stream_plan import StreamPlan, plan_stream, trigger_of
from sluice_spark.run.driver_ui import record_ui
from sluice_spark.run.heartbeat import Heartbeat
from sluice_spark.run.increment_start import prepare_available_now
from sluice_spark.run.job import failure_of_error
from sluice_spark.run.pinning import Pinning
from sluice_spark.run.query_run import QueryRun
from sluice_spark.run.reachable_starts import require_reachable_starts
from sluice_spark.run.run_checkpoint import RunCheckpoint, observe_checkpoint
from sluice_spark.run.stop_request import LEASE_ENDS, StopReason, StopRequest, stopped_by_signals
from sluice_spark.run.table_beginning import begin_in_tables
from sluice_spark.run.watchdog import Watchdog
from sluice_spark.session.run_sessions import Sessions, own_session


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedRun:
    """A run that the ledger has admitted, and what it needs to work.

    sessions: opens the Spark session that the run works in, and closes it.
    stop: what asks the run to stop; a signal to the driver does.
    ui_key: signs the requests to Spark's own UI of the application; unset: it has none.
    end_process: ends the process when the run does not stop, with an exit code; see `Watchdog`.
    reached: is called at each crash point that a batch passes.
    """

    settings: Settings
    ledger: Ledger
    stream: LoadedStream
    run: RunObservation
    sessions: Sessions = own_session
    stop: StopRequest = field(default_factory=StopRequest)
    ui_key: str | None = field(default=None, repr=False)
    end_process: Callable[[int], object] = os._exit
    reached: Reached = unnoticed

    def work(self) -> StopReason:
        """Run the stream: a continuous one until it is asked to stop, an incremental one over what is there now.

        Raises
        ------
        CheckpointError: when the checkpoint is not the one that the ledger has registered, or cannot follow a change of
            the declaration.
        LeaseLostError: when it stopped for its lease: another run has it, or the ledger was away for too long.
        DeclarationError, DeliveryError, SettingsError: as `plan_stream` and the delivery raise them.
        Exception: whatever else made the query fail.
        """
        stop = self.stop
        lease = HeldLease(stream=self.run.stream, token=self.run.token)
        heartbeat = Heartbeat(self.ledger, self.run.run_id, stop, lease=lease)
        with (
            heartbeat,
            Watchdog(stop, end_process=self.end_process),
            LedgerWriter(self.ledger) as writer,
            self.sessions(self.settings, self.stream.declaration, ui_key=self.ui_key) as spark,
        ):
            if self.ui_key is not None:
                record_ui(spark, self.ledger, self.run, key=self.ui_key)
            with stopped_by_signals(spark, stop), heartbeat.naming_a_lost_lease():
                reason = self.work_in(spark, stop=stop, lease=lease, hand_over=writer.hand_over)
        if reason in LEASE_ENDS:
            raise LeaseLostError(f"Run {self.run.run_id} of {self.run.stream}, token {lease.token}: {reason}.")
        return reason

    def work_in(
        self,
        spark: SparkSession,
        *,
        stop: StopRequest,
        lease: HeldLease,
        hand_over: HandOver,
    ) -> StopReason:
        """Run the stream in an open session.

        Parameters
        ----------
        stop: what may ask the run to stop.
        lease: the lease of the run; it is asked before each publication.
        hand_over: takes the observation of each batch, at once, and reports when the ledger has it.
        """
        if unsettled_refresh(self.ledger, self.stream.name) is not None:
            settle_refresh(open_catalog(self.settings), self.ledger, self.stream.declaration)
        checkpoint = observe_checkpoint(
            spark, self.ledger, self.stream, run_id=self.run.run_id, checkpoints_root=self.settings.checkpoints
        )
        plan = plan_stream(spark, self.stream, self.settings, checkpoint=checkpoint.location)
        checkpoint.bind(plan)
        require_reachable_starts(spark, checkpoint, self.settings)
        begun = begin_in_tables(spark, self.ledger, plan, checkpoint, self.settings)
        if begun.state.newest_planned > checkpoint.state.newest_planned:
            # The tables of the plan may be older than the snapshot that the first batch reads.
            plan = plan_stream(spark, self.stream, self.settings, checkpoint=checkpoint.location)
        checkpoint = begun
        catalog = open_catalog(self.settings)
        run = with_raised_token(self.run, self.stream.declaration, ledger=self.ledger, catalog=catalog)
        lease.token = run.token
        context = self._context(plan, checkpoint, token=run.token, lease=lease, stop=stop, hand_over=hand_over)
        query_run = QueryRun(
            plan=plan,
            delivery=choose_delivery(plan, context),
            context=context,
            stop=stop,
            on_started=checkpoint.register_query,
        )
        pinning = Pinning(self.stream.declaration, self.settings, self.ledger)
        with plan.renewals.kept(), pinning, query_run.delivery.at_work():
            self._require_unbroken_input(checkpoint)
            with self._naming_gaps(checkpoint):
                if self.stream.declaration.mode == "continuous":
                    return query_run.keep_running(trigger_of(self.stream.declaration))
                prepare_available_now(spark, plan, checkpoint, catalog)
                return query_run.exhaust()

    @contextmanager
    def _naming_gaps(self, checkpoint: RunCheckpoint) -> Iterator[None]:
        """Name a gap that opens while the block runs as one that is found at the start."""
        try:
            yield
        except Exception as error:
            if failure_of_error(error).reason is FailureReason.SNAPSHOT_EXPIRED:
                self._require_unbroken_input(checkpoint)
            raise

    def _require_unbroken_input(self, checkpoint: RunCheckpoint) -> None:
        """What earlier runs staged is published by now, so that only unread rows count as missing."""
        if pinned_tables(self.stream.declaration):
            require_unbroken_input(
                open_catalog(self.settings),
                self.stream.declaration,
                checkpoint.generation,
                object_store=self.settings.object_store,
            )

    def _context(
        self,
        plan: StreamPlan,
        checkpoint: RunCheckpoint,
        *,
        token: int,
        lease: HeldLease,
        stop: StopRequest,
        hand_over: HandOver,
    ) -> DeliveryContext:
        return DeliveryContext(
            run=DeliveringRun(
                stream=self.stream.name,
                generation=checkpoint.generation.generation,
                run_id=self.run.run_id,
                token=token,
            ),
            checkpoint=checkpoint.location,
            found=checkpoint.state,
            controls=RunControls(
                lease=lease,
                skipped_input=SkippedInputWatch(
                    self.stream.declaration, self.settings, checkpoint=checkpoint.location, inputs=plan.sources
                ),
                on_failure=lambda: stop.make(StopReason.UNPUBLISHED),
            ),
            recording=Recording(hand_over, awaits_publication=bool(plan.targets), reached=self.reached),
            settings=self.settings,
            ledger=self.ledger,
            reached=self.reached,
        )
