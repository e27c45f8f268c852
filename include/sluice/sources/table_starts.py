"""Decides where a new checkpoint begins in an Iceberg table, so that the declared start is met exactly or refused;
observes what the next start of a stream without a checkpoint would read from its Iceberg inputs.

Purpose: Iceberg's source begins by itself with the oldest snapshot that the history lists, and reads the files that
this snapshot *added*. After an expiry everything older is missing, and nothing says so.

How it works: the history of a table is its snapshots from the newest one back. Appends and rewrites of files
(`replace`) keep every row that was there. So the whole table is

- the **history**, when its oldest snapshot added every file that it has, and nothing but appends and rewrites followed:
  the stream reads append by append, in their order and by its limits;
- otherwise a **scan** of one snapshot, all files that it has, and then what was appended after it: the oldest append
  after which only appends and rewrites followed.

Iceberg's source reads a scan right only if the snapshot is an append, has no delete files, and none of its manifests
still lists a removed file. A table without such a snapshot needs one (`NeedsAppend`).

Source: org.apache.iceberg.spark.source.SyncSparkMicroBatchPlanner and org.apache.iceberg.MicroBatches (1.12).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING

from pyiceberg.manifest import ManifestContent, ManifestFile
from pyiceberg.table import Table

from sluice.declarations.source_declarations import IcebergSource, SnapshotStart
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import LakehouseError, SluiceError
from sluice.settings import Settings
from sluice.sources.iceberg_positions import BEGINNING, StreamOffset, TableStep, history_of
from sluice.tables.catalog import catalog_refusals
from sluice.tables.manifest_reading import statement_without_delete_files
from sluice.tables.table_observation import RemovedRows, removed_from

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


class StartWay(StrEnum):
    """How a stream begins.

    HISTORY: append by append, from the first one. SCAN: with all files of one snapshot, then what was appended after
    it. AFTER: with what was appended after a time or a snapshot.
    """

    HISTORY = "history"
    SCAN = "scan"
    AFTER = "after"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFiles:
    """The files of a snapshot, as its manifest list counts them.

    files, rows: of its live data files. adds_all: whether the snapshot itself added every one of them.
    delete_files: the live ones. is_clean: whether no manifest lists a removed file, which a scan would read again.
    """

    files: int
    rows: int
    adds_all: bool = False
    delete_files: int = 0
    is_clean: bool = True

    @property
    def is_scannable(self) -> bool:
        """Whether Iceberg's source reads a scan of these files right."""
        return self.is_clean and self.delete_files == 0


FilesOf = Callable[[int], SnapshotFiles]
"""The files of a snapshot, by its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStart:
    """Where a stream begins in a table.

    first: the offset that the first batch starts with. scan_end: where the scan ends, which is the first batch.
    """

    way: StartWay
    first: StreamOffset
    scan_end: StreamOffset | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsAppend:
    """The start needs a snapshot that appends and is the newest one; an empty one will do.

    cleans: whether manifests of the newest snapshot have to be rewritten before, because they list removed files.
    """

    cleans: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreachable:
    """Why the declared start cannot be met. reason: a sentence. next_step: what can be done."""

    reason: str
    next_step: str


StartPlan = TableStart | NeedsAppend | Unreachable


def plan_whole_table(table: str, history: Sequence[TableStep], files_of: FilesOf) -> StartPlan:
    """Plan to read every row that a table holds, and then what is appended.

    Parameters
    ----------
    table: its name. history: its snapshots, newest first, at least one.
    """
    kept = tuple(takewhile(lambda step: step.keeps_rows, history))
    appends = [step for step in kept if step.is_append]
    if len(kept) == len(history) and history[-1].is_append:
        oldest = files_of(history[-1].snapshot_id)
        if oldest.adds_all and oldest.delete_files == 0:
            return TableStart(way=StartWay.HISTORY, first=_before(history[-1]))
    # What one append inherited the later ones have too, unless files were rewritten since: two looks are enough.
    for step in dict.fromkeys([*appends[-1:], *appends[:1]]):
        if (found := files_of(step.snapshot_id)).is_scannable:
            return _scan(step, found)
    newest = files_of(history[0].snapshot_id)
    if newest.delete_files:
        return Unreachable(
            reason=f"{table} has {newest.delete_files} delete files, which a read of its files alone would not apply",
            next_step="Rewrite them first, in Spark and while nothing writes them: "
            f"`{statement_without_delete_files(table)}`. Or declare `starting: latest`.",
        )
    return NeedsAppend(cleans=not newest.is_clean)


def plan_after_newest(history: Sequence[TableStep]) -> StartPlan:
    """Plan to read only what will be appended. history: as of `plan_whole_table`."""
    return _plan_after(history, 0)


def plan_after_snapshot(table: str, history: Sequence[TableStep], snapshot_id: int, *, declared: str) -> StartPlan:
    """Plan to read what was appended after a snapshot.

    Parameters
    ----------
    table, history: as of `plan_whole_table`.
    declared: the start in the words of the declaration.
    """
    place = next((number for number, step in enumerate(history) if step.snapshot_id == snapshot_id), None)
    if place is None:
        return Unreachable(
            reason=f"the history of {table} does not reach back to {declared}; its oldest snapshot is "
            f"{history[-1].snapshot_id}, of {history[-1].committed_at.isoformat()}",
            next_step="Declare a snapshot or a tag of that history, or `starting: table`.",
        )
    return _plan_after(history, place)


def plan_begun(table: str, history: Sequence[TableStep], first: StreamOffset) -> StartPlan:
    """Plan to begin where an earlier run has begun that planned no batch, because nothing had been appended.

    Parameters
    ----------
    table, history: as of `plan_whole_table`. first: the offset of that beginning.
    """
    if any(step.snapshot_id == first.snapshot_id for step in history):
        return TableStart(way=StartWay.AFTER, first=first)
    return Unreachable(
        reason=f"it began after snapshot {first.snapshot_id} of {table}, which was expired before anything was read",
        next_step="Declare `starting: table`, or begin again after the newest snapshot: `sluice stream reset`.",
    )


def plan_since(
    table: str, history: Sequence[TableStep], files_of: FilesOf, instant: datetime, *, now: datetime
) -> StartPlan:
    """Plan to read what was appended at a time or later. Parameters as of `plan_whole_table`."""
    if instant > now:
        return Unreachable(
            reason=f"{instant.isoformat()} lies ahead", next_step="Declare a time that has come, or `starting: latest`."
        )
    since = tuple(takewhile(lambda step: not step.is_before(instant), history))
    if not since:
        return _plan_after(history, 0)
    if len(since) < len(history) or files_of(history[-1].snapshot_id).adds_all:
        return TableStart(way=StartWay.AFTER, first=_before(since[-1]))
    oldest = history[-1]
    return Unreachable(
        reason=f"the history of {table} does not reach back to {instant.isoformat()}; its oldest snapshot is "
        f"{oldest.snapshot_id}, of {oldest.committed_at.isoformat()}, and what was appended before was expired from it",
        next_step="Declare a later time, or `starting: table` for every row that the table holds.",
    )


def _plan_after(history: Sequence[TableStep], place: int) -> StartPlan:
    """The start behind the snapshot at a place of the history."""
    if place > 0:
        return TableStart(way=StartWay.AFTER, first=_before(history[place - 1]))
    newest = history[0]
    if not newest.keeps_rows:  # the source would look at it again, and stop at its operation
        return NeedsAppend(cleans=False)
    behind = StreamOffset(snapshot_id=newest.snapshot_id, position=newest.appended_files, scan_all_files=False)
    return TableStart(way=StartWay.AFTER, first=behind)


def _before(step: TableStep) -> StreamOffset:
    return StreamOffset(snapshot_id=step.snapshot_id, position=0, scan_all_files=False)


def _scan(step: TableStep, found: SnapshotFiles) -> TableStart:
    return TableStart(
        way=StartWay.SCAN,
        first=StreamOffset(snapshot_id=step.snapshot_id, position=0, scan_all_files=True),
        scan_end=StreamOffset(snapshot_id=step.snapshot_id, position=found.files, scan_all_files=True),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StartAmount:
    """What a start reads of what is there already. rows, data_bytes: none when the table's summaries do not say.

    in_one_batch: whether the first batch has all of it, whatever the limits of the input are.
    """

    rows: int | None
    data_bytes: int | None
    in_one_batch: bool = False


def amount_of(start: TableStart | NeedsAppend, history: Sequence[TableStep], *, is_whole: bool) -> StartAmount:
    """What a start reads of the table as it is now.

    Parameters
    ----------
    history: as of `plan_whole_table`. is_whole: whether the whole table is to be read.
    """
    if is_whole:
        is_scan = not isinstance(start, TableStart) or start.way is StartWay.SCAN
        newest = history[0]
        return StartAmount(rows=newest.total_rows, data_bytes=newest.total_bytes, in_one_batch=is_scan)
    if not isinstance(start, TableStart) or start.first.position > 0:
        return StartAmount(rows=0, data_bytes=0)
    place = next(number for number, step in enumerate(history) if step.snapshot_id == start.first.snapshot_id)
    read = history[: place + 1]
    return StartAmount(
        rows=sum(step.appended_rows for step in read), data_bytes=sum(step.appended_bytes for step in read)
    )


def observe_files(table: Table, snapshot_id: int) -> SnapshotFiles:
    """The files of a snapshot, as its manifest list counts them.

    Raises
    ------
    LakehouseError: when the snapshot is not there any more, when its manifest list cannot be read, or lacks the counts.
    """
    name = ".".join(table.name())
    snapshot = table.snapshot_by_id(snapshot_id)
    if snapshot is None:
        raise LakehouseError(f"Snapshot {snapshot_id} of {name} is not there any more.")
    with catalog_refusals(f"read the manifest list of snapshot {snapshot_id} of {name}"):
        manifests = snapshot.manifests(table.io)
    data = [one for one in manifests if one.content == ManifestContent.DATA]
    live = [one for one in data if _live(one, name)]
    return SnapshotFiles(
        files=sum(_live(one, name) for one in live),
        rows=sum((one.added_rows_count or 0) + (one.existing_rows_count or 0) for one in live),
        adds_all=all(one.added_snapshot_id == snapshot_id and not one.existing_files_count for one in live),
        delete_files=sum(_live(one, name) for one in manifests if one.content == ManifestContent.DELETES),
        is_clean=not any(one.deleted_files_count for one in data),
    )


def _live(manifest: ManifestFile, table: str) -> int:
    """The live files that a manifest lists."""
    if manifest.added_files_count is None or manifest.existing_files_count is None:
        raise LakehouseError(
            f"A manifest of {table} does not say how many files it lists: {manifest.manifest_path}.",
            next_step=f"Rewrite the manifests: `CALL system.rewrite_manifests('{table}')`.",
        )
    return manifest.added_files_count + manifest.existing_files_count


def plan_declared_start(
    table: Table,
    source: IcebergSource,
    *,
    now: datetime,
    begun: StreamOffset | None = None,
    history: Sequence[TableStep] | None = None,
) -> StartPlan | None:
    """Where a new checkpoint begins in a table; none when the table has no snapshot yet, and all that comes is read.

    Parameters
    ----------
    table: freshly loaded.
    begun: where an earlier run began that planned no batch. A whole table is begun again: nothing of it was read.
    history: as far as may be read, newest first; unset: all of it.

    Raises
    ------
    LakehouseError: when the files of a snapshot cannot be read.
    """
    name, history = source.table, tuple(history_of(table)) if history is None else history
    files_of = partial(observe_files, table)
    if history and begun is not None and source.starting != "table" and not begun.scan_all_files:
        was_empty = begun.snapshot_id == BEGINNING  # so that all of it came since
        return plan_whole_table(name, history, files_of) if was_empty else plan_begun(name, history, begun)
    match source.starting:
        case SnapshotStart() as wanted:
            return _after(table, name, wanted)
        case "table":
            return plan_whole_table(name, history, files_of) if history else None
        case "latest":
            return plan_after_newest(history) if history else None
        case instant:
            return plan_since(name, history, files_of, instant, now=now) if history else None


def _after(table: Table, name: str, wanted: SnapshotStart) -> StartPlan:
    declared = f"tag {wanted.tag}" if wanted.tag is not None else f"snapshot {wanted.snapshot_id}"
    reference = table.refs().get(wanted.tag) if wanted.tag is not None else None
    snapshot_id = reference.snapshot_id if reference is not None else wanted.snapshot_id
    history = tuple(history_of(table))
    if snapshot_id is None or not history:
        return Unreachable(
            reason=f"{name} has no {declared}",
            next_step="Declare a snapshot or a tag that it has, or `starting: table`.",
        )
    return plan_after_snapshot(name, history, snapshot_id, declared=declared)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStart:
    """What an input would read. amount: none when it is unknown. refusal, problem: why it would not begin, or why that
    is unknown; empty otherwise. missing: the rows that the table has removed as too old; unset for none."""

    amount: StartAmount | None = None
    refusal: str = ""
    problem: str = ""
    missing: RemovedRows | None = None


def observe_starts(declaration: StreamDeclaration, settings: Settings, *, now: datetime) -> Mapping[str, ObservedStart]:
    """Observe the start of every Iceberg input, by the name of the input. Nothing is changed, no error is raised."""
    sources = {
        name: declared.declared_source.source
        for name, declared in declaration.inputs.items()
        if declared.is_stream and isinstance(declared.declared_source.source, IcebergSource)
    }
    if not sources:
        return {}
    from sluice.tables.catalog import open_catalog  # pyiceberg is slow to import

    try:
        catalog = open_catalog(settings)
        return {
            name: _observe(catalog, source, now)
            for name, source in sources.items()
            if isinstance(source, IcebergSource)
        }
    except SluiceError as error:
        return dict.fromkeys(sources, ObservedStart(problem=error.message.rstrip(".")))


def _observe(catalog: Catalog, source: IcebergSource, now: datetime) -> ObservedStart:
    from sluice.sources.iceberg_positions import history_of
    from sluice.sources.table_starts import plan_declared_start  # as above
    from sluice.tables.declared_tables import load_table

    table = load_table(catalog, source.table)
    found = plan_declared_start(table, source, now=now) if table is not None else None
    if table is None or found is None:
        return ObservedStart(amount=StartAmount(rows=0, data_bytes=0))
    if isinstance(found, Unreachable):
        return ObservedStart(refusal=found.reason)
    return ObservedStart(
        amount=amount_of(found, tuple(history_of(table)), is_whole=source.starting == "table"),
        missing=removed_from(table),
    )
