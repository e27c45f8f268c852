"""Prepares staged files for their target: checks that they exist, fits them to its metadata, and merges small ones.

Staged files lie in the target's folder and are not in the target yet, so an orphan removal on the target deletes them
once they are old enough for it. The committer looks for whatever a commit adds; here the batches of files that are gone
are named, before those files are read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import ArrowScan, _dataframe_to_data_files
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile, FileFormat
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import FileScanTask, Table, TableProperties
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.typedef import Record
from pyiceberg.types import NestedField, PrimitiveType
from pyiceberg.utils.bin_packing import ListPacker

from sluice.errors import StagedFilesMissingError, UnpublishableError
from sluice.publication.data_files import Writer, absent_files, folder_of, is_fresh, named
from sluice.publication.staged_batch import StagedBatch
from sluice.publication.staging_table import staged_files
from sluice.tables.catalog import catalog_refusals
from sluice.tables.change_plan import is_wider
from sluice.tables.inspection import sort_keys
from sluice.tables.whole_files import WholeFiles

_FORMAT_VERSION: Literal[2] = 2


def fit_files(files: Iterable[DataFile], *, staging: Table, target: Table) -> tuple[DataFile, ...]:
    """Translate staged files into entries of the target, with the target's ids of their spec and sort order.

    The ids of specs and sort orders belong to one table, so they are looked up by their fields. When the target has
    evolved since a batch was staged, the batch is published under the older spec.

    Raises
    ------
    UnpublishableError: when the target never had the partition spec of a file.
    """
    specs: dict[int, int] = {}
    fitted = []
    for file in files:
        if file.spec_id not in specs:
            specs[file.spec_id] = _spec_in(target, staging, file.spec_id)
        values = {field.name: file[place] for place, field in enumerate(DATA_FILE_TYPE[_FORMAT_VERSION].fields)}
        values["sort_order_id"] = _sort_order_in(target.metadata, staging.metadata, file.sort_order_id)
        copy = DataFile.from_args(_table_format_version=_FORMAT_VERSION, **values)
        copy.spec_id = specs[file.spec_id]
        fitted.append(copy)
    return tuple(fitted)


def refuse_unfit_schema(batches: Sequence[StagedBatch], *, staging: Table, target: Table) -> None:
    """Refuse batches whose rows do not fit the target's schema: a column was dropped, narrowed or made required.

    Raises
    ------
    UnpublishableError: with the batch and the columns.
    """
    for schema_id, batch in {_schema_id(staging, batch): batch for batch in batches}.items():
        refuse_unfit_rows(staging.schemas()[schema_id], target=target, what=f"Batch {batch.summary.key}")


def refuse_unfit_rows(staged: Schema, *, target: Table, what: str) -> None:
    """Refuse rows of a schema that do not fit the target's.

    Parameters
    ----------
    what: the rows, for the message.

    Raises
    ------
    UnpublishableError: with the columns.
    """
    wanted = target.schema()
    if staged == wanted or not (problems := list(_schema_problems(staged, wanted))):
        return
    raise UnpublishableError(
        f"{what} was staged under another schema of {'.'.join(target.name())}: {'; '.join(problems)}.",
        next_step="Restore the table's schema to its declaration: a column must not be dropped, narrowed or made "
        "required.",
    )


def _schema_id(staging: Table, batch: StagedBatch) -> int:
    snapshot = staging.snapshot_by_id(batch.snapshot_id)
    if snapshot is None or snapshot.schema_id is None:
        return staging.metadata.current_schema_id
    return snapshot.schema_id


def _schema_problems(staged: Schema, wanted: Schema) -> Iterable[str]:
    before, after = index_by_id(staged), index_by_id(wanted)
    for field_id, field in before.items():
        now = after.get(field_id)
        if now is None:
            yield f"the column {staged.find_column_name(field_id)} is gone"
        elif not _holds_all_values_of(now, field):
            yield f"the column {staged.find_column_name(field_id)} was {field.field_type} and is {now.field_type}"
    for field_id, field in after.items():
        if field.required and (field_id not in before or before[field_id].optional):
            yield f"the column {wanted.find_column_name(field_id)} is required"


def _holds_all_values_of(now: NestedField, before: NestedField) -> bool:
    match now.field_type, before.field_type:
        case PrimitiveType() as after, PrimitiveType() as earlier:
            return after == earlier or is_wider(after, than=earlier)
        case after, earlier:  # nested fields have their own ids and are compared by those
            return type(after) is type(earlier)


def _spec_in(target: Table, staging: Table, staged_spec_id: int) -> int:
    staged = staging.specs()[staged_spec_id]
    default = target.spec()
    for spec in (default, *target.specs().values()):
        if spec.fields == staged.fields:
            return spec.spec_id
    raise UnpublishableError(
        f"Files of {'.'.join(staging.name())} were staged under the partition spec {staged}, which "
        f"{'.'.join(target.name())} never had.",
        next_step="Only its own stream may write into a staging table: find what changed it.",
    )


def _sort_order_in(target: TableMetadata, staging: TableMetadata, staged_order_id: int | None) -> int | None:
    staged = staging.sort_order_by_id(staged_order_id) if staged_order_id is not None else None
    if staged is None:
        return None
    return next((order.order_id for order in target.sort_orders if order.fields == staged.fields), None)


MOST_BYTES_AT_A_TIME = 64 * 1024 * 1024
"""How many bytes of compressed files are merged into one: their rows in memory take five to ten times as many bytes."""

SMALL_PART_OF_TARGET = 0.75
"""A file below this share of the table's target size is small; compaction uses the same share."""

_ANY_SIZE = str(1 << 40)

_SORT_ORDER_PLACE = next(
    place for place, field in enumerate(DATA_FILE_TYPE[_FORMAT_VERSION].fields) if field.name == "sort_order_id"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MergedFiles:
    """The files to publish, and the paths of the files whose rows were merged into larger ones."""

    files: tuple[DataFile, ...]
    superseded: tuple[str, ...] = ()


def merge_small_files(target: Table, files: Sequence[DataFile], *, writer: Writer) -> MergedFiles:
    """Merge the small files of each partition into larger ones, so that the target gets no small files.

    Only files of the table's default spec are merged. The new files have the table's sort order.

    Parameters
    ----------
    files: from `fit_files` for this target. writer: who merges.

    Raises
    ------
    LakehouseError: when a file cannot be read or written.
    """
    metadata = target.metadata
    target_bytes = int(
        metadata.properties.get(
            TableProperties.WRITE_TARGET_FILE_SIZE_BYTES, TableProperties.WRITE_TARGET_FILE_SIZE_BYTES_DEFAULT
        )
    )
    together = [group for group in _groups(files, metadata.default_spec_id, target_bytes) if len(group) > 1]
    merged: list[DataFile] = []
    with catalog_refusals(f"merge staged files for {'.'.join(target.name())}"):
        for group in together:
            merged.extend(merge_files(target, [FileScanTask(file) for file in group], writer=writer)[1])
    gone = {file.file_path for group in together for file in group}
    kept = [file for file in files if file.file_path not in gone]
    return MergedFiles(files=(*kept, *merged), superseded=tuple(sorted(gone)))


def _groups(files: Iterable[DataFile], default_spec_id: int, target_bytes: int) -> Iterator[list[DataFile]]:
    small: dict[Record, list[DataFile]] = defaultdict(list)
    for file in files:
        is_small = file.file_size_in_bytes < target_bytes * SMALL_PART_OF_TARGET
        if file.spec_id == default_spec_id and is_small and file.file_format == FileFormat.PARQUET:
            small[file.partition].append(file)
    packer: ListPacker[DataFile] = ListPacker(
        target_weight=min(target_bytes, MOST_BYTES_AT_A_TIME), lookback=1, largest_bin_first=False
    )
    for group in small.values():
        yield from packer.pack(group, lambda file: file.file_size_in_bytes)


def merge_files(
    target: Table, tasks: Sequence[FileScanTask], *, writer: Writer
) -> tuple[pa.Table, tuple[DataFile, ...]]:
    """Write the rows of files of one partition into one new file, in the table's sort order.

    Parameters
    ----------
    tasks: the files, of the table's default spec, each with the position deletes that apply to it.
    writer: who merges; the new file lies in its folder.

    Returns
    -------
    The rows, and the new file; more than one when the rows belong to several partitions, none when there are no rows.
    """
    metadata = target.metadata
    keys, is_whole = sort_keys(metadata)
    rows = read_files(target, tasks)
    if keys:
        every: list[Any] = list(keys)  # the stubs of PyArrow do not know the place of nulls
        rows = rows.take(pc.sort_indices(rows, options=pc.SortOptions(sort_keys=every)))
    # pyiceberg would split the group by the size of the rows in memory; one file is wanted.
    places = {
        TableProperties.WRITE_TARGET_FILE_SIZE_BYTES: _ANY_SIZE,
        TableProperties.WRITE_DATA_PATH: folder_of(metadata, writer),
    }
    uncut = metadata.model_copy(update={"properties": metadata.properties | places})
    written = tuple(write_files(uncut, target.io, rows)) if rows.num_rows else ()
    for file in written if keys and is_whole else ():
        file[_SORT_ORDER_PLACE] = metadata.default_sort_order_id
    return rows, written


def write_files(metadata: TableMetadata, io: FileIO, rows: pa.Table) -> Iterator[DataFile]:
    """Write rows of a table into new data files of its default spec."""
    for written in _dataframe_to_data_files(metadata, rows, io):
        written.spec_id = metadata.default_spec_id
        yield written


def read_files(target: Table, tasks: Sequence[FileScanTask]) -> pa.Table:
    """The rows of some files of a table, by its newest schema, without those that position deletes hide."""
    io = WholeFiles(target.io, (task.file for task in tasks))
    return ArrowScan(target.metadata, io, target.metadata.schema(), AlwaysTrue()).to_table(tasks)


def old_batches(batches: Sequence[StagedBatch], *, now: datetime) -> tuple[StagedBatch, ...]:
    """The batches that were staged long enough ago for an orphan removal to have deleted their files."""
    return tuple(batch for batch in batches if not is_fresh(batch.staged_at, now=now))


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingFiles:
    """A staged batch of an output, and those of its files that are gone."""

    batch: StagedBatch
    files: tuple[DataFile, ...]


def find_missing_files(staging: Table, batches: Sequence[StagedBatch]) -> tuple[MissingFiles, ...]:
    """The batches whose files are gone, in order. The store is asked for every file, with one request for each.

    Parameters
    ----------
    staging: the loaded staging table. batches: from `staged_batches` of it.

    Raises
    ------
    LakehouseError: when the object store does not answer.
    """
    if not batches:
        return ()
    files = staged_files(staging, batches)
    staged = [file for batch in batches for file in files[batch.snapshot_id]]
    gone = {file.file_path for file in absent_files(staging.io, staged, table=".".join(staging.name()))}
    missing = (
        MissingFiles(batch=batch, files=tuple(file for file in files[batch.snapshot_id] if file.file_path in gone))
        for batch in batches
    )
    return tuple(one for one in missing if one.files)


def refuse_missing_files(missing: Sequence[MissingFiles]) -> None:
    """Refuse to publish batches whose files are gone.

    Raises
    ------
    StagedFilesMissingError: when there are any, with the batches, the files and the number of their rows.
    """
    if not missing:
        return
    gone = [file for one in missing for file in one.files]
    first = missing[0].batch.summary
    keys = ", ".join(f"{one.batch.summary.key} (output {one.batch.summary.output})" for one in missing)
    raise StagedFilesMissingError(
        f"{sum(file.record_count for file in gone)} staged rows cannot be published: {len(gone)} files of the batches "
        f"{keys} are gone: {named(gone)}. Later batches wait behind the first of them. An orphan removal on the target "
        "deletes staged files that are older than its limit.",
        next_step=f"Bring the files back, by `sluice table restore-orphans {first.mode.table}` or from the versions or "
        "a backup of the object store, and start the stream again; or "
        f"give up the rows of the whole batch: `sluice batch reject {first.key.stream} {first.key.batch}`.",
    )
