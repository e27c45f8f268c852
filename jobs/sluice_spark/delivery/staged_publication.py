"""Decides when the staged batches of a run become visible: in order, when they are due, and no batch before a held one.

A batch is published at once, or on a thread of the driver while Spark works on the next batch: a staged batch is safe,
so Spark does not wait for its commit. Several batches may wait to be published together (`publish_every`); a table that
gets a snapshot every half minute stays small and quick. The staging tables are cleared behind them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

from pyiceberg.table import Table

from sluice.ledger.batches import BatchObservation, PublicationKey
from sluice.publication.staged_batch import recovered_observation
from sluice_spark.delivery.batch_recording import Recording
from sluice_spark.delivery.publisher import Publisher, StagedByOutput, no_tables
from sluice_spark.delivery.waiting_batches import HeldBatches

_log = logging.getLogger(__name__)

CLEARED_TOGETHER = 20
"""How many visible batches the staging tables keep before they are cleared: clearing costs a commit or two for each
output, which small batches should not pay every time."""

_SETTLING_SECONDS = 5.0
"""How long the end of a run waits for the ledger before it leaves the clearing to the next run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationRhythm:
    """How often staged batches are published.

    every_seconds: how long staged batches wait to be published together; none when each is published alone.
    is_overlapped: whether a batch is published while Spark works on the next; groups always are.
    """

    every_seconds: float | None = None
    is_overlapped: bool = False

    @property
    def is_beside(self) -> bool:
        """Whether publications have a thread of their own."""
        return self.is_overlapped or self.every_seconds is not None


@dataclass(slots=True, kw_only=True)
class StagedPublication:
    """The publications of one run.

    on_failure: is called when a publication on a thread of its own has failed.
    held: the batches that wait for a person.
    """

    publisher: Publisher
    recording: Recording
    rhythm: PublicationRhythm
    on_failure: Callable[[], None]
    held: HeldBatches | None = None
    _uncleared: int = 0
    _overlapped: OverlappedPublication | None = None

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Publish while the block runs; after it, unless it failed, publish what still waits, and clear what is
        visible and recorded."""
        with self._watching_held():
            yield from self._publishing()
        if self._uncleared and self.recording.await_settled(_SETTLING_SECONDS):
            self.publisher.clear()
            self._uncleared = 0

    @contextmanager
    def _watching_held(self) -> Iterator[None]:
        if self.held is None:
            yield
            return
        self.held.watch()
        try:
            yield
        finally:
            self.held.end()

    def _publishing(self) -> Iterator[None]:
        if self.rhythm.is_beside:
            overlapped = OverlappedPublication(
                self._publish, every_seconds=self.rhythm.every_seconds, on_failure=self.on_failure
            )
            with overlapped as self._overlapped:
                yield
        else:
            yield

    def before_batch(self) -> None:
        """Clear between two batches, where no thread beside the query does. Wait while too many are held.

        Raises
        ------
        TurnedAwayError: when the run ends meanwhile.
        """
        if self.held is not None:
            self.held.await_room()
        if self._overlapped is None and not (self.held is not None and self.held.is_waiting):
            self._clear_when_worthwhile()

    def publish(self, batch: StagedByOutput, staging: Mapping[str, Table] = no_tables) -> None:
        """Let a staged batch become visible, now or on the thread beside the query.

        Parameters
        ----------
        staging: the staging tables by output, where they are loaded already.

        Raises
        ------
        LeaseLostError, DeliveryError, LakehouseError: as `Publisher.publish` raises them, for this batch or an earlier.
        """
        if self.held is not None and self.held.takes(batch):
            return
        if self._overlapped is not None:
            self._overlapped.add(batch, staging)
        else:
            self._publish([batch], staging)

    def publish_held(self, batch: StagedByOutput, is_recovered: bool) -> None:
        """Make a batch visible that no longer waits, once all before it are.

        Parameters
        ----------
        is_recovered: whether an earlier run has staged it and Spark does not run it again.

        Raises
        ------
        LeaseLostError, DeliveryError, LakehouseError: as `Publisher.publish` raises them.
        """
        if self._overlapped is not None:
            self._overlapped.await_published()
        snapshot_ids = self.publisher.publish([batch])
        staged = replace(recovered_observation(batch), snapshot_ids=snapshot_ids)
        if is_recovered:
            self.note_recovered(self.with_figures(staged), comes_again=False)
            return
        if any(one.summary.is_separated for one in batch.values()):
            self.recording.staged_again(staged)
        self.note_visible([staged.key], snapshot_ids)

    def note_visible(self, keys: Sequence[PublicationKey], snapshot_ids: Mapping[str, int]) -> None:
        """Note that batches are visible. snapshot_ids: of the targets, by output."""
        for key in keys:
            self._uncleared += 1
            self.recording.published(key, snapshot_ids, self.publisher.figures.take(key))

    def with_figures(self, batch: BatchObservation) -> BatchObservation:
        """The record of a batch with the figures of its columns, which are taken by that."""
        return replace(batch, column_figures=self.publisher.figures.take(batch.key))

    def note_recovered(self, batch: BatchObservation, *, comes_again: bool) -> None:
        """Note that a batch of an earlier run is visible and still in the staging tables.

        Parameters
        ----------
        comes_again: whether Spark runs it again, because the checkpoint has not committed it. It is then recorded with
            all that Spark knows of it, and stays staged until it is: another crash in between would lose its record.
        """
        self._uncleared += 1
        if comes_again:
            self.recording.awaits_repetition(batch.key)
        else:
            self.recording.recovered(batch)

    def _publish(self, batches: Sequence[StagedByOutput], staging: Mapping[str, Table]) -> None:
        snapshot_ids = self.publisher.publish(batches, staging=staging)
        self.note_visible([next(iter(batch.values())).summary.key for batch in batches], snapshot_ids)
        if self._overlapped is not None:
            self._clear_when_worthwhile()

    def _clear_when_worthwhile(self) -> None:
        # Of batches that follow each other without a pause the ledger is always one behind: the others can be cleared.
        unrecorded = self.recording.unrecorded
        if self._uncleared - len(unrecorded) >= CLEARED_TOGETHER:
            self.publisher.clear(unrecorded=unrecorded)
            self._uncleared = len(unrecorded)


Publish: TypeAlias = Callable[[Sequence[StagedByOutput], Mapping[str, Table]], None]
"""Makes batches visible, in order, with all that follows from it. Takes the staging tables by output, loaded after the
last of the batches was staged; those that are missing have to be loaded."""


class OverlappedPublication:
    """Publishes waiting batches on a thread of its own when they are due.

    A group is due a fixed time after its first batch was staged, with or without new input, and when the run ends.
    Without groups each batch is published alone, and Spark is at most one batch ahead. A context manager: leaving it
    publishes what still waits, unless the block failed; then the next run publishes it.

    Parameters
    ----------
    publish: called on the thread, and at the end on the caller's.
    every_seconds: how long the first batch of a group waits; none when there are no groups.
    on_failure: is called when a publication has failed; leaving the block then raises its error.
    """

    def __init__(self, publish: Publish, *, every_seconds: float | None, on_failure: Callable[[], None]) -> None:
        self._publish = publish
        self._every_seconds = every_seconds
        self._on_failure = on_failure
        self._changed = threading.Condition()
        self._waiting: list[StagedByOutput] = []
        self._staging: Mapping[str, Table] = no_tables
        self._due_at: float | None = None
        self._is_ending = False
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="publication", daemon=True)

    def __enter__(self) -> OverlappedPublication:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._changed:
            self._is_ending = True
            self._changed.notify_all()
        self._thread.join()
        if self._failure is not None:  # the cause; an error of the query beside it is a consequence
            raise self._failure
        if kind is None:
            self._publish_waiting()

    def add(self, batch: StagedByOutput, staging: Mapping[str, Table]) -> None:
        """Queue a staged batch for publication; without groups, once the previous batch is visible.

        Parameters
        ----------
        staging: the staging tables by output, as they were loaded after the batch was staged.

        Raises
        ------
        Exception: the error of a publication that has failed; no further batch is taken.
        """
        with self._changed:
            if self._every_seconds is None:
                self._changed.wait_for(lambda: not self._waiting or self._failure is not None)
            if self._failure is not None:
                raise self._failure
            if self._due_at is None:
                self._due_at = time.monotonic() + (self._every_seconds or 0.0)
            self._waiting.append(batch)
            self._staging = staging
            self._changed.notify_all()

    def await_published(self) -> None:
        """Wait until everything that was added is visible.

        Raises
        ------
        Exception: the error of a publication that has failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting or self._failure is not None)
            if self._failure is not None:
                raise self._failure

    def _work(self) -> None:
        while self._await_due():
            try:
                self._publish_waiting()
            except Exception as error:  # noqa: BLE001  # the thread's end: the error is kept whole and raised by the run
                _log.error("a publication failed, so the run ends: %s", error)
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                self._on_failure()
                return

    def _await_due(self) -> bool:
        """Wait until a publication is due. Returns False when the run ends instead."""
        with self._changed:
            while not self._is_ending:
                left = None if self._due_at is None else self._due_at - time.monotonic()
                if left is not None and left <= 0:
                    return True
                self._changed.wait(left)
            return False

    def _publish_waiting(self) -> None:
        with self._changed:
            batches, staging = tuple(self._waiting), self._staging
            self._due_at, self._staging = None, no_tables
        if batches:
            self._publish(batches, staging)
        with self._changed:
            del self._waiting[: len(batches)]
            self._changed.notify_all()
