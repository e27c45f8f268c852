"""One run of a stream, from its admission to its end: it observes its checkpoint, delivers batches, and stops."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from pyspark.sql import SparkSession

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import LeaseLostError, UsageError
from sluice.ledger.connection import Ledger
from sluice.ledger.events import Actor, Event, EventAction
from sluice.ledger.generations import record_identities
from sluice.ledger.run_values import RunObservation
from sluice.publication.command_runs import admit_own_run
from sluice.publication.crash_points import Reached, unnoticed
from sluice.settings import Settings
from sluice.sources.iceberg_positions import StreamOffset
from sluice.sources.input_watch import InputChangedError, InputWatch, SkippedInputWatch
from sluice.sources.seen_schemas import SchemaSightings
from sluice.supervision.held_lease import HeldLease
from sluice_spark.delivery.batch_recording import HandOver, LedgerWriter, Recording
from sluice_spark.delivery.choose_delivery import choose_delivery
from sluice_spark.delivery.delivery_port import DeliveringRun, DeliveryContext, RunControls
from sluice_spark.query.stream_plan import trigger_of
from sluice_spark.run.job import recorded_end
from sluice_spark.run.query_run import QueryRun
from sluice_spark.run.run_checkpoint import prepare_available_now
from sluice_spark.run.run_start import RunStart, naming_the_witness, start_run
from sluice_spark.run.run_threads import Heartbeat, Pinning, RunCopies
from sluice_spark.run.state_replay import StateReplay
from sluice_spark.run.stop_request import LEASE_ENDS, StopReason, StopRequest, Watchdog, stopped_by_signals
from sluice_spark.session.session import Sessions, own_session, record_ui

_log = logging.getLogger(__name__)


class PlannedBatches(Protocol):
    """Plans each batch of a stream before its query starts, so that it ends where it is to end."""

    @property
    def until(self) -> Mapping[str, StreamOffset]:
        """How far a new checkpoint may read its tables, by input."""
        ...

    def plan_next(self, spark: SparkSession, start: RunStart) -> bool:
        """Plan the next batch in the checkpoint of a run, unless one is planned already. Returns whether there is one.

        Raises
        ------
        SluiceError: when its end cannot be known.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SupervisedRun:
    """A run that the ledger has admitted, and what it needs to work.

    sessions: opens the Spark session that the run works in, and closes it.
    stop: what asks the run to stop; a signal to the driver does.
    ui_key: signs the requests to Spark's own UI of the application; unset: it has none.
    reached: is called at each crash point that a batch passes.
    planned: plans the one batch of this run; unset: Spark plans them.
    rejected_as: the stream and the generation that rejected rows name; unset: those of the run.
    """

    settings: Settings
    ledger: Ledger
    stream: LoadedStream
    run: RunObservation
    sessions: Sessions = own_session
    stop: StopRequest = field(default_factory=StopRequest)
    ui_key: str | None = field(default=None, repr=False)
    reached: Reached = unnoticed
    planned: PlannedBatches | None = None
    rejected_as: tuple[str, int] | None = None

    def work(self) -> StopReason:
        """Run the stream: a continuous one until it is asked to stop, an incremental one over what is there now.

        Raises
        ------
        CheckpointError: when the checkpoint is not the one that the ledger has registered, or cannot follow a change of
            the declaration.
        LeaseLostError: when it stopped for its lease: another run has it, or the ledger was away for too long.
        DeclarationError, DeliveryError, SettingsError: as `start_run` and the delivery raise them.
        Exception: whatever else made the query fail.
        """
        stop = self.stop
        lease = HeldLease(stream=self.run.stream, token=self.run.token)
        heartbeat = Heartbeat(self.ledger, self.run.run_id, stop, lease=lease)
        with (
            heartbeat,
            Watchdog(stop),
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
        before = ""
        while True:
            try:
                return self._work_on_plan(spark, stop=stop, lease=lease, hand_over=hand_over, is_again=bool(before))
            except InputChangedError as changed:
                if str(changed) == before:  # a new plan does not help
                    raise
                before = str(changed)
                _log.warning("%s: %s", self.run.stream, changed)

    def _work_on_plan(
        self, spark: SparkSession, *, stop: StopRequest, lease: HeldLease, hand_over: HandOver, is_again: bool
    ) -> StopReason:
        """Plan the stream as its inputs are now, and run it. is_again: whether the run has taken the tables already.

        Raises
        ------
        InputChangedError: when they are not so any more. The batch that was about to begin has delivered nothing.
        """
        witness = partial(naming_the_witness, self.settings, self.ledger, self.stream, self.run)
        with witness():
            start, is_planned = self._start(spark, token=lease.token, is_again=is_again)
        lease.token = start.run.token
        if self.planned is None and start.plan.is_stateful:
            replay = self._replay(spark, start, stop=stop, lease=lease)
            if replay.is_pending:
                if not replay.catch_up():
                    return stop.reason or StopReason.EXHAUSTED
                start = start.observed_again(spark)
        context = self._context(start, lease=lease, stop=stop, hand_over=hand_over)
        query = QueryRun(
            plan=start.plan,
            delivery=choose_delivery(start.plan, context),
            context=context,
            stop=stop,
            checkpoint=start.checkpoint,
        )
        declaration = self.stream.declaration
        pinning = Pinning(declaration, self.settings, self.ledger)
        copies = RunCopies(
            ledger=self.ledger, settings=self.settings, checkpoint=start.checkpoint.location, lease=lease, stop=stop
        )
        with closing(context.controls.inputs), start.plan.renewals.kept(), pinning, ExitStack() as work:
            work.enter_context(closing(start.sightings))
            with witness():
                work.enter_context(query.delivery.at_work())
            start.require_unbroken_input()
            with start.naming_changed_inputs(context.controls.inputs):
                if self.planned is not None:
                    return query.run_planned() if is_planned else StopReason.EXHAUSTED
                work.enter_context(copies.made_every(declaration.state.backup_every))
                if declaration.mode == "continuous":
                    reason = query.keep_running(trigger_of(declaration))
                else:
                    prepare_available_now(spark, start.plan, start.checkpoint, start.catalog)
                    reason = query.exhaust()
        if reason.is_orderly:
            copies.copy_at_stop()
        return reason

    def _start(self, spark: SparkSession, *, token: int, is_again: bool) -> tuple[RunStart, bool]:
        """The start of the run, and whether a batch is planned for it."""
        until = self.planned.until if self.planned is not None else None
        run = replace(self.run, token=token)
        sightings = SchemaSightings(
            self.stream.declaration, self.settings, None if self.rejected_as is not None else self.ledger
        )
        start = start_run(
            spark, self.settings, self.ledger, self.stream, run, sightings=sightings, is_again=is_again, until=until
        )
        if self.planned is None or not self.planned.plan_next(spark, start):
            return start, False
        return start.observed_again(spark), True

    def _replay(self, spark: SparkSession, start: RunStart, *, stop: StopRequest, lease: HeldLease) -> StateReplay:
        return StateReplay(
            spark=spark,
            settings=self.settings,
            ledger=self.ledger,
            plan=start.plan,
            run_id=self.run.run_id,
            generation=start.checkpoint.generation.generation,
            checkpoint=start.checkpoint.location,
            require=lease.require,
            stop=stop,
            reached=self.reached,
        )

    def _context(self, start: RunStart, *, lease: HeldLease, stop: StopRequest, hand_over: HandOver) -> DeliveryContext:
        plan, checkpoint, generation = start.plan, start.checkpoint, start.checkpoint.generation
        return DeliveryContext(
            run=DeliveringRun(
                stream=self.stream.name,
                generation=generation.generation,
                run_id=self.run.run_id,
                token=start.run.token,
                rejected_as=self.rejected_as,
            ),
            checkpoint=checkpoint.location,
            found=checkpoint.state,
            generation=generation,
            tables=start.tables,
            controls=RunControls(
                lease=lease,
                skipped_input=SkippedInputWatch(
                    self.stream.declaration, self.settings, checkpoint=checkpoint.location, inputs=plan.sources
                ),
                inputs=InputWatch(
                    self.stream.declaration,
                    self.settings,
                    identities=start.identities,
                    keep=partial(record_identities, self.ledger, generation.stream, generation.generation),
                    fields=plan.fields,
                    sightings=start.sightings,
                ),
                sightings=start.sightings,
                on_failure=lambda: stop.make(StopReason.UNPUBLISHED),
            ),
            recording=Recording(hand_over, awaits_publication=bool(plan.targets), reached=self.reached),
            settings=self.settings,
            ledger=self.ledger,
            reached=self.reached,
        )


def admit_increment(ledger: Ledger, stream: LoadedStream, *, launched_by: str) -> RunObservation:
    """Admit a run of an incremental stream, carried out by this process.

    Parameters
    ----------
    launched_by: who asked, for people who read it.

    Raises
    ------
    RunAlreadyLiveError: when another run of the stream is live, or may be.
    """
    return admit_own_run(
        ledger,
        stream=stream.name,
        mode=stream.declaration.mode,
        declaration_digest=stream.digest,
        launched_by=launched_by,
        event=Event(
            name=stream.name,
            actor=Actor.component(launched_by),
            action=EventAction.LAUNCH,
            reason="increment",
            explanation=f"An increment of {stream.name} begins.",
        ),
    )


def run_increment(
    settings: Settings,
    ledger: Ledger,
    stream: LoadedStream,
    *,
    launched_by: str,
    sessions: Sessions,
    ui_key: str | None,
    stop: StopRequest,
) -> None:
    """Run a stream over everything that is there now.

    Parameters
    ----------
    launched_by: who asked, for people who read it.
    sessions: opens the session that it works in.
    ui_key: of the application, as for `SupervisedRun`.
    stop: what asks it to stop.

    Raises
    ------
    UsageError: when the stream is a continuous one.
    RunAlreadyLiveError: when another run of the stream is live.
    Exception: as `SupervisedRun.work` raises it.
    """
    if stream.declaration.mode != "incremental":
        raise UsageError(
            f"{stream.name} is a {stream.declaration.mode} stream.",
            next_step=f"Start it with `sluice stream start {stream.name}`.",
        )
    run = admit_increment(ledger, stream, launched_by=launched_by)
    with recorded_end(ledger, run.run_id) as say_reason:
        work = SupervisedRun(
            settings=settings,
            ledger=ledger,
            stream=stream,
            run=run,
            sessions=sessions,
            stop=stop,
            ui_key=ui_key,
        )
        say_reason(work.work())
