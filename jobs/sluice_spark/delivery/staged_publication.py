"""Makes staged batches visible in all tables of a stream, in order and when they are due, and clears them.

A batch is published at once, or on a thread of the driver while Spark works on the next batch: a staged batch is safe,
so Spark does not wait for its commit. Several batches may wait to be published together (`publish_every`); a table that
gets a snapshot every half minute stays small and quick. The staging tables are cleared behind them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.ledger.batches import BatchObservation, PublicationKey
from sluice.publication.chain import is_visible
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.marks import batch_of, load_target_state
from sluice.publication.publish_batches import Publication, ReplacedRange, publish_append, publish_replace
from sluice.publication.staged_batch import PlannedBatch, StagedBatch, recovered_observation
from sluice.publication.staging_table import clear_staging
from sluice.supervision.held_lease import HeldLease
from sluice_spark.delivery.batch_recording import Recording
from sluice_spark.delivery.fenced_merge import FencedMerge
from sluice_spark.delivery.overlapped_publication import OverlappedPublication, StagedByOutput, no_tables
from sluice_spark.sinks.iceberg import IcebergTarget


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """The publication of one run's batches, and of those that earlier runs left staged.

    targets: the outputs, in the order in which they become visible. token: the fencing token that every commit carries.
    merging: publishes the outputs of mode `merge`.
    lease: the run's; asked before each publication.
    merges_small: whether small staged files are merged into larger ones before they become visible.
    """

    catalog: Catalog
    targets: Sequence[IcebergTarget]
    token: int
    merging: FencedMerge
    lease: HeldLease
    merges_small: bool = False
    reached: Reached = unnoticed
    _superseded: dict[str, list[str]] = field(default_factory=dict)

    @property
    def outputs(self) -> frozenset[str]:
        """The names of the outputs."""
        return frozenset(target.output for target in self.targets)

    def published_outputs(self, batch: PlannedBatch) -> frozenset[str]:
        """The outputs in which a batch is visible already.

        Raises
        ------
        DeliveryError: when another batch is visible under its number.
        """
        positions = {one.names: load_target_state(self.catalog, one.names).position(one.names) for one in self.targets}
        return frozenset(
            names.output for names, position in positions.items() if is_visible(position, batch, target=names.target)
        )

    def publish(
        self, batches: Sequence[StagedByOutput], *, staging: Mapping[str, Table] = no_tables
    ) -> Mapping[str, int]:
        """Make batches visible, every output of them.

        Parameters
        ----------
        staging: staging tables by output, loaded after the batches were staged; the others are loaded here.

        Returns
        -------
        The snapshots of the targets, by output.

        Raises
        ------
        LeaseLostError: when the run may not publish any more.
        DeliveryError, LakehouseError: as `publish_append` raises them. Outputs that are visible by then stay so; the
            others are published from staging by the next attempt.
        """
        snapshot_ids = {}
        self.lease.require()
        for number, target in enumerate(self.targets):
            own = [batch[target.output] for batch in batches if target.output in batch]
            published = self._publish(target, own, staging.get(target.output))
            self._superseded.setdefault(target.output, []).extend(published.superseded_files)
            if published.snapshot_id is not None:
                snapshot_ids[target.output] = published.snapshot_id
            if number == 0 and len(self.targets) > 1:
                self.reached(CrashPoint.FIRST_OUTPUT_PUBLISHED)
        self.reached(CrashPoint.PUBLISHED)
        return snapshot_ids

    def snapshots_of(self, key: PublicationKey) -> Mapping[str, int]:
        """The snapshots in which a batch became visible, by output, as far as the tables list them."""
        found = {}
        for target in self.targets:
            for snapshot in load_target_state(self.catalog, target.names).table.snapshots():
                batch = batch_of(snapshot, target.names)
                if batch is not None and batch.key == key:
                    found[target.output] = snapshot.snapshot_id
        return found

    def clear(self, *, unrecorded: Collection[PublicationKey] = ()) -> None:
        """Remove visible batches from the staging tables.

        Parameters
        ----------
        unrecorded: batches that the ledger does not have yet; they stay, because after a crash the ledger gets them
            from the staging tables.
        """
        for target in self.targets:
            cleared = clear_staging(
                self.catalog,
                target.names,
                token=self.token,
                unrecorded=unrecorded,
                superseded_files=self._superseded.get(target.output, ()),
            )
            self._superseded[target.output] = list(cleared.superseded_left)
        self.reached(CrashPoint.CLEARED)

    def _publish(self, target: IcebergTarget, batches: Sequence[StagedBatch], staging: Table | None) -> Publication:
        """Publish the batches of an output, those of one mode together, in order."""
        modes = [list(alike) for _, alike in groupby(batches, key=lambda batch: target.as_staged(batch).declared)]
        if not modes:
            return self._publish_alike(target, batches, staging)
        published = [self._publish_alike(target.as_staged(alike[0]), alike, staging) for alike in modes]
        return Publication(
            snapshot_id=published[-1].snapshot_id,
            published=tuple(batch for each in published for batch in each.published),
            attempts=sum(each.attempts for each in published),
            superseded_files=tuple(file for each in published for file in each.superseded_files),
        )

    def _publish_alike(
        self, target: IcebergTarget, batches: Sequence[StagedBatch], staging: Table | None
    ) -> Publication:
        mode = target.declared.mode
        if mode == "merge":
            return self.merging.publish(target, batches)
        if mode == "append":
            return publish_append(
                self.catalog,
                target.names,
                batches,
                token=self.token,
                merge_small=self.merges_small,
                staging=staging,
                reached=self.reached,
            )
        return publish_replace(
            self.catalog,
            target.names,
            batches,
            replaced=ReplacedRange.TABLE if mode == "complete" else ReplacedRange.PARTITIONS,
            token=self.token,
            staging=staging,
            reached=self.reached,
        )


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


class WaitingBatches(Protocol):
    """The batches of a run that wait for a person (`sluice_spark.delivery.waiting_batches`)."""

    @property
    def is_waiting(self) -> bool:
        """Whether anything waits."""
        ...

    def takes(self, batch: StagedByOutput) -> bool:
        """Whether a staged batch has to wait; it is then queued."""
        ...

    def await_room(self) -> None:
        """Wait while as many queue as may."""
        ...

    def watch(self) -> None:
        """Begin to look for decisions."""
        ...

    def end(self) -> None:
        """Look for none any more."""
        ...


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
    held: WaitingBatches | None = None
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
        if is_recovered:
            self.note_recovered(recovered_observation(batch), comes_again=False)
        else:
            self.note_visible([next(iter(batch.values())).summary.key], snapshot_ids)

    def note_visible(self, keys: Sequence[PublicationKey], snapshot_ids: Mapping[str, int]) -> None:
        """Note that batches are visible. snapshot_ids: of the targets, by output."""
        for key in keys:
            self._uncleared += 1
            self.recording.published(key, snapshot_ids)

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
