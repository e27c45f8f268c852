"""Makes staged batches visible in all tables of a stream, an output after the other, and clears them.

An output of mode `merge` becomes visible by a MERGE of Spark, all others by a commit without Spark. A MERGE that was
checked against an old table is refused. Its rows are read and it is built first (`merge_statement`), so that only its
execution lies behind the fence.

The fence is a Spark session of its own, whose catalog keeps a table object until a REFRESH. The table is refreshed
once, the mark is read from exactly that object, and the MERGE is bound to it with serializable isolation. Rows that
others added to the touched partitions since then refuse the MERGE, whatever keys they have; it is then tried again from
the check. A driver that saw a newer table than it had checked would merge an old batch over a newer one. Two things
keep it from that: the catalog's cache does not expire, as it would after half a minute by default; and the object is
held while the MERGE runs, because the cache itself holds it softly and gives it up when memory is short.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import groupby
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sluice.errors import DeliveryError, LakehouseError, StarvedError
from sluice.ledger.batches import PublicationKey
from sluice.publication.chain import batches_to_publish, is_visible
from sluice.publication.checked_commit import RacePolicy
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.data_files import missing_list
from sluice.publication.mark_moves import settle_merge
from sluice.publication.marks import TargetState, batch_of, load_target_state
from sluice.publication.publish_batches import Publication, ReplacedRange, publish_append, publish_replace
from sluice.publication.staged_batch import PlannedBatch, StagedBatch
from sluice.publication.staging_table import clear_staging, load_staging_table, torn
from sluice.supervision.held_lease import HeldLease
from sluice_spark.delivery.batch_recording import KeptFigures
from sluice_spark.delivery.merge_statement import KeptRows, RowsToMerge
from sluice_spark.session.item_sessions import end_session
from sluice_spark.session.jvm import first_line, iceberg_table
from sluice_spark.session.state_settings import SHUFFLE_PARTITIONS
from sluice_spark.sinks.iceberg import IcebergTarget

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_log = logging.getLogger(__name__)

_PARTS_PER_CORE = 4
"""Shuffle partitions of a MERGE for each core: Spark coalesces small partitions, and cannot split large ones."""

MERGE_RACES = RacePolicy(attempts=20, longest_wait_seconds=2.0)
"""After so many refused MERGEs a stream counts as starved. A MERGE costs seconds and not milliseconds, so it is tried
less often than a commit without Spark."""

Turn = Callable[[str], AbstractContextManager[object]]
"""Waits until no other publisher of Sluice merges into a table, given its name. It only saves refused attempts."""


def at_once(_table: str) -> AbstractContextManager[object]:
    """No waiting."""
    return nullcontext()


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedTarget:
    """A target as it was checked.

    state: how far the output is published in it.
    held: the object of the same metadata in the JVM, which the fenced session's MERGE looks up in its catalog. py4j
        refers to it as long as this value exists, so the JVM cannot collect it.
    """

    state: TargetState
    held: JavaObject


@dataclass(slots=True, kw_only=True)
class FencedMerge:
    """Merges the batches of one run.

    token: the run's fencing token. turn: the queue of Sluice's own publishers.
    """

    spark: SparkSession
    catalog: Catalog
    token: int
    turn: Turn = at_once
    reached: Reached = unnoticed
    _session: SparkSession | None = None

    def publish(self, target: IcebergTarget, batches: Sequence[StagedBatch]) -> Publication:
        """Make staged batches visible, in order, by one MERGE, and move the mark after it.

        Raises
        ------
        StarvedError: when other writers changed the table before every attempt.
        DeliveryError, LakehouseError: as `publish_append` raises them.
        """
        if _are_empty(batches):
            return self._move_mark(target, batches)
        with self.turn(target.declared.table), KeptRows(self._fenced_session(), target) as kept:
            merged = self._merge_until_admitted(target, batches, kept)
        settle_merge(self.catalog, target.names, token=self.token)
        return merged

    def close(self) -> None:
        """Close the session of the MERGEs; another MERGE opens another one."""
        if self._session is not None:
            end_session(self._session)
            self._session = None

    def _merge_until_admitted(
        self, target: IcebergTarget, batches: Sequence[StagedBatch], kept: KeptRows
    ) -> Publication:
        refusal: Exception | None = None
        attempts = 0
        self._read_ahead(target, batches, kept)
        for attempts in MERGE_RACES.turns():
            checked = self._refreshed(target)
            state = checked.state
            todo = batches_to_publish(
                state.position(target.names), batches, token=self.token, target=target.declared.table
            )
            if not todo:
                is_merged_here = attempts > 1  # by the attempt that was refused: its commit landed, its answer did not
                if is_merged_here:
                    self.reached(CrashPoint.MERGED)
                return Publication(
                    snapshot_id=state.published_by,
                    published=tuple(batches) if is_merged_here else (),
                    attempts=attempts - 1,
                )
            if _are_empty(todo):  # others have published the rows before them
                return self._move_mark(target, todo)
            self.reached(CrashPoint.CHECKED)
            try:
                self._merge(kept.of(todo, state.table), checked)
            except (PySparkException, Py4JJavaError) as error:
                # Only a table that others have changed meanwhile explains a refusal.
                if not self._has_moved(target, state):
                    raise self._unmergeable(target, todo, error) from error
                _log.info("%s changed while batch %s was merged; again", target.declared.table, todo[-1].summary.key)
                refusal = error
                continue
            self.reached(CrashPoint.MERGED)
            merged = load_target_state(self.catalog, target.names)
            return Publication(snapshot_id=merged.published_by, published=todo, attempts=attempts)
        raise StarvedError(
            f"Batch {batches[-1].summary.key} was refused {attempts} times by {target.declared.table}: other writers "
            "keep adding rows to the same partitions.",
            next_step="Let the others write into other partitions, or less often; a merge that is tried again is safe.",
        ) from refusal

    def _move_mark(self, target: IcebergTarget, batches: Sequence[StagedBatch]) -> Publication:
        """Publish batches without rows: the mark moves by a commit without Spark."""
        return publish_append(self.catalog, target.names, batches, token=self.token, reached=self.reached)

    def _read_ahead(self, target: IcebergTarget, batches: Sequence[StagedBatch], kept: KeptRows) -> None:
        """Read the rows before the check, so that only the MERGE itself lies between the check and its commit."""
        state = load_target_state(self.catalog, target.names)
        position = state.position(target.names)
        todo = batches_to_publish(position, batches, token=self.token, target=target.declared.table)
        if _are_empty(todo):
            return
        try:
            kept.of(todo, state.table)
        except (PySparkException, Py4JJavaError) as error:
            raise self._unmergeable(target, todo, error) from error

    def _unmergeable(self, target: IcebergTarget, batches: Sequence[StagedBatch], error: Exception) -> DeliveryError:
        """Spark names neither the staging table that it could not read, nor what helps."""
        with suppress(LakehouseError):  # what the merge has failed for says more
            if lost := missing_list(load_staging_table(self.catalog, target.names), is_whole=True):
                return torn(target.names.staging, stream=target.stream, error=FileNotFoundError(lost))
        return DeliveryError(
            f"Batch {batches[-1].summary.key} cannot be merged into {target.declared.table}: {first_line(error)}."
        )

    def _refreshed(self, target: IcebergTarget) -> CheckedTarget:
        """The target, with its state read from the metadata of the object that the fenced session uses from now on,
        and that its next MERGE is bound to."""
        session = self._fenced_session()
        for _ in MERGE_RACES.turns():
            session.sql(f"REFRESH TABLE {target.identifier}")
            # The session's object is loaded first: if it were the newer one, the check would read an older table.
            held = iceberg_table(session, self.catalog.name, target.declared.table)
            state = load_target_state(self.catalog, target.names)
            snapshot = state.table.current_snapshot()
            if _head(held) == (snapshot.snapshot_id if snapshot is not None else None):
                return CheckedTarget(state=state, held=held)
        raise StarvedError(f"{target.declared.table} changes faster than it can be read.")

    def _merge(self, rows: RowsToMerge, checked: CheckedTarget) -> None:
        """Execute a MERGE on the checked target, which is held until it returns."""
        rows.statement.merge()  # the target is looked up now, in the fenced session

    def _has_moved(self, target: IcebergTarget, checked: TargetState) -> bool:
        now, before = load_target_state(self.catalog, target.names).table, checked.table
        return now.metadata.current_snapshot_id != before.metadata.current_snapshot_id

    def _fenced_session(self) -> SparkSession:
        if self._session is None:
            session = self.spark.newSession()
            name = self.catalog.name
            session.conf.set(f"spark.sql.catalog.{name}.cache-enabled", "true")
            session.conf.set(f"spark.sql.catalog.{name}.cache.expiration-interval-ms", "-1")
            # A new session starts with Spark's 200 partitions, which make as many files in each shuffle of a MERGE.
            session.conf.set(SHUFFLE_PARTITIONS, str(_PARTS_PER_CORE * self.spark.sparkContext.defaultParallelism))
            self._session = session
        return self._session


def _are_empty(batches: Sequence[StagedBatch]) -> bool:
    return all(batch.data_files == 0 for batch in batches)


def _head(table: JavaObject) -> int | None:
    snapshot = table.currentSnapshot()
    return int(snapshot.snapshotId()) if snapshot is not None else None


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
