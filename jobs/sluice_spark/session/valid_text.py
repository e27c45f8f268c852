"""Finds text that is not UTF-8: Spark casts any bytes to text, and other readers cannot read the column any more."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from sluice.record_values.rejection import RejectionKind
from sluice_spark.session.columns import quoted, rejected_row, rejection_of

MARK = "text that is not UTF-8"
"""Stands in the message of each refusal."""


def invalid_columns(schema: StructType) -> Iterator[tuple[str, Column]]:
    """The columns that can hold text, nested text too, each with whether its value in a row holds invalid text."""
    for field in schema:
        found = _is_invalid(fn.col(quoted(field.name)), field.dataType)
        if found is not None:
            yield field.name, fn.coalesce(found, fn.lit(False))


def has_invalid_text(schema: StructType) -> Column | None:
    """Whether a row holds invalid text; none when no column can."""
    found = [column for _, column in invalid_columns(schema)]
    return reduce(Column.__or__, found) if found else None


def named_columns(schema: StructType) -> Column:
    """The names of the columns of a row that hold invalid text."""
    return fn.concat_ws(", ", *(fn.when(found, fn.lit(name)) for name, found in invalid_columns(schema)))


def require_valid_text(rows: DataFrame, *, place: str) -> DataFrame:
    """The same rows. One with invalid text stops the batch, with the names of its columns.

    Parameters
    ----------
    place: where the rows go, for the message.
    """
    found = has_invalid_text(rows.schema)
    if found is None:
        return rows
    message = fn.concat(
        fn.lit(f"A row for {place} has {MARK} in "),
        named_columns(rows.schema),
        fn.lit("; decode the bytes by their own encoding, `decode(value, 'ISO-8859-1')`, or keep them as binary"),
    )
    return rows.where(fn.when(found, fn.raise_error(message).cast("boolean")).otherwise(fn.lit(True)))


def invalid_rows(rows: DataFrame, invalid: Column) -> DataFrame:
    """Rows of the quarantine for those whose text is not UTF-8."""
    rejection = rejection_of(RejectionKind.NOT_TEXT, path="", detail=named_columns(rows.schema))
    columns = rejected_row(rejection, position=fn.lit(None).cast("string"), payload=repaired(rows))
    return rows.where(invalid).select(*columns.values())


def repaired(rows: DataFrame) -> Column:
    """A row as JSON in which what is not UTF-8 has the replacement character."""
    return fn.make_valid_utf8(fn.to_json(fn.struct(*(fn.col(quoted(name)) for name in rows.columns))))


def valid_text(field: StructField) -> Column:
    """A column; what is not UTF-8 in one of text has the replacement character."""
    column = fn.col(quoted(field.name))
    return fn.make_valid_utf8(column).alias(field.name) if isinstance(field.dataType, StringType) else column


def _is_invalid(value: Column, kind: DataType) -> Column | None:
    match kind:
        case StringType():
            return ~fn.is_valid_utf8(value)
        case StructType():
            inner = [
                found for one in kind if (found := _is_invalid(value.getField(one.name), one.dataType)) is not None
            ]
            return reduce(Column.__or__, (fn.coalesce(one, fn.lit(False)) for one in inner)) if inner else None
        case ArrayType():
            return _in_elements(value, kind.elementType)
        case MapType():
            sides = (_in_elements(fn.map_keys(value), kind.keyType), _in_elements(fn.map_values(value), kind.valueType))
            given = [fn.coalesce(one, fn.lit(False)) for one in sides if one is not None]
            return reduce(Column.__or__, given) if given else None
    return None


def _in_elements(values: Column, kind: DataType) -> Column | None:
    if _is_invalid(fn.lit(None).cast(kind), kind) is None:
        return None

    def is_invalid(element: Column) -> Column:
        found = _is_invalid(element, kind)
        return fn.coalesce(found, fn.lit(False)) if found is not None else fn.lit(False)

    return fn.exists(values, is_invalid)
