"""Finds text that is not UTF-8: Spark casts any bytes to text, and other readers cannot read the column any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, reduce
from typing import cast

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from sluice.record_values.rejection import RejectionKind
from sluice_spark.session.columns import quoted, rejected_row, rejection_of

_KEPT = 64
"""How many expressions are kept: all batches of a query have the same one, and each part of it is a call of the JVM, of
which 40 columns cost 40 ms."""

MARK = "text that is not UTF-8"
"""Stands in the message of each refusal."""


KNOWN_VALID: Mapping[str, str] = {"sluice.text": "UTF-8"}
"""The metadata of a column whose text has been looked at, within too. Spark hands it on with a column that is passed on
as it is, under another name too, and drops it where a value is computed. A union has the metadata of its first side,
and `DataFrame.to` that of a foreign schema: `sluice_spark.query.transformation` takes it away there."""


def _doubted(schema: StructType) -> Iterator[StructField]:
    """The columns that are not known to hold valid text alone."""
    (key,) = KNOWN_VALID
    return (field for field in schema if key not in field.metadata)


def invalid_columns(schema: StructType) -> Iterator[tuple[str, Column]]:
    """The columns that may hold invalid text, nested text too, each with whether its value in a row does."""
    for field in _doubted(schema):
        found = _holds_invalid([_value_of(field)])
        if found is not None:
            yield field.name, found


@lru_cache(maxsize=_KEPT)
def has_invalid_text(schema: StructType) -> Column | None:
    """Whether a row holds invalid text; none when no column can."""
    return _holds_invalid(map(_value_of, _doubted(schema)))


def named_columns(schema: StructType) -> Column:
    """The names of the columns of a row that hold invalid text."""
    return fn.concat_ws(", ", *(fn.when(found, fn.lit(name)) for name, found in invalid_columns(schema)))


def require_valid_text(rows: DataFrame, *, place: str) -> DataFrame:
    """The same rows. One with invalid text stops the batch, with the names of its columns.

    Parameters
    ----------
    place: where the rows go, for the message.
    """
    is_valid = valid_or_error(rows.schema, place)
    return rows if is_valid is None else rows.where(is_valid)


@lru_cache(maxsize=_KEPT)
def valid_or_error(schema: StructType, place: str) -> Column | None:
    """True for a row without invalid text, and an error for all others; none when no column can hold any.

    Parameters
    ----------
    place: as of `require_valid_text`.
    """
    found = has_invalid_text(schema)
    if found is None:
        return None
    message = fn.concat(
        fn.lit(f"A row for {place} has {MARK} in "),
        named_columns(schema),
        fn.lit("; decode the bytes by their own encoding, `decode(value, 'ISO-8859-1')`, or keep them as binary"),
    )
    return fn.when(found, fn.raise_error(message).cast("boolean")).otherwise(fn.lit(True))


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


_Value = tuple[Column, DataType]


def _value_of(field: StructField) -> _Value:
    return fn.col(quoted(field.name)), field.dataType


def _holds_invalid(values: Iterable[_Value]) -> Column | None:
    """Whether one of some values holds invalid text; none when none can.

    All text is looked at as one: Spark compiles a look at each of many columns into more than Java optimizes. Next to a
    comma what is cut off is no less invalid.
    """
    parts = [part for value, kind in values for part in _parts(value, kind)]
    texts = [value for value, kind in parts if isinstance(kind, StringType)]
    found = [~fn.is_valid_utf8(fn.concat_ws(",", *texts))] if texts else []
    found += [inner for value, kind in parts if (inner := _in_elements(value, kind)) is not None]
    return reduce(Column.__or__, found) if found else None


def _parts(value: Column, kind: DataType) -> Iterator[_Value]:
    """What a value consists of: texts, lists of texts under the type of a text, and lists of what has parts."""
    match kind:
        case StringType():
            yield value, kind
        case ArrayType(elementType=StringType() as text):
            yield value, text
        case ArrayType():
            yield value, kind
        case StructType():
            for one in kind:
                yield from _parts(value.getField(one.name), one.dataType)
        case MapType():
            yield from _parts(fn.map_keys(value), ArrayType(kind.keyType))
            yield from _parts(fn.map_values(value), ArrayType(kind.valueType))


def _in_elements(values: Column, kind: DataType) -> Column | None:
    """Whether an element of a list of what has parts holds invalid text; none when none can."""
    if (
        not isinstance(kind, ArrayType)
        or _holds_invalid([(fn.lit(None).cast(kind.elementType), kind.elementType)]) is None
    ):
        return None
    found = fn.exists(values, lambda element: cast(Column, _holds_invalid([(element, kind.elementType)])))
    return fn.coalesce(found, fn.lit(False))
