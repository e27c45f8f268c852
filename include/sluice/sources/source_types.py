"""Types in sources that Spark takes for others: of columns of parquet, orc and avro files, and of tables of PostgreSQL.

Spark takes the physical type for the value: an unsigned number becomes a negative one, a date becomes the number of its
day, bytes become text that is none, and a column that is absent becomes null. So the types in the head or foot of a
file are compared with the declared ones before a batch reads it. The guide has the table (`docs/guides/inputs.md`).

A file from before a column was added lacks it, and has no other column instead: there the column is null. One that
lacks a column and has another one may have renamed it, and is refused.

From PostgreSQL, Spark gives `numeric` without a scale 18 digits behind the point and rounds the rest, and takes `money`
and a time of day for other things. Source: `org.apache.spark.sql.jdbc.PostgresDialect` of Spark 4.1.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Literal

import pyarrow as pa

from sluice.declarations.column_types import (
    ColumnType,
    DecimalType,
    FixedType,
    ListType,
    MapType,
    PrimitiveType,
    StructType,
)
from sluice.declarations.value_declaration import Column
from sluice.errors import ColumnDifference

FileFormat = Literal["parquet", "orc", "avro"]

LEGACY_INSTANT = pa.timestamp("ns", tz="INT96")
"""How a time of parquet's old type INT96 is given here: an instant, which Spark reads to the microsecond."""

ORC_INSTANT = pa.timestamp("ns", tz="ORC")
"""How orc's type `timestamp with local time zone` is given here, which Spark does not read. Its `timestamp` is an
instant, as Spark reads it, and a local time is what Spark marks as one."""

_SIGNED = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
_UNSIGNED = (pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64())

_BYTES = (pa.binary(), pa.large_binary())

_EXACT: Mapping[str, tuple[pa.DataType, ...]] = {
    "boolean": (pa.bool_(),),
    "int": (*_SIGNED[:3], *_UNSIGNED[:2]),
    "long": (*_SIGNED, *_UNSIGNED[:3]),
    "float": (pa.float32(),),
    "double": (pa.float32(), pa.float64()),
    "string": (pa.string(), pa.large_string()),
    "uuid": (pa.string(), pa.large_string()),
    "binary": (pa.binary(), pa.large_binary(), pa.string(), pa.large_string()),
    "date": (pa.date32(),),
}
"""The types of files whose every value a declared type holds, and that Spark reads into it unchanged. Text that is read
as `binary` is its UTF-8 bytes."""


def unfit_columns(
    columns: Sequence[Column], found: pa.Schema, *, file_format: FileFormat
) -> tuple[ColumnDifference, ...]:
    """Each declared column that a file does not have, or has with a type that does not fit.

    Parameters
    ----------
    found: the columns of the file.
    """
    declared = tuple((column.name, column.column_type) for column in columns)
    required = frozenset(column.name for column in columns if column.required)
    fields = [found.field(index) for index in range(len(found.names))]
    return tuple(_unfit_fields(declared, fields, file_format, required=required))


def columns_in_the_path(columns: Sequence[Column], found: Collection[str], path: str) -> tuple[ColumnDifference, ...]:
    """Each declared column that a file lacks and a folder of its path is named after, as in `day=5`: it would be null.

    Parameters
    ----------
    found: the names of the columns of the file.
    """
    given = {name.lower() for name in found}
    folders = {folder.partition("=")[0].lower() for folder in path.split("/")[:-1] if "=" in folder}
    got = "the name of a folder, which is no column"
    return tuple(
        ColumnDifference(column=column.name, declared=_declared(column.column_type), got=got)
        for column in columns
        if column.name.lower() in folders - given
    )


def undeclared_columns(columns: Sequence[Column], found: pa.Schema) -> tuple[str, ...]:
    """The columns of a file that are not declared."""
    declared = {column.name.lower() for column in columns}
    return tuple(name for name in found.names if name.lower() not in declared)


def described_columns(found: pa.Schema) -> dict[str, str]:
    """The type of each column of a file in the words of its format, by its path; a field in another one has a path.
    Where a format says that a field always has a value, it is `required`: one that became optional has changed."""
    fields = [found.field(index) for index in range(len(found.names))]
    return dict(part for field in fields for part in _described_field(field, ""))


def answer_to(columns: Sequence[Column], found: pa.Schema, *, is_fit: bool) -> str:
    """The sentence on what becomes of files with these columns."""
    if not is_fit:
        return "It does not fit what is declared, and stops the stream before the batch."
    given = {name.lower() for name in found.names}
    absent = [column.name for column in columns if column.name.lower() not in given]
    others = undeclared_columns(columns, found)
    parts = [f"null for {', '.join(absent)}"] * bool(absent) + [f"without {', '.join(others)}"] * bool(others)
    return f"Its files are read{', ' if parts else ''}{', '.join(parts)}."


def _described_field(field: pa.Field[Any], prefix: str) -> Iterator[tuple[str, str]]:
    first, *inner = _described(f"{prefix}{field.name}", field.type)
    yield (first[0], first[1] if field.nullable else f"required {first[1]}")
    yield from inner


def _described(path: str, kind: pa.DataType) -> Iterator[tuple[str, str]]:
    if pa.types.is_struct(kind):
        yield path, "struct"
        for index in range(kind.num_fields):
            yield from _described_field(kind.field(index), f"{path}.")
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield path, "list"
        yield from _described(f"{path}.element", kind.value_type)
    elif pa.types.is_map(kind):
        yield path, "map"
        yield from _described(f"{path}.key", kind.key_type)
        yield from _described(f"{path}.value", kind.item_type)
    else:
        yield path, _words(kind)


def _unfit_fields(
    declared: Sequence[tuple[str, ColumnType]],
    found: Sequence[pa.Field[Any]],
    file_format: FileFormat,
    *,
    prefix: str = "",
    required: Collection[str] = (),
) -> Iterator[ColumnDifference]:
    known, given = {name.lower() for name, _ in declared}, {field.name.lower() for field in found}
    is_older = bool(given) and given <= known
    for name, kind in declared:
        same = [field for field in found if field.name.lower() == name.lower()]  # as Spark looks columns up
        if not same and is_older and name not in required:
            continue
        if not same:
            yield ColumnDifference(column=f"{prefix}{name}", declared=_declared(kind), got="")
        elif len(same) > 1:
            got = f"{' and '.join(field.name for field in same)}, which differ in case only"
            yield ColumnDifference(column=f"{prefix}{name}", declared=_declared(kind), got=got)
        else:
            yield from _unfit(f"{prefix}{name}", kind, same[0].type, file_format)


def _unfit(path: str, declared: ColumnType, found: pa.DataType, file_format: FileFormat) -> Iterator[ColumnDifference]:
    match declared:
        case StructType(fields=fields) if pa.types.is_struct(found):
            inner = [found.field(index) for index in range(found.num_fields)]
            yield from _unfit_fields(fields, inner, file_format, prefix=f"{path}.")
        case ListType(element=element) if pa.types.is_list(found) or pa.types.is_large_list(found):
            yield from _unfit(f"{path}.element", element, found.value_type, file_format)
        case MapType(key=key, value=value) if pa.types.is_map(found):
            yield from _unfit(f"{path}.key", key, found.key_type, file_format)
            yield from _unfit(f"{path}.value", value, found.item_type, file_format)
        case _ if not _fits(declared, found, file_format):
            yield ColumnDifference(column=path, declared=_declared(declared), got=_words(found))


def _fits(declared: ColumnType, found: pa.DataType, file_format: FileFormat) -> bool:
    match declared:
        case DecimalType(precision=precision, scale=scale):
            if not isinstance(found, pa.Decimal128Type | pa.Decimal256Type):
                return False
            return bool(found.scale <= scale and found.precision - found.scale <= precision - scale)
        case FixedType(length=length):
            return pa.types.is_fixed_size_binary(found) and found.byte_width == length
        case PrimitiveType(name=("timestamp" | "timestamptz") as name):
            return _is_time(name, found, file_format)
        case PrimitiveType(name="binary") if pa.types.is_fixed_size_binary(found):
            return True
        case PrimitiveType(name="binary") if file_format == "avro":
            return found in _BYTES  # Spark's reader of Avro takes no text for bytes
        case PrimitiveType(name=name):
            return found in _EXACT.get(name, ())
    return False


def _is_time(name: str, found: pa.DataType, file_format: FileFormat) -> bool:
    if not pa.types.is_timestamp(found):
        return False
    if found == LEGACY_INSTANT:
        return name == "timestamptz"
    if found == ORC_INSTANT:
        return False
    units = ("s", "ms", "us", "ns") if file_format == "orc" else ("ms", "us")  # orc has no units
    return found.unit in units and (found.tz is not None) == (name == "timestamptz")


def _declared(kind: ColumnType) -> str:
    match kind:
        case DecimalType(precision=precision, scale=scale):
            return f"decimal({precision}, {scale})"
        case FixedType(length=length):
            return f"fixed[{length}]"
        case PrimitiveType(name=name):
            return name
        case ListType():
            return "a list"
        case MapType():
            return "a map"
    return "a struct"


def _words(found: pa.DataType) -> str:
    """A type of a file in the words of its format."""
    if pa.types.is_timestamp(found):
        if found == LEGACY_INSTANT:
            return "an INT96 instant"
        if found == ORC_INSTANT:
            return "a timestamp with local time zone, which Spark does not read from orc"
        units = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}
        return f"{'an instant' if found.tz is not None else 'a time without a zone'} in {units[found.unit]}"
    if found in _BYTES:
        return "bytes without the annotation of text"
    if found in _UNSIGNED:
        return f"an unsigned number of {found.bit_width} bits"
    if pa.types.is_union(found):
        return "a union of types"
    return str(found)


LARGEST_PRECISION = 38

_NUMERIC = re.compile(r"numeric(?:\((\d+),(-?\d+)\))?")
_TIME_OF_DAY = re.compile(r"time(?:\(\d\))? with(?:out)? time zone")


def unreadable_type(kind: str) -> str | None:
    """Why a column of a type cannot be read, as half a sentence; none when it can.

    Parameters
    ----------
    kind: as PostgreSQL's `format_type` gives it, of a domain that of its base; with `[]` behind it of an array.
    """
    element = kind.removesuffix("[]")
    if (found := _NUMERIC.fullmatch(element)) is not None:
        if found[1] is None:
            return "has no scale, and Spark would round it to 18 digits behind the point"
        if int(found[1]) > LARGEST_PRECISION or int(found[2]) < 0:
            return f"has more than {LARGEST_PRECISION} digits or a negative scale, which no column holds"
    if element == "money":
        return "is an amount in the words of a country"
    if _TIME_OF_DAY.fullmatch(element):
        return "is a time of day, which Spark does not have"
    return None


_TIME = re.compile(r"date|timestamp(?:\(\d\))? with(?:out)? time zone")


def checked_columns(columns: Mapping[str, str]) -> Iterator[str]:
    """The terms of a query for columns, in which PostgreSQL refuses a value that no column holds: `infinity`, which
    Spark reads as a time in the year 9999 or long ago, and a numeric `NaN`, at which it fails without a name.

    Parameters
    ----------
    columns: the type of each, as for `unreadable_type`.
    """
    for name, kind in columns.items():
        quoted = '"' + name.replace('"', '""') + '"'
        words = name.replace("'", "''")
        refusal = f"CAST({quoted}::text || ' in column {words}' AS {kind})"
        if _TIME.fullmatch(kind):
            is_value = f"isfinite({quoted})"
        elif _NUMERIC.fullmatch(kind):
            is_value = f"({quoted} <> 'NaN')"
        else:
            yield quoted
            continue
        # The cast around it keeps the scale, which a domain does not hand on.
        yield f"CAST(CASE WHEN {is_value} IS NOT FALSE THEN {quoted} ELSE {refusal} END AS {kind}) AS {quoted}"


def unreadable_columns(columns: Mapping[str, str]) -> Iterator[str]:
    """A phrase for each column that cannot be read. columns: the type of each, as for `unreadable_type`."""
    for name, kind in columns.items():
        if (why := unreadable_type(kind)) is not None:
            yield f"column {name} of type {kind} {why}"
