"""What a table has that PyArrow cannot keep when it writes data files of the table again, from its metadata alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.sorting import NullOrder, SortDirection, SortField
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

_SORTED_ALIKE: tuple[type[IcebergType], ...] = (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)
"""The types that PyArrow sorts as Iceberg's specification has it. It puts NaN beside nulls, and Iceberg behind all
numbers; a uuid it does not sort."""

SortKey = tuple[str, Literal["ascending", "descending"], Literal["at_start", "at_end"]]
"""A column, its direction, and where its nulls are, as PyArrow takes them."""


def sort_keys(metadata: TableMetadata) -> tuple[tuple[SortKey, ...], bool]:
    """The table's sort order as far as PyArrow can sort by it, and whether that is all of it.

    It ends before the first field with a transform, inside a struct, or of a type that PyArrow sorts differently.
    """
    order = metadata.sort_order_by_id(metadata.default_sort_order_id)
    fields = order.fields if order is not None else []
    keys = []
    for field in fields:
        if (key := _key(metadata, field)) is None:
            break
        keys.append(key)
    return tuple(keys), len(keys) == len(fields)


def _key(metadata: TableMetadata, field: SortField) -> SortKey | None:
    schema = metadata.schema()
    column = next((one for one in schema.fields if one.field_id == field.source_id), None)
    if column is None or not isinstance(field.transform, IdentityTransform):
        return None
    if not isinstance(column.field_type, _SORTED_ALIKE):
        return None
    return (
        column.name,
        "ascending" if field.direction == SortDirection.ASC else "descending",
        "at_start" if field.null_order == NullOrder.NULLS_FIRST else "at_end",
    )


def rewrite_limits(metadata: TableMetadata) -> Iterator[str]:
    """Why files of a table cannot be written again without Spark; nothing when they can. For a sentence with `it has`.

    What depends on its files, such as equality deletes, is seen where its manifests are read.
    """
    properties = metadata.properties
    if metadata.format_version != 2:
        yield f"format version {metadata.format_version}"
    if not sort_keys(metadata)[1]:
        yield "a sort order by what PyArrow does not sort alike"
    yield from _type_limits(metadata)
    if (written := properties.get("write.format.default", "parquet")).lower() != "parquet":
        yield f"files of the format {written}"
    for prefix, what in _UNWRITTEN.items():
        if any(name.startswith(prefix) and value.lower() != "false" for name, value in properties.items()):
            yield what


def _type_limits(metadata: TableMetadata) -> Iterator[str]:
    """NaN equals no partition, not even itself, so that pyiceberg finds neither its rows nor the delete files of it."""
    types = [part.field_type for part in metadata.spec().partition_type(metadata.schema()).fields]
    if any(isinstance(one, (FloatType, DoubleType)) for one in types):
        yield "partitions by a float"


_UNWRITTEN = {
    "write.parquet.bloom-filter-enabled.column.": "bloom filters",
    "write.parquet.row-group-size-bytes": "a size of its row groups",
    "encryption.": "encrypted files",
}
"""Table properties, by how they begin, that pyiceberg's writer does not follow."""
