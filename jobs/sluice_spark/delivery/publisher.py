"""Makes staged batches visible in all tables of a stream, an output after the other, and clears them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType
from typing import TypeAlias

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.ledger.batches import PublicationKey
from sluice.publication.chain import is_visible
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.marks import batch_of, load_target_state
from sluice.publication.publish_batches import Publication, ReplacedRange, publish_append, publish_replace
from sluice.publication.staged_batch import PlannedBatch, StagedBatch
from sluice.publication.staging_table import clear_staging
from sluice.supervision.held_lease import HeldLease
from sluice_spark.delivery.batch_recording import KeptFigures
from sluice_spark.delivery.fenced_merge import FencedMerge
from sluice_spark.sinks.iceberg import IcebergTarget

StagedByOutput: TypeAlias = Mapping[str, StagedBatch]
"""One batch, staged for each output."""

no_tables: Mapping[str, Table] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Publisher:
    """The publication of one run's batches, and of those that earlier runs left staged.

    targets: the outputs, in the order in which they become visible. token: the fencing token that every commit carries.
    merging: publishes the outputs of mode `merge`.
    lease: the run's; asked before each publication.
    merges_small: whether small staged files are merged into larger ones before they become visible.
    figures: those of the columns of published batches, until they are recorded.
    """

    catalog: Catalog
    targets: Sequence[IcebergTarget]
    token: int
    merging: FencedMerge
    lease: HeldLease
    merges_small: bool = False
    reached: Reached = unnoticed
    figures: KeptFigures = field(default_factory=lambda: KeptFigures(masked_of=lambda _: None))
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
            self.figures.note(target.output, target.declared.table, published)
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
            staged_files={key: files for each in published for key, files in each.staged_files.items()},
            staged_schema=next((each.staged_schema for each in published if each.staged_schema is not None), None),
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
