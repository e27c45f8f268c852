"""Brings together what is known of a batch from two sides, and hands it to the ledger when both are there.

Spark reports what a batch did after it was staged; the publication says when it became visible. With grouped
publication these are minutes apart. A batch that is visible and not recorded stays in the staging tables, so that a
driver's death in between loses no record.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from sluice.ledger.records.stream_batch import BatchObservation
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed

HandOver = Callable[[BatchObservation, Callable[[], None]], None]
"""Takes a batch to record, at once, and calls the function when the ledger has it."""


class Recording:
    """The batches of one run on their way into the ledger.

    Parameters
    ----------
    hand_over: takes the observation of each batch.
    awaits_publication: whether batches become visible in tables; otherwise what Spark reports is all there is to know.
    reached: is told `RECORDED` when the ledger has one.
    """

    def __init__(self, hand_over: HandOver, *, awaits_publication: bool = True, reached: Reached = unnoticed) -> None:
        self._hand_over = hand_over
        self._awaits_publication = awaits_publication
        self._reached = reached
        self._changed = threading.Condition()
        self._observed: dict[int, BatchObservation] = {}
        self._published: dict[int, Mapping[str, int]] = {}
        self._unrecorded: set[int] = set()

    @property
    def unrecorded(self) -> frozenset[int]:
        """The batches that are visible and that the ledger does not have yet."""
        with self._changed:
            return frozenset(self._unrecorded)

    def observed(self, batch: BatchObservation) -> None:
        """Take what Spark reported of a batch."""
        number = batch.key.batch
        with self._changed:
            self._observed[number] = batch
            if not self._awaits_publication:
                self._published[number] = batch.snapshot_ids
        self._hand_over_if_whole(number)

    def published(self, number: int, snapshot_ids: Mapping[str, int]) -> None:
        """Take note that a batch is visible. snapshot_ids: of the targets, by output."""
        with self._changed:
            self._published[number] = snapshot_ids
            self._unrecorded.add(number)
        self._hand_over_if_whole(number)

    def recovered(self, batch: BatchObservation) -> None:
        """Take a batch that an earlier driver staged and that this one knows from its snapshots alone."""
        with self._changed:
            self._unrecorded.add(batch.key.batch)
        self._hand_over(batch, lambda: self._recorded(batch.key.batch))

    def await_settled(self, timeout_seconds: float) -> bool:
        """Wait until the ledger has every batch that is visible, at most so long. Returns whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._unrecorded, timeout_seconds)

    def _hand_over_if_whole(self, number: int) -> None:
        with self._changed:
            if number not in self._observed or number not in self._published:
                return
            batch, snapshot_ids = self._observed.pop(number), self._published.pop(number)
        self._hand_over(replace(batch, snapshot_ids=snapshot_ids), lambda: self._recorded(number))

    def _recorded(self, number: int) -> None:
        self._reached(CrashPoint.RECORDED)
        with self._changed:
            self._unrecorded.discard(number)
            self._changed.notify_all()
