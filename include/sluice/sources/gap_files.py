"""Decides whether the rows of a gap can still be read exactly once, from the files of a reachable snapshot.

How it works: expiry removes snapshots and leaves the files that are still live. When every snapshot of the gap only
appended, and all that it appended is still live, then these files are the rows of the gap, no more and no less. The
oldest reachable snapshot is the next one to expire, so the range ends with a younger one if that can be proved. The
source of Iceberg can read a range of a snapshot's files, in the order of its manifests (`scan_all_files`). New files
come before older ones in that order as long as no manifest was rewritten, so the files of the gap are one range.

What it does not do: where a snapshot of the gap rewrote or removed rows, or the files are not one range, nothing is
proved and nothing is offered.

Source: org.apache.iceberg.spark.source.SparkMicroBatchStream and org.apache.iceberg.MicroBatches (1.12).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from pyiceberg.manifest import ManifestContent
from pyiceberg.table import Table

from sluice.sources.iceberg_positions import StreamOffset, TableStep
from sluice.sources.input_gap import InputGap
from sluice.tables.catalog import catalog_refusals

_TIME_TO_START = timedelta(minutes=15)
"""How much younger than the oldest reachable snapshot the end of a range is: until the stream has read it, the expiry
that made the gap may run again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """A live data file of a snapshot. added_by: the snapshot that added it."""

    added_by: int
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GapRange:
    """The files of a gap: `first` up to, and without, `end` in the order of the snapshot's files.

    reachable: how many snapshots that did not expire it reads as well, the one that has the files included.
    """

    snapshot_id: int
    first: int
    end: int
    rows: int
    reachable: int

    @property
    def start_offset(self) -> StreamOffset:
        """The offset at which a batch over these files starts."""
        return StreamOffset(snapshot_id=self.snapshot_id, position=self.first, scan_all_files=True)

    @property
    def end_offset(self) -> StreamOffset:
        """The offset at which it ends: behind the snapshot, because the range has at least the files that it added."""
        return StreamOffset(snapshot_id=self.snapshot_id, position=self.end, scan_all_files=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class NotProved:
    """Why the rows of a gap cannot be read exactly once. reason: half a sentence."""

    reason: str


def live_files(table: Table, snapshot_id: int) -> tuple[LiveFile, ...] | None:
    """The live data files of a snapshot in the order in which Iceberg's source counts them; none when it has deletes.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        return ()
    with catalog_refusals(f"read the manifests of {'.'.join(table.name())}"):
        manifests = snapshot.manifests(table.io)
        if any(one.content == ManifestContent.DELETES and _live_count(one) for one in manifests):
            return None
        return tuple(
            LiveFile(added_by=entry.snapshot_id or 0, rows=entry.data_file.record_count)
            for manifest in manifests
            if manifest.content == ManifestContent.DATA
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        )


def ends_of(reachable: Sequence[TableStep]) -> tuple[TableStep, ...]:
    """The snapshots with which a range over a gap may end, the best one first.

    Parameters
    ----------
    reachable: the snapshots of main, oldest first; at least one.
    """
    oldest = reachable[0]
    young_enough = (step for step in reachable if step.committed_at - oldest.committed_at >= _TIME_TO_START)
    best = next(young_enough, reachable[-1])
    return (best,) if best == oldest else (best, oldest)


def plan_gap_range(
    gap: InputGap, files: Sequence[LiveFile] | None, *, offset: StreamOffset, followed_by: Sequence[TableStep]
) -> GapRange | NotProved:
    """Prove which files are the rows of a gap and of the snapshots behind it, or say why that cannot be proved.

    Parameters
    ----------
    files: of the last snapshot, from `live_files`.
    offset: where the reader continues.
    followed_by: the reachable snapshots from the oldest one to one of `ends_of`.
    """
    end = followed_by[-1]
    if not gap.is_named:
        return NotProved(reason="the expired snapshots are not all known: earlier metadata of the table is gone")
    if gap.read is None:
        return NotProved(reason=f"it is unknown how many files snapshot {gap.position} has: earlier metadata is gone")
    if not gap.read.is_read_by(offset):
        return NotProved(reason=f"snapshot {gap.position} itself was read in part only")
    if files is None:
        return NotProved(reason=f"snapshot {end.snapshot_id} has delete files, which this read would miss")
    steps = (*gap.missing, *followed_by)
    if changed := next((step for step in steps if not step.is_append and not step.removes_old_rows), None):
        return NotProved(reason=f"snapshot {changed.snapshot_id} did not only append: it is `{changed.operation}`")
    if gone := _incomplete(steps, files):
        return NotProved(reason=f"files that snapshot {gone.snapshot_id} appended were rewritten or removed since")
    places = _places({step.snapshot_id for step in steps}, files)
    if places is None:
        return NotProved(reason="its files are not beside each other any more, because manifests were rewritten")
    rows = sum(files[number].rows for number in places)
    return GapRange(
        snapshot_id=end.snapshot_id, first=places.start, end=places.stop, rows=rows, reachable=len(followed_by)
    )


def unread_rows(table: Table, gap: InputGap, *, offset: StreamOffset, planned: StreamOffset | None) -> int | None:
    """The rows of the snapshot at the position that were not read; none when their number is not known any more.

    Parameters
    ----------
    planned: where the next batch ends, when it is planned.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    if gap.read is not None and gap.read.is_read_by(offset):
        return 0
    is_listed = table.snapshot_by_id(gap.position) is not None
    files = live_files(table, gap.position if is_listed else gap.resumes_at.snapshot_id)
    return unread_in(gap, files or (), offset=offset, planned=planned)


def unread_in(
    gap: InputGap, files: Sequence[LiveFile], *, offset: StreamOffset, planned: StreamOffset | None
) -> int | None:
    """The rows that `unread_rows` counts in the live files of that snapshot or of a later one, when all of it is there.

    A read of all files ends where it is planned to: behind that are older files, which were read before.
    """
    read, later = gap.read, {step.snapshot_id for step in (*gap.missing, gap.resumes_at)}
    if read is None:
        return None
    if offset.scan_all_files:
        own = [file for file in files if file.added_by not in later]
        end, wanted = None if planned is None else planned.position, (read.total_files, read.total_rows)
    else:
        own = [file for file in files if file.added_by == gap.position]
        end, wanted = len(own), (read.appended_files, read.appended_rows)
    if end is None or (len(own), sum(file.rows for file in own)) != wanted:
        return None
    return sum(file.rows for file in own[offset.position : end])


def _incomplete(steps: Sequence[TableStep], files: Sequence[LiveFile]) -> TableStep | None:
    """The first snapshot of which not every file and row is live."""
    counts, rows = Counter(file.added_by for file in files), Counter[int]()
    for file in files:
        rows[file.added_by] += file.rows
    return next(
        (
            step
            for step in steps
            if (counts[step.snapshot_id], rows[step.snapshot_id]) != (step.appended_files, step.appended_rows)
        ),
        None,
    )


def _places(added_by: set[int], files: Sequence[LiveFile]) -> range | None:
    """Where the files of some snapshots are; none when they are not beside each other."""
    places = [number for number, file in enumerate(files) if file.added_by in added_by]
    if not places:
        return range(0)
    found = range(places[0], places[-1] + 1)
    return found if len(found) == len(places) else None


def _live_count(manifest: object) -> int:
    added, existing = getattr(manifest, "added_files_count", 0), getattr(manifest, "existing_files_count", 0)
    return (added or 0) + (existing or 0)
