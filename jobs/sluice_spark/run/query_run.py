"""Runs the query of a stream in this driver: starts it, watches it, and stops it between two batches."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

from py4j.protocol import Py4JError
from pyspark.sql.streaming.query import StreamingQuery
from tenacity import RetryError, retry, retry_if_result, stop_after_delay, wait_fixed

from sluice.errors import CheckpointError
from sluice_spark.delivery.choose_delivery import exclude_imports
from sluice_spark.delivery.delivery_port import BatchGate, Delivery, DeliveryContext
from sluice_spark.query.stream_plan import StreamPlan
from sluice_spark.run.progress_listener import BatchOrigin, ProgressListener
from sluice_spark.run.run_checkpoint import RunCheckpoint
from sluice_spark.run.stop_request import StopReason, StopRequest
from sluice_spark.session.checkpoint_metadata import has_metadata
from sluice_spark.session.item_sessions import end_copy_of_query

_log = logging.getLogger(__name__)

_PAUSE_SECONDS = 20.0
"""How long a stop waits for a pause between two batches before it closes the gate. Most streams pause every few
seconds; one that is catching up does not, and its next batch is turned away instead."""

_BATCH_SECONDS = 90.0
"""How long a stop then waits for the running batch; after that it is interrupted, and runs again at the next start."""

_LAST_EVENTS_SECONDS = 10.0
"""How long the end of a run waits for Spark's report of the last batches."""

_EMPTY_BATCHES = "spark.sql.streaming.noDataMicroBatches.enabled"
_PROCESSOR = "TransformWithState"

_CHECKPOINT_SECONDS = 5.0
"""How often a run looks whether its checkpoint is there: one request, beside the batches."""

_LOOK_SECONDS = 0.02
_WATCH_SECONDS = 0.1


def has_processor(plan: StreamPlan) -> bool:
    """Whether a processor of state is in a plan."""
    return _PROCESSOR in str(plan.rows._jdf.queryExecution().analyzed().toString())


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRun:
    """A planned stream, its delivery, what may stop it, and the checkpoint from which it continues."""

    plan: StreamPlan
    delivery: Delivery
    context: DeliveryContext
    stop: StopRequest
    checkpoint: RunCheckpoint

    def keep_running(self, trigger: Mapping[str, Any]) -> StopReason:
        """Run until a stop is asked for.

        Parameters
        ----------
        trigger: the arguments of `DataStreamWriter.trigger`.

        Returns
        -------
        Why it ended.

        Raises
        ------
        Exception: what made the query fail; the error of the delivery itself, if it was one.
        """
        streams = self.plan.rows.sparkSession.streams
        listener = self._listener()
        streams.addListener(listener)
        try:
            if self.stop.reason is None:
                exclude_imports()
                self._start_and_watch(trigger)
                listener.terminated.wait(_LAST_EVENTS_SECONDS)
        finally:
            streams.removeListener(listener)
            listener.release()
        return self.stop.reason or StopReason.EXHAUSTED

    def exhaust(self) -> StopReason:
        """Run over everything that is there now, then end: a batch that an earlier run left unfinished, batches as the
        inputs' limits ask for, and one without rows when the last of them moved the watermark.

        Raises
        ------
        Exception: what made the query fail.
        """
        trigger = self.plan.declaration.trigger
        if trigger is not None and trigger.once:
            _log.info("`once` runs as `available_now`: all that is there now, in batches as the inputs' limits ask for")
        with self._ending_by_itself():
            return self.keep_running({"availableNow": True})

    def run_planned(self) -> StopReason:
        """Run the batch that the checkpoint has planned, exactly as it is planned, and no other one.

        Raises
        ------
        Exception: what made the query fail.
        """
        return self.keep_running({"once": True})

    @contextmanager
    def _ending_by_itself(self) -> Iterator[None]:
        """Leave out batches without rows while the block runs, when a processor of state is in the plan: one that
        counts in processing time wants another batch for ever (`test_state_processor.py` with a time to live)."""
        spark = self.plan.rows.sparkSession
        before = str(spark.conf.get(_EMPTY_BATCHES))
        if has_processor(self.plan):
            spark.conf.set(_EMPTY_BATCHES, "false")
        try:
            yield
        finally:
            spark.conf.set(_EMPTY_BATCHES, before)

    @property
    def _gate(self) -> BatchGate:
        return self.context.controls.gate

    def _listener(self) -> ProgressListener:
        hand_over = self.context.controls.skipped_input.completing(self.context.recording.observed)
        return ProgressListener(
            self.plan.rows.sparkSession,
            BatchOrigin(
                run=self.context.run,
                sources=self.plan.sources,
                judges_files=self.plan.rejected is not None and self.plan.rejected.takes_all,
            ),
            take_delivered=self.delivery.take,
            hand_over=hand_over,
            see_written=self.context.controls.sightings.see_written,
        )

    def _start_and_watch(self, trigger: Mapping[str, Any]) -> None:
        self.checkpoint.begin()
        query = self.delivery.start(trigger)
        is_interrupted = False
        try:
            self.checkpoint.register_query(self.plan.rows.sparkSession, query.id)
            self._watch(query)
        finally:
            if query.isActive:
                is_interrupted = self._stop_between_batches(query)
            if not query.isActive:
                end_copy_of_query(self.plan.rows.sparkSession, query)
        self._raise_failure(query, is_interrupted=is_interrupted)

    def _watch(self, query: StreamingQuery) -> None:
        """Wait until the query ends, a stop is asked for, or the checkpoint is gone: Spark would make a
        new folder, from which no run could start."""
        due = monotonic() + _CHECKPOINT_SECONDS
        while query.isActive and not self.stop.wait(_WATCH_SECONDS):
            if monotonic() < due:
                continue
            due = monotonic() + _CHECKPOINT_SECONDS
            if not self._has_checkpoint():
                self.stop.make(StopReason.CHECKPOINT_LOST)

    def _has_checkpoint(self) -> bool:
        try:
            return has_metadata(self.plan.rows.sparkSession, self.context.checkpoint)
        except Py4JError as error:  # its storage does not answer, which says nothing about the checkpoint
            _log.warning("the checkpoint cannot be looked at: %s", error)
            return True

    def _stop_between_batches(self, query: StreamingQuery) -> bool:
        """Stop the query. Returns whether it still ran then, so that its later errors follow from the stop."""
        reason = self.stop.reason
        if not self.delivery.stops_at_once(may_publish=reason is None or reason.may_publish):
            self._await_pause(query, seconds=_PAUSE_SECONDS)
            self._gate.close()
            self._await_pause(query, seconds=_BATCH_SECONDS)
        is_running = bool(query.isActive)
        query.stop()
        return is_running

    def _await_pause(self, query: StreamingQuery, *, seconds: float) -> None:
        def is_within_batch() -> bool:
            is_held = self._gate.turned_away.is_set() or self._gate.waits.is_set()
            return query.isActive and not is_held and bool(query.status["isTriggerActive"])

        patiently = retry(retry=retry_if_result(bool), wait=wait_fixed(_LOOK_SECONDS), stop=stop_after_delay(seconds))
        try:
            patiently(is_within_batch)()
        except RetryError:
            _log.warning("the batch still runs after %d s", seconds)

    def _raise_failure(self, query: StreamingQuery, *, is_interrupted: bool) -> None:
        if is_interrupted and self.stop.reason is StopReason.LEASE_LOST:
            _log.info("the batch was interrupted because the lease was lost; the next run delivers it")
            return
        if self.delivery.failure is not None:
            raise self.delivery.failure
        if self.stop.reason is StopReason.CHECKPOINT_LOST:
            raise CheckpointError(
                f"The checkpoint {self.context.checkpoint} of {self.context.run.stream} was removed while it ran; it "
                "stopped after its batch.",
                next_step=f"`sluice stream repair {self.context.run.stream}` writes it back at the newest batch.",
            )
        error = query.exception()
        if error is None or self._gate.turned_away.is_set():
            return
        if not is_interrupted:
            raise self.plan.copies.failure or error
        _log.info("the stop came while a batch was planned; it is planned again at the next start")
        _log.debug("the error of the interrupted planning: %s", error)
