"""Looks into Parquet files as they lie there, whatever refers to them, and writes one again without some of its rows.

A file is read row group by row group, batch by batch, so that a large one needs little memory. Columns are found by
their ids, as Iceberg does: one may have had another name or a narrower type when the file was written, or be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import IO, Any, cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import FileIO
from pyiceberg.io.pyarrow import (
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
    pyarrow_to_schema,
)
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata

from sluice.erasure.condition_text import arrow_type
from sluice.erasure.row_test import RowTest
from sluice.errors import LakehouseError

_ROWS_AT_ONCE = 32_768
_FIELD_ID = b"PARQUET:field_id"


class UnreadableFileError(LakehouseError):
    """A file is no Parquet, or Parquet that cannot be compared with the condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchedFile:
    """What a search found in a file. rows: in the whole file. meant: those that are to be erased."""

    rows: int
    meant: int


def search(source: Any, test: RowTest, schema: Schema) -> SearchedFile:
    """Count the rows of a Parquet file that are meant.

    Parameters
    ----------
    source: opened for reading, with random access. schema: the newest of the table.

    Raises
    ------
    UnreadableFileError: when it cannot be read as Parquet, or a column of it has an incomparable type.
    """
    file = _opened(source)
    meant = sum(pc.sum(found).as_py() or 0 for _, found in _batches(file, test, schema, only_tested=True))
    return SearchedFile(rows=file.metadata.num_rows, meant=meant)


def _opened(source: Any) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(source)
    except (pa.ArrowException, OSError, ValueError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise UnreadableFileError(f"It is no whole Parquet file: {type(error).__name__}.") from error


def _batches(
    file: pq.ParquetFile, test: RowTest, schema: Schema, *, only_tested: bool
) -> Iterator[tuple[pa.RecordBatch, Any]]:
    """The rows of a file, each batch with whether its rows are meant."""
    places = _places(file.schema_arrow, test, schema)
    needed = [file.schema_arrow.field(place).name for place in places.values() if place is not None]
    try:
        read = file.iter_batches(batch_size=_ROWS_AT_ONCE, columns=needed if only_tested else None)
        for batch in read:
            yield batch, test.meant(_tested(batch, test, schema, places, file.schema_arrow))
    except (pa.ArrowException, OSError, NotImplementedError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise UnreadableFileError(f"Its rows cannot be compared: {type(error).__name__}.") from error


def _places(found: pa.Schema, test: RowTest, schema: Schema) -> Mapping[str, int | None]:
    """Where the tested columns are in a file, by their name in the table. A file without ids, as other programs write
    it, is read by the names."""
    ids = {_id_of(found.field(place)): place for place in range(len(found))}
    if set(ids) == {None}:
        names = {found.field(place).name: place for place in range(len(found))}
        return {one.name: names.get(one.name) for one in test.columns_in(schema)}
    return {one.name: ids.get(one.field_id) for one in test.columns_in(schema)}


def _id_of(field: pa.Field[Any]) -> int | None:
    found = (field.metadata or {}).get(_FIELD_ID)
    return None if found is None else int(found)


def _tested(
    batch: pa.RecordBatch, test: RowTest, schema: Schema, places: Mapping[str, int | None], found: pa.Schema
) -> pa.Table:
    columns = {}
    for one in test.columns_in(schema):
        place, kind = places[one.name], arrow_type(one.field_type)
        if place is None:
            columns[one.name] = pa.nulls(batch.num_rows).cast(kind)
        else:
            held = batch.column(found.field(place).name)
            held = held.storage if isinstance(held, pa.ExtensionArray) else held
            columns[one.name] = held.cast(kind, safe=not pa.types.is_timestamp(held.type))
    if not columns:  # PyArrow knows the number of rows by a column
        columns[""] = pa.nulls(batch.num_rows)
    return pa.table(columns)


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
    schema = metadata.schema()
    rows = _write(io, old, test, schema, location=location)
    if not rows:
        io.delete(location)
        return None
    with io.new_input(location).open() as again, io.new_input(old.file_path).open() as source:
        written = _opened(again)
        if written.metadata.num_rows != rows or not _is_same(written, _kept(_opened(source), test, schema)):
            io.delete(location)
            raise LakehouseError(
                f"A file of {old.file_path} without the erased rows does not hold the others. Nothing was committed.",
                next_step="Keep the file named here and report the fault; the table is as it was.",
            )
        return _entry_of(written, old, metadata, location=location, size=len(io.new_input(location)))


def _write(io: FileIO, old: DataFile, test: RowTest, schema: Schema, *, location: str) -> int:
    """Write the rows that stay; how many they are."""
    rows = 0
    with io.new_input(old.file_path).open() as source:
        file = _opened(source)
        _require_writable(file, old)
        with (
            io.new_output(location).create(overwrite=True) as sink,
            pq.ParquetWriter(
                cast("IO[Any]", sink),
                file.schema_arrow,
                compression=_codec(file),
                store_decimal_as_integer=True,
            ) as writer,
        ):
            for batch in _kept(file, test, schema):
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


def _kept(file: pq.ParquetFile, test: RowTest, schema: Schema) -> Iterator[pa.RecordBatch]:
    for batch, meant in _batches(file, test, schema, only_tested=False):
        kept = batch.filter(pc.invert(meant))
        if kept.num_rows:
            yield kept


def _require_writable(file: pq.ParquetFile, old: DataFile) -> None:
    columns = (file.metadata.schema.column(number) for number in range(file.metadata.num_columns))
    if any(one.physical_type == "INT96" for one in columns):
        raise UnreadableFileError(f"{old.file_path} has times of 96 bits, which Iceberg does not write.")
    if any(_id_of(one) is None for one in file.schema_arrow):
        raise UnreadableFileError(f"{old.file_path} has columns without ids: another program has written it.")


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
