"""Looks into Parquet files as they lie there, whatever refers to them, and writes one again without some of its rows.

A file is read row group by row group, batch by batch, so that a large one needs little memory. What is written has
nothing of the old file but its rows: a dictionary of values, or what programs keep in its footer, may name who went.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pat
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    UnsupportedPyArrowTypeException,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import NestedField

from sluice.erasure.file_columns import (
    FIELD_ID,
    HeldColumn,
    TableColumns,
    UnreadableFileError,
    column_of,
    columns_of,
    has_positions_alone,
    held_columns,
    id_of,
    key_of,
    values_of,
)
from sluice.erasure.row_test import RowTest
from sluice.errors import LakehouseError

_ROWS_AT_ONCE = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedFile:
    """What a search found in a file. rows: in the whole file. meant: those that are to be erased. unwritable: why it
    cannot be written again without them, where it cannot."""

    rows: int
    meant: int
    unwritable: str = ""


def search(source: Any, test: RowTest, columns: TableColumns, *, path: str) -> SearchedFile:
    """Count the rows of a Parquet file that are meant.

    Parameters
    ----------
    source: opened for reading, with random access. path: where it lies.

    Raises
    ------
    UnreadableFileError: when it cannot be read as Parquet, or it is not sure which rows of it are meant.
    """
    file = _opened(source)
    if has_positions_alone(file.schema_arrow):
        return SearchedFile(rows=file.metadata.num_rows, meant=0)
    read = _batches(file, test, columns, path=path, only_tested=True)
    meant = sum(pc.sum(found).as_py() or 0 for _, found in read)
    return SearchedFile(rows=file.metadata.num_rows, meant=meant, unwritable=_why_unwritable(file))


def _opened(source: Any) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(source, coerce_int96_timestamp_unit="us")
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise UnreadableFileError(
            f"It is no whole Parquet file, or the object store does not give it: {type(error).__name__}."
        ) from error


def _batches(
    file: pq.ParquetFile, test: RowTest, columns: TableColumns, *, path: str, only_tested: bool
) -> Iterator[tuple[pa.RecordBatch, Any]]:
    """The rows of a file, each batch with whether its rows are meant."""
    tested = test.columns_in(columns.schema)
    held = held_columns(file.schema_arrow, tested, columns, path=path)
    needed = [file.schema_arrow.field(one.place).name for one in held.values() if one.place is not None]
    old_times = _old_times(file)
    try:
        read = file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=needed if only_tested else None)
        for batch in read:
            yield batch, test.meant(_tested(batch, tested, held, file.schema_arrow, old_times))
    except (pa.ArrowException, OSError, NotImplementedError, KeyError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise UnreadableFileError(f"Its rows cannot be compared: {type(error).__name__}.") from error


def _tested(
    batch: pa.RecordBatch,
    tested: Sequence[NestedField],
    held: Mapping[str, HeldColumn],
    found: pa.Schema,
    old_times: frozenset[str],
) -> pa.Table:
    columns = {}
    for one in tested:
        place = held[one.name].place
        name = None if place is None else found.field(place).name
        values = None if name is None else batch.column(name)
        columns[one.name] = column_of(
            held[one.name], values, one.field_type, batch.num_rows, is_old_time=name in old_times
        )
    if not columns:  # PyArrow knows the number of rows by a column
        columns[""] = pa.nulls(batch.num_rows)
    return pa.table(columns)


def _old_times(file: pq.ParquetFile) -> frozenset[str]:
    """The columns with times of 96 bits, which are moments whatever else is said of them."""
    every = (file.metadata.schema.column(number) for number in range(file.metadata.num_columns))
    return frozenset(one.path for one in every if one.physical_type == "INT96")


def write_without(
    io: FileIO, metadata: TableMetadata, old: DataFile, test: RowTest, *, location: str
) -> DataFile | None:
    """Write a data file again without the rows that are meant, read it, and compare: all others are there, in their
    order, with their values. It keeps its partition, its spec and its order.

    Parameters
    ----------
    location: of the new file.

    Returns
    -------
    The new file; none when every row is meant.

    Raises
    ------
    UnreadableFileError: when the file has what would change by writing it.
    LakehouseError: when the new file differs. It is deleted then.
    """
    columns = columns_of(metadata, values={key_of(old.file_path): values_of(metadata, old)})
    rows = _write(io, old, test, columns, location=location)
    if not rows:
        io.delete(location)
        return None
    with io.new_input(location).open() as again, io.new_input(old.file_path).open() as source:
        written = _opened(again)
        if written.metadata.num_rows != rows or not _is_same(
            written, _kept(_opened(source), test, columns, path=old.file_path)
        ):
            io.delete(location)
            raise LakehouseError(
                f"The file {_name_of(old)} without the erased rows does not hold the others. Nothing was committed.",
                next_step="Keep the file named here and report the fault; the table is as it was.",
            )
        return _entry_of(written, old, metadata, location=location, size=len(io.new_input(location)))


def _name_of(file: DataFile) -> str:
    """Without folders, in which values of partitions may stand."""
    return file.file_path.rpartition("/")[2]


def _write(io: FileIO, old: DataFile, test: RowTest, columns: TableColumns, *, location: str) -> int:
    """Write the rows that stay; how many they are."""
    rows = 0
    with io.new_input(old.file_path).open() as source:
        file = _opened(source)
        if why := _why_unwritable(file):
            raise UnreadableFileError(f"{_name_of(old)} has {why}.")
        with (
            io.new_output(location).create(overwrite=True) as sink,
            pq.ParquetWriter(
                cast("IO[Any]", sink),
                _plain_schema(file.schema_arrow),
                compression=_codec(file),
                store_decimal_as_integer=True,
            ) as writer,
        ):
            for batch in _kept(file, test, columns, path=old.file_path):
                writer.write_batch(batch)
                rows += batch.num_rows
    return rows


def _entry_of(written: pq.ParquetFile, old: DataFile, metadata: TableMetadata, *, location: str, size: int) -> DataFile:
    """The entry of a new file, with the bounds of what is in it."""
    own = pyarrow_to_schema(written.schema_arrow)
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=written.metadata,
        stats_columns=compute_statistics_plan(own, metadata.properties),
        parquet_column_mapping=parquet_path_to_id_mapping(own),
    )
    new = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=old.partition,
        file_size_in_bytes=size,
        sort_order_id=old.sort_order_id,
        spec_id=old.spec_id,
        equality_ids=None,
        key_metadata=None,
        **statistics.to_serialized_dict(),
    )
    new.spec_id = old.spec_id
    return new


def _kept(file: pq.ParquetFile, test: RowTest, columns: TableColumns, *, path: str) -> Iterator[pa.RecordBatch]:
    plain = _plain_schema(file.schema_arrow)
    for batch, meant in _batches(file, test, columns, path=path, only_tested=False):
        kept = batch.filter(pc.invert(meant))
        if kept.num_rows:
            yield kept.cast(plain)


def _plain_schema(found: pa.Schema) -> pa.Schema:
    """The columns without dictionaries of their values, and without what programs say of them beside their ids."""
    return pa.schema([_plain_field(one) for one in found])


def _plain_field(field: pa.Field[Any]) -> Any:
    number = id_of(field)
    metadata: Any = None if number is None else {FIELD_ID: str(number).encode()}
    return pa.field(field.name, _plain_type(field.type), nullable=field.nullable, metadata=metadata)


def _plain_type(kind: Any) -> Any:
    if pat.is_dictionary(kind):
        return _plain_type(kind.value_type)
    if pat.is_string_view(kind) or pat.is_binary_view(kind):
        return pa.string() if pat.is_string_view(kind) else pa.binary()
    if pat.is_struct(kind):
        return pa.struct([_plain_field(kind.field(number)) for number in range(kind.num_fields)])
    if pat.is_map(kind):
        return pa.map_(_plain_field(kind.key_field), _plain_field(kind.item_field))
    if pat.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    is_list = pat.is_list(kind) or pat.is_fixed_size_list(kind) or pat.is_list_view(kind)
    return pa.list_(_plain_field(kind.value_field)) if is_list else kind


def _why_unwritable(file: pq.ParquetFile) -> str:
    """What of a file would change by writing it again, where something would."""
    if _old_times(file):
        return "times of 96 bits, which Iceberg does not write"
    try:
        pyarrow_to_schema(_plain_schema(file.schema_arrow))
    except (ValueError, TypeError, NotImplementedError, UnsupportedPyArrowTypeException):
        return "columns without ids, or of types that Iceberg does not have: another program has written it"
    return ""


def _codec(file: pq.ParquetFile) -> Any:
    found = file.metadata.row_group(0).column(0).compression if file.metadata.num_row_groups else "ZSTD"
    return "NONE" if found == "UNCOMPRESSED" else found


def _is_same(written: pq.ParquetFile, kept: Iterator[pa.RecordBatch]) -> bool:
    """Whether a file holds these rows in this order; NaN equals NaN."""
    ours = _rows_of(written.iter_batches(batch_size=_ROWS_AT_ONCE))
    for one, other in zip_longest(ours, _rows_of(kept)):
        if one is None or other is None or one.schema != other.schema:
            return False
        if not all(_are_equal(a, b) for a, b in zip(one.columns, other.columns, strict=True)):
            return False
    return True


def _rows_of(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    """The rows in pieces of one length, whatever the batches are."""
    held: list[pa.RecordBatch] = []
    for batch in batches:
        held.append(batch)
        while sum(one.num_rows for one in held) >= _ROWS_AT_ONCE:
            every = pa.Table.from_batches(held)
            yield every.slice(0, _ROWS_AT_ONCE)
            held = every.slice(_ROWS_AT_ONCE).to_batches()
    if sum(one.num_rows for one in held):
        yield pa.Table.from_batches(held)


def _are_equal(one: pa.ChunkedArray[Any], other: pa.ChunkedArray[Any]) -> bool:
    return one.equals(other) or [repr(value) for value in one.to_pylist()] == [repr(v) for v in other.to_pylist()]
