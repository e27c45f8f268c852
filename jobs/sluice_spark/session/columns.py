"""Columns of Spark: how their names are quoted, their types as declared, their text, why a row is rejected, and how the
content of rows is compared, value by value and by the sums of their hashes.

As text nothing is cut, trimmed or rounded, and a reader gets back what was written. Spark's own defaults write three of
the six digits of a second, trim the fields of csv and escape its quotation marks by a backslash.

Source of the types: https://iceberg.apache.org/docs/latest/spark-getting-started/#iceberg-type-to-spark-type

Spark refuses to compare, sort and hash maps, also inside other columns. For that a map becomes the array of its
entries, sorted by key: two maps with the same entries are equal, whatever their order.

Spark's `xxhash64` hashes the values of a row one behind the other. It skips nulls, and hashes the elements of an
array and the fields of a struct as if they stood in the row itself: to it `('x', null)` is `(null, 'x')`, `[1, null]`
is `[1]`, and `([1, 2], [3])` is `([1], [2, 3])`. What is hashed here says before each value whether it is null, and
before the elements of a list and the entries of a map how many there are, so that no two different rows read alike.

Zeros and NaN are equal as SQL has it, `0.0 = -0.0` and `NaN = NaN`: `xxhash64` itself makes them one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from pyspark.sql import Column, DataFrame, Row, types
from pyspark.sql import functions as fn

from sluice.backfill.interval_gaps import Fingerprint
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


_SECOND_SEED = 1
"""What the second hash of a row begins with."""


def sums_of_rows(rows: DataFrame) -> list[Column]:
    """The aggregates of a fingerprint (`fingerprint_of`): the number of some rows, and two sums of their hashes.

    The sums do not depend on the order of the rows, and count a row as often as it is there.
    """
    sums = (fn.sum(one.cast("decimal(38,0)")) for one in row_hashes(rows))
    return [fn.count(fn.lit(1)).alias("rows"), *(one.alias(f"sum{number}") for number, one in enumerate(sums))]


def row_hashes(rows: DataFrame) -> list[Column]:
    """Two hashes of a row, which are those of another one when both have the same types and are equal."""
    parts = [part for field in rows.schema for part in _parts(fn.col(quoted(field.name)), field.dataType)]
    hashes = (fn.xxhash64(*parts), fn.xxhash64(fn.lit(_SECOND_SEED), *parts))
    return [one.alias(f"hash{number}") for number, one in enumerate(hashes)]


def fingerprint_of(found: Row) -> Fingerprint:
    """The fingerprint in a row of aggregates (`sums_of_rows`)."""
    return Fingerprint(rows=int(found["rows"]), sums=(int(found["sum0"] or 0), int(found["sum1"] or 0)))


def fingerprint(rows: DataFrame) -> Fingerprint:
    """The fingerprint of some rows, in one pass."""
    found = rows.agg(*sums_of_rows(rows)).first()
    assert found is not None  # noqa: S101  # an aggregate without keys has one row
    return fingerprint_of(found)


def _parts(value: Column, kind: types.DataType) -> list[Column]:
    """What is hashed of a value: whether it is null or how long it is, then what it holds."""
    match kind:
        case types.StructType() as struct:
            fields = (_parts(value.getField(field.name), field.dataType) for field in struct)
            return [value.isNull(), *(part for field in fields for part in field)]
        case types.ArrayType(elementType=element):
            return [_size(value), fn.transform(value, lambda one: _entry(_parts(one, element)))]
        case types.MapType(keyType=of_key, valueType=of_value):

            def entry(one: Column) -> Column:
                return _entry([*_parts(one["key"], of_key), *_parts(one["value"], of_value)])

            return [_size(value), fn.array_sort(fn.transform(fn.map_entries(value), entry))]
    return [value.isNull(), value]


def _size(value: Column) -> Column:
    """How many elements a list or a map has; -1 for null."""
    return fn.coalesce(fn.size(value), fn.lit(-1))


def _entry(parts: list[Column]) -> Column:
    return fn.struct(*(part.alias(f"part{number}") for number, part in enumerate(parts)))


def comparable_columns(rows: DataFrame) -> list[Column]:
    """Every column of some rows, in a form that can be compared value by value; most columns as they are."""
    return [comparable(fn.col(quoted(field.name)), field.dataType).alias(field.name) for field in rows.schema]


def comparable(value: Column, kind: types.DataType) -> Column:
    """A value in a form that can be compared; null stays null.

    Parameters
    ----------
    kind: the type of the value.
    """
    if not holds_map(kind):
        return value
    match kind:
        case types.MapType(valueType=of_value):

            def entry(one: Column) -> Column:
                return fn.struct(one["key"].alias("key"), comparable(one["value"], of_value).alias("value"))

            return fn.array_sort(fn.transform(fn.map_entries(value), entry))
        case types.ArrayType(elementType=element):
            return fn.transform(value, lambda one: comparable(one, element))
        case types.StructType() as struct:
            parts = (comparable(value.getField(part.name), part.dataType).alias(part.name) for part in struct)
            return fn.when(value.isNotNull(), fn.struct(*parts))
    raise TypeError(f"{kind.simpleString()} holds a map in a way that is unknown")


def holds_map(kind: types.DataType) -> bool:
    """Whether a type is a map, or has one inside."""
    match kind:
        case types.MapType():
            return True
        case types.ArrayType(elementType=element):
            return holds_map(element)
        case types.StructType() as struct:
            return any(holds_map(part.dataType) for part in struct)
    return False
