"""One step of a table's maintenance: what is decided, the port by which an engine does it, and what its attempts have
done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from sluice.errors import LakehouseError
from sluice.ledger.maintenance_runs import MaintenanceStep
from sluice.maintenance.pin_plan import Hold, HoldReason
from sluice.tables.table_observation import ReferenceObservation, StatisticsKind

SECONDS_OF_A_FILE, SECONDS_OF_A_MEBIBYTE = 0.01, 0.1
SPARK_SECONDS, SPARK_SECONDS_OF_A_MEBIBYTE = 15.0, 0.05
"""What a rewrite costs, roughly, for the order among tables alone; measured by `benchmarks.binpack_time`. Spark's first
seconds are those of a step in an application that may have to start."""


class StoreRefusesError(LakehouseError):
    """The object store or the catalog takes a kind of file or of change from no one. Trying again does not help."""


class TableProcedures(Protocol):
    """Iceberg's procedures on one table. Each returns its result by the procedure's own column names.

    Each raises CommitConflictError when another writer committed first, and LakehouseError when it fails otherwise.
    """

    def rewrite_data_files(
        self, options: Mapping[str, str], *, where: str, is_sorted: bool, z_order: Sequence[str]
    ) -> Mapping[str, Any]:
        """Write small files together into larger ones, with one commit.

        Parameters
        ----------
        options: of the procedure, by their names.
        where: the filter of the files, as Iceberg's JSON; empty for all.
        is_sorted: whether all their rows are sorted by the order of the table.
        z_order: the columns by which all their rows are z-ordered; empty for none.
        """

    def remove_dangling_deletes(self) -> int:
        """Remove the delete files that hide nothing any more, and return their number."""

    def rewrite_manifests(self) -> Mapping[str, Any]:
        """Write the manifests together into fewer ones."""

    def expire_snapshots(self, *, older_than: datetime, retain_last: int) -> Mapping[str, Any]:
        """Remove the snapshots that are older than a time, except so many of the newest ones of each branch."""

    def compute_statistics(self, kind: StatisticsKind, *, columns: Sequence[str] | None) -> str:
        """Compute statistics of the newest snapshot, and return the path of their file; empty where it has no rows.

        Parameters
        ----------
        kind: of columns, or of partitions.
        columns: of which distinct values are counted; unset: of every one.

        Raises
        ------
        StoreRefusesError: when the store or the catalog takes no such file.
        """

    def changed_content(self, rewrites: Sequence[tuple[int, int]], *, is_hashed: bool) -> str:
        """Describe the first difference between the rows of a rewrite and of its parent; empty when there is none.

        Parameters
        ----------
        rewrites: the snapshots, each as (parent, rewrite).
        is_hashed: whether rows are compared by their hashes; if not, they are counted.
        """


@dataclass(slots=True, kw_only=True)
class StepProgress:
    """What the attempts of a step have done. Each call of Spark is a commit by itself: one that was made stays, and so
    does the removal of references before an expiry.

    left: the calls of a compaction that no attempt has made yet. made: how many were made, with their `figures`.
    kept_deletes: why delete files that hide nothing stay, for a sentence.
    references: the tags and branches that are gone.
    """

    left: list[RewriteCall]
    figures: Counter[str] = field(default_factory=Counter)
    made: int = 0
    kept_deletes: str = ""
    references: tuple[str, ...] = ()

    @property
    def share(self) -> str:
        """How much of a compaction was made, for a sentence; empty for a single call. One that finds nothing commits
        nothing."""
        calls = self.made + len(self.left)
        return f"; {self.made} of {calls} parts were made" if calls > 1 else ""

    @property
    def result(self) -> Mapping[str, Any]:
        """What was committed, for the record."""
        return {**self.figures, **({"removed_references": list(self.references)} if self.references else {})}


class StepAction(StrEnum):
    """What to do with a step. REFUSE: it is due, but it could harm a reader."""

    RUN = "run"
    SKIP = "skip"
    REFUSE = "refuse"


class StepReason(StrEnum):
    """Why a step is run, skipped or refused."""

    NOT_DECLARED = "not_declared"
    NO_SNAPSHOT = "no_snapshot"
    OLD_ROWS = "old_rows"
    NO_OLD_ROWS = "no_old_rows"
    NOT_AGREED = "not_agreed"
    READERS_BEHIND = "readers_behind"
    READER_STOPS = "reader_stops"
    FORMAT_VERSION = "format_version"
    SMALL_FILES = "small_files"
    FEW_SMALL_FILES = "few_small_files"
    DELETED_ROWS = "deleted_rows"
    RECENTLY_WRITTEN = "recently_written"
    PARTITIONS_UNNAMED = "partitions_unnamed"
    MANY_MANIFESTS = "many_manifests"
    FEW_MANIFESTS = "few_manifests"
    PINS_MOVED = "pins_moved"
    PINS_CURRENT = "pins_current"
    SNAPSHOTS_EXPIRABLE = "snapshots_expirable"
    NOTHING_EXPIRABLE = "nothing_expirable"
    READERS_NEED_SNAPSHOTS = "readers_need_snapshots"
    READER_NOT_STARTED = "reader_not_started"
    READER_UNKNOWN = "reader_unknown"
    READER_SNAPSHOT_GONE = "reader_snapshot_gone"
    READER_OFF_MAIN = "reader_off_main"
    WRITER_LATE = "writer_late"
    OUTSIDE_WINDOW = "outside_window"
    YOUNG_TABLE = "young_table"
    LOOKED_RECENTLY = "looked_recently"
    ORPHANS_UNKNOWN = "orphans_unknown"
    STATISTICS_OUTDATED = "statistics_outdated"
    STATISTICS_CURRENT = "statistics_current"
    STORE_REFUSES = "store_refuses"


@dataclass(frozen=True, slots=True, kw_only=True)
class RewriteCall:
    """A part of a compaction by Spark: one call, which makes one commit or none.

    where: the filter of its partitions, as Iceberg's JSON; empty for the whole table.
    options: besides those of the step, by their names.
    """

    where: str = ""
    options: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDecision:
    """What to do with one step, and why.

    options: the arguments of Spark's procedure, by their names.
    calls: the parts of a compaction by Spark.
    is_for_spark: whether Spark carries it out.
    is_sorted: whether a compaction by Spark sorts all rows by the order of the table.
    z_order: the columns by which a compaction by Spark z-orders all rows.
    partitions: those whose small files a compaction puts together, as paths.
    left: how many partitions a compaction leaves for a later run, although it found files to rewrite in them.
    references: the tags and branches that go before snapshots are expired.
    gain: how many files, manifests or snapshots there are fewer of afterwards, as far as it can be foreseen.
    cost_seconds, cost_bytes: the processor time that it takes, roughly, and what it reads.
    """

    step: MaintenanceStep
    action: StepAction
    reason: StepReason
    explanation: str
    options: Mapping[str, Any] = field(default_factory=dict)
    calls: tuple[RewriteCall, ...] = ()
    is_for_spark: bool = False
    is_sorted: bool = False
    z_order: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    left: int = 0
    references: tuple[ReferenceObservation, ...] = ()
    gain: int = 0
    cost_seconds: float = 0.0
    cost_bytes: int = 0


def held(step: MaintenanceStep, holds: Sequence[Hold]) -> StepDecision:
    """A step waits while a reader has not started, and is refused when the position of a reader is unknown.

    Parameters
    ----------
    holds: at least one.
    """
    worst = next((hold for hold in holds if hold.reason is not HoldReason.READER_NOT_STARTED), holds[0])
    waits = worst.reason is HoldReason.READER_NOT_STARTED
    return StepDecision(
        step=step,
        action=StepAction.SKIP if waits else StepAction.REFUSE,
        reason=StepReason(worst.reason),
        explanation=worst.explanation,
    )


def skipped(step: MaintenanceStep, reason: StepReason, explanation: str) -> StepDecision:
    """The decision not to do a step."""
    return StepDecision(step=step, action=StepAction.SKIP, reason=reason, explanation=explanation)
