"""Columns of Spark: how their names are quoted, their types as declared, their text, and why a row is rejected.

As text nothing is cut, trimmed or rounded, and a reader gets back what was written. Spark's own defaults write three of
the six digits of a second, trim the fields of csv and escape its quotation marks by a backslash.

Source of the types: https://iceberg.apache.org/docs/latest/spark-getting-started/#iceberg-type-to-spark-type
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pyspark.sql import Column, DataFrame, types
from pyspark.sql import functions as fn

from sluice.declarations.column_types import (
    ColumnType,
    DecimalType,
    FixedType,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
)
from sluice.declarations.loaded_declarations import REASON_COLUMNS, REJECTED_COLUMNS
from sluice.declarations.value_declaration import Column as DeclaredColumn
from sluice.errors import UsageError
from sluice.record_values.rejection import RejectionKind, around_detail


def quoted(name: str) -> str:
    """Quote a name as one SQL identifier."""
    return f"`{name.replace('`', '``')}`"


def quoted_table(catalog: str, table: str) -> str:
    """The quoted SQL name of a declared table, `<namespace>.<table>`, in a catalog."""
    return ".".join(quoted(part) for part in (catalog, *table.split(".")))


_PRIMITIVES: dict[str, types.DataType] = {
    "boolean": types.BooleanType(),
    "int": types.IntegerType(),
    "long": types.LongType(),
    "float": types.FloatType(),
    "double": types.DoubleType(),
    "date": types.DateType(),
    "timestamp": types.TimestampNTZType(),
    "timestamptz": types.TimestampType(),
    "string": types.StringType(),
    "uuid": types.StringType(),
    "binary": types.BinaryType(),
}


def spark_schema(columns: Iterable[DeclaredColumn]) -> types.StructType:
    """The schema for reading declared columns. All fields are nullable, because external data can always lack values.

    Raises
    ------
    UsageError: when Spark has no such type.
    """
    return types.StructType([types.StructField(column.name, spark_type(column.column_type)) for column in columns])


def spark_type(column_type: ColumnType) -> types.DataType:
    """Spark's type for a declared type.

    Raises
    ------
    UsageError: for `time`, which Spark cannot read into an Iceberg table.
    """
    match column_type:
        case PrimitiveType(name) if name in _PRIMITIVES:
            return _PRIMITIVES[name]
        case PrimitiveType(name):
            raise UsageError(f"Spark has no type for a column of type {name}.", next_step="Declare it as a string.")
        case DecimalType(precision=precision, scale=scale):
            return types.DecimalType(precision, scale)
        case FixedType():
            return types.BinaryType()
        case ListType(element):
            return types.ArrayType(spark_type(element))
        case MapType(key=key, value=value):
            return types.MapType(spark_type(key), spark_type(value))
        case StructType(fields):
            return types.StructType([types.StructField(name, spark_type(inner)) for name, inner in fields])


REJECTION_ROW = spark_schema(REASON_COLUMNS)
"""Why a row is rejected."""

REJECTED_ROW = spark_schema(REJECTED_COLUMNS)
"""A row of the quarantine without its batch."""


def described_fields(schema: types.StructType, prefix: str = "") -> Iterator[tuple[str, str]]:
    """The type of each field in Spark's words, by its path; of one with types inside which kind it is."""
    for field in schema:
        yield from _described(f"{prefix}{field.name}", field.dataType)


def _described(path: str, kind: types.DataType) -> Iterator[tuple[str, str]]:
    match kind:
        case types.StructType():
            yield path, "struct"
            yield from described_fields(kind, f"{path}.")
        case types.ArrayType():
            yield path, "array"
            yield from _described(f"{path}.element", kind.elementType)
        case types.MapType():
            yield path, "map"
            yield from _described(f"{path}.key", kind.keyType)
            yield from _described(f"{path}.value", kind.valueType)
        case _:
            yield path, kind.simpleString()


def rejection_of(kind: RejectionKind, *, path: str, detail: Column, quotes_data: bool = True) -> Mapping[str, Column]:
    """The columns of a `REJECTION_ROW` for rows that Spark itself rejects. quotes_data: whether the detail quotes the
    row."""
    before, behind = around_detail(kind, path)
    reason = fn.concat(fn.lit(f"{before}: "), detail, fn.lit(behind))
    given = {"reason": reason, "kind": fn.lit(str(kind)), "path": fn.lit(path), "quotes_data": fn.lit(quotes_data)}
    return {name: given[name].alias(name) for name in REJECTION_ROW.names}


def rejected_row(rejection: Mapping[str, Column], *, position: Column, payload: Column) -> Mapping[str, Column]:
    """The columns of a `REJECTED_ROW` by their names. rejection: those of a `REJECTION_ROW`. They are not taken out of
    a struct of theirs: each would then have a copy of all until the plan is optimized, in every batch."""
    given = {**rejection, "position": position, "payload": payload}
    return {name: given[name].alias(name) for name in REJECTED_ROW.names}


def rejection_in(column: Column) -> Mapping[str, Column]:
    """The columns of a `REJECTION_ROW` that is the value of a column."""
    return {name: column.getField(name) for name in REJECTION_ROW.names}


def with_unknown_reasons(rows: DataFrame) -> DataFrame:
    """The rows that a transformation rejects, with null for what it does not say about its reasons."""
    unsaid = [one for one in REASON_COLUMNS if not one.required and one.name not in rows.columns]
    return rows.select("*", *(fn.lit(None).cast(spark_type(one.column_type)).alias(one.name) for one in unsaid))


TIMES: Mapping[str, str] = {
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""ISO 8601 with microseconds, which is all that a timestamp of Spark and Iceberg holds."""

JSON_TEXT: Mapping[str, str] = {**TIMES, "ignoreNullFields": "false"}
"""The options of JSON objects. Nulls are kept: without them a null value and a missing column would look the same."""

CSV_TEXT: Mapping[str, str] = {
    **TIMES,
    "header": "true",
    "escape": '"',
    "ignoreLeadingWhiteSpace": "false",
    "ignoreTrailingWhiteSpace": "false",
}
"""The options of csv, as RFC 4180 says: a quotation mark is doubled. A null is an empty field, a text without
characters is `""`."""
