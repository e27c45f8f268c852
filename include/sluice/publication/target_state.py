"""Looks at a target and says how far an output is published there, before anything is admitted or refused.

The mark is not always the whole story: Spark's MERGE makes rows visible in a commit that cannot set the mark, so a
batch may be in main's history above the mark. Such a batch counts as published: it is folded into what is seen here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from sluice.errors import DivergedError, LakehouseError, MarkError, RolledBackError
from sluice.publication.marks import Mark, MarkPosition, read_mark
from sluice.publication.offsets import offsets_digest
from sluice.publication.staged_output import StagedOutput
from sluice.publication.staging_table import refuse_unpublishable
from sluice.publication.summaries import BatchSummary, read_summary
from sluice.tables.declared_tables import load_table


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A loaded target, and how far one output is published in it.

    table: the metadata that all of this was read from; a commit asserts that main is still where it was there.
    mark: as the table property has it; none before the first generation opened.
    merged: the newest batch that a MERGE made visible and that the mark does not know yet.
    merged_snapshot_id: the snapshot of that MERGE.
    """

    table: Table
    mark: Mark | None
    merged: BatchSummary | None = None
    merged_snapshot_id: int | None = None

    def position(self, output: StagedOutput) -> MarkPosition:
        """How far the output is published, merges included.

        Raises
        ------
        MarkError: when no generation was ever opened.
        """
        if self.mark is None:
            raise MarkError(
                f"{output.target} has no mark of {output}: no generation was opened, or the property "
                f"{output.mark_property} was removed.",
                next_step="Start the stream; it opens its generation before its first batch.",
            )
        if self.merged is None:
            return self.mark.at
        return MarkPosition(
            generation=self.merged.key.generation,
            batch=self.merged.key.batch,
            token=self.mark.token,
            end_offsets_digest=offsets_digest(self.merged.end_offsets),
        )

    @property
    def published_by(self) -> int | None:
        """The snapshot that made the newest batch visible, or set the mark; none before the first generation."""
        if self.merged_snapshot_id is not None:
            return self.merged_snapshot_id
        return self.mark.snapshot_id if self.mark is not None else None


def load_standing(catalog: Catalog, output: StagedOutput) -> Standing:
    """Load the target and look at it.

    Raises
    ------
    LakehouseError: when it does not exist or cannot be loaded.
    DeliveryError: as `standing_in` does.
    """
    return standing_in(require_target(catalog, output.target), output)


def require_target(catalog: Catalog, target: str) -> Table:
    """Load a target.

    Raises
    ------
    LakehouseError: when it does not exist or cannot be loaded.
    """
    table = load_table(catalog, target)
    if table is None:
        raise LakehouseError(f"The table {target} does not exist.", next_step=f"Run `sluice table create {target}`.")
    return table


def standing_in(table: Table, output: StagedOutput) -> Standing:
    """Look at a target that is loaded.

    Raises
    ------
    UnpublishableError: when nothing can be published into it in this way.
    MarkError: when the mark cannot be read.
    RolledBackError: when main was set back, or replaced, behind the mark.
    DivergedError: when a batch of an older generation became visible after the mark.
    """
    refuse_unpublishable(table)
    mark = read_mark(table, stream=output.stream, output=output.output)
    if mark is None:
        return Standing(table=table, mark=None)
    since = list(_since_mark(table, mark, output))
    for snapshot in since:  # the newest first
        merged = read_summary(snapshot.summary.additional_properties) if snapshot.summary is not None else None
        if merged is None or (merged.key.stream, merged.output) != (output.stream, output.output):
            continue
        if merged.key.generation != mark.generation:
            raise DivergedError(
                f"{output.target} got batch {merged.key} after generation {mark.generation} had opened: a driver of "
                f"another generation was still at work. It is snapshot {snapshot.snapshot_id}.",
                next_step="See that no old driver lives; then roll the table back to the snapshot before it.",
            )
        if merged.key.batch > mark.batch:
            return Standing(table=table, mark=mark, merged=merged, merged_snapshot_id=snapshot.snapshot_id)
    return Standing(table=table, mark=mark)


def _since_mark(table: Table, mark: Mark, output: StagedOutput) -> Iterator[Snapshot]:
    """The snapshots of main after the one that set the mark, the newest first.

    That one itself may be expired, and then the walk ends where history does. It must not be passed by: a main that
    goes from a later snapshot to an earlier one without it is another main than the one that was marked.
    """
    snapshot = table.current_snapshot()
    if snapshot is None or _sequence_number(snapshot) < mark.sequence_number:
        raise _rolled_back(mark, output, "main ends before the snapshot that set it")
    while snapshot is not None and snapshot.snapshot_id != mark.snapshot_id:
        if _sequence_number(snapshot) <= mark.sequence_number:
            raise _rolled_back(mark, output, "main goes past the snapshot that set it")
        yield snapshot
        parent = snapshot.parent_snapshot_id
        snapshot = table.snapshot_by_id(parent) if parent is not None else None
    if snapshot is None and table.snapshot_by_id(mark.snapshot_id) is not None:
        raise _rolled_back(mark, output, "the snapshot that set it is there and main does not descend from it")


def _sequence_number(snapshot: Snapshot) -> int:
    return snapshot.sequence_number or 0


def _rolled_back(mark: Mark, output: StagedOutput, reason: str) -> RolledBackError:
    return RolledBackError(
        f"{output.target} was rolled back or replaced behind the mark of {output} (generation {mark.generation}, batch "
        f"{mark.batch}, snapshot {mark.snapshot_id}): {reason}. Nothing is published.",
        next_step="Set main back to that snapshot, or open a new generation where the table now ends.",
    )
