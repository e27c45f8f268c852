"""Turns a table's declaration into pyiceberg's schema, partition spec, sort order and properties."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import count

from pyiceberg import types as iceberg
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.transforms import IdentityTransform, Transform, parse_transform

from sluice.declarations.column_types import (
    ColumnType,
    DecimalType,
    FixedType,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
)
from sluice.declarations.table_declaration import PartitionField as DeclaredPartitionField
from sluice.declarations.table_declaration import SortField as DeclaredSortField
from sluice.declarations.table_declaration import TableDeclaration
from sluice.stored_keys import DECLARED_PROPERTIES

FORMAT_VERSION = "2"
"""All supported engines read and write it; pyiceberg does not write manifests of version 3 yet."""

_PRIMITIVES: Mapping[str, iceberg.PrimitiveType] = {
    "boolean": iceberg.BooleanType(),
    "int": iceberg.IntegerType(),
    "long": iceberg.LongType(),
    "float": iceberg.FloatType(),
    "double": iceberg.DoubleType(),
    "date": iceberg.DateType(),
    "timestamp": iceberg.TimestampType(),
    "timestamptz": iceberg.TimestamptzType(),
    "string": iceberg.StringType(),
    "uuid": iceberg.UUIDType(),
    "binary": iceberg.BinaryType(),
}


def schema_of(declaration: TableDeclaration) -> Schema:
    """The schema of a new table. Field ids are provisional: the catalog assigns the final ones."""
    ids = count(1)
    fields = [
        iceberg.NestedField(
            field_id=next(ids),
            name=column.name,
            field_type=iceberg_type(column.column_type, ids),
            required=column.required,
            doc=column.doc or None,
        )
        for column in declaration.columns
    ]
    return Schema(*fields)


def iceberg_type(column_type: ColumnType, ids: Iterator[int]) -> iceberg.IcebergType:
    """The pyiceberg type of a declared one.

    Parameters
    ----------
    column_type: the declared type.
    ids: supplies the ids of nested fields.
    """
    match column_type:
        case PrimitiveType(name):
            return _PRIMITIVES[name]
        case DecimalType(precision=precision, scale=scale):
            return iceberg.DecimalType(precision, scale)
        case FixedType(length):
            return iceberg.FixedType(length)
        case ListType(element):
            return iceberg.ListType(
                element_id=next(ids), element_type=iceberg_type(element, ids), element_required=False
            )
        case MapType(key=key, value=value):
            return iceberg.MapType(
                key_id=next(ids),
                key_type=iceberg_type(key, ids),
                value_id=next(ids),
                value_type=iceberg_type(value, ids),
                value_required=False,
            )
        case StructType(fields):
            return iceberg.StructType(
                *(
                    iceberg.NestedField(field_id=next(ids), name=name, field_type=iceberg_type(inner, ids))
                    for name, inner in fields
                )
            )


def partition_spec_of(declaration: TableDeclaration, schema: Schema) -> PartitionSpec:
    """The partition spec of a new table with this schema."""
    return PartitionSpec(
        *(
            PartitionField(
                source_id=schema.find_field(field.column).field_id,
                field_id=PARTITION_FIELD_ID_START + index,
                transform=transform_of(field),
                name=partition_name(field, declaration),
            )
            for index, field in enumerate(declaration.partitioning)
        )
    )


def transform_of(field: DeclaredPartitionField) -> Transform[object, object]:
    """The transform of a partition field."""
    return parse_transform(field.transform if field.width is None else f"{field.transform}[{field.width}]")


def partition_name(field: DeclaredPartitionField, declaration: TableDeclaration) -> str:
    """The name of a partition field as Spark and pyiceberg choose it, changed where a column has the same name."""
    suffix = {"identity": "", "bucket": f"_bucket_{field.width}", "truncate": f"_trunc_{field.width}"}
    name = f"{field.column}{suffix.get(field.transform, f'_{field.transform}')}"
    is_taken = field.transform != "identity" and declaration.column(name) is not None
    return f"{name}_partition" if is_taken else name


def sort_order_of(declaration: TableDeclaration, schema: Schema) -> SortOrder:
    """The sort order of a table with this schema."""
    if not declaration.sort_order:
        return UNSORTED_SORT_ORDER
    fields = (
        SortField(
            source_id=schema.find_field(field.column).field_id,
            transform=IdentityTransform(),
            direction=SortDirection.ASC if field.direction == "asc" else SortDirection.DESC,
            null_order=null_order_of(field),
        )
        for field in declaration.sort_order
    )
    return SortOrder(*fields, order_id=1)


def null_order_of(field: DeclaredSortField) -> NullOrder:
    """The declared order of nulls; by default, as in the Iceberg specification, first when ascending, else last."""
    nulls = field.nulls or ("first" if field.direction == "asc" else "last")
    return NullOrder.NULLS_FIRST if nulls == "first" else NullOrder.NULLS_LAST


def properties_of(declaration: TableDeclaration) -> dict[str, str]:
    """The table properties of a declaration: Sluice's defaults, the description and owner, and the declared ones.

    Source of the names: https://iceberg.apache.org/docs/latest/configuration/#table-properties
    """
    compaction = declaration.maintenance.compaction
    own = {
        # Appends, merges and maintenance commit to one table; four attempts, Iceberg's default, are sometimes too few.
        "commit.retry.num-retries": "15",
        # A snapshot every second or two would leave a metadata file each. The newest 500 are kept: a slow writer still
        # reads the one with which it began, and expired snapshots are named from them (`sluice stream continue`).
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": "500",
        # Delete files slow down readers, break changelogs, and make compaction conflict with merges.
        "write.delete.mode": "copy-on-write",
        "write.update.mode": "copy-on-write",
        "write.merge.mode": "copy-on-write",
        "comment": declaration.description.strip(),
        "owner": declaration.owner,
    }
    if compaction is not None:
        own["write.target-file-size-bytes"] = str(int(compaction.target_file_bytes))
    asked_for = own | declaration.all_properties
    return asked_for | {DECLARED_PROPERTIES: json.dumps(sorted(asked_for))}
