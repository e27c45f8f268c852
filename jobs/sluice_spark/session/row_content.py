"""How the content of rows is compared: value by value, and by the sums of their hashes.

Spark refuses to compare, sort and hash maps, also inside other columns. For that a map becomes the array of its
entries, sorted by key: two maps with the same entries are equal, whatever their order.

Spark's `xxhash64` hashes the values of a row one behind the other. It skips nulls, and hashes the elements of an
array and the fields of a struct as if they stood in the row itself: to it `('x', null)` is `(null, 'x')`, `[1, null]`
is `[1]`, and `([1, 2], [3])` is `([1], [2, 3])`. What is hashed here says before each value whether it is null, and
before the elements of a list and the entries of a map how many there are, so that no two different rows read alike.

Zeros and NaN are equal as SQL has it, `0.0 = -0.0` and `NaN = NaN`: `xxhash64` itself makes them one.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Row, types
from pyspark.sql import functions as fn

from sluice.backfill.interval_gaps import Fingerprint
from sluice_spark.session.columns import quoted

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
