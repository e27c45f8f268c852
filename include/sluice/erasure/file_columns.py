"""Says which column of a Parquet file is which of a table: as Iceberg reads it, or not at all.

Columns have ids, and a file may have them by another name or of a narrower type than today. One without ids is read by
the name mapping of the table. What a file lacks is the value of its partition, or null. The ids of another table that
lay in the same folder are the same small numbers: a column counts only by a name that its id has had, and a type that
can become today's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema, make_compatible_name
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from sluice.erasure.condition_text import arrow_value
from sluice.errors import LakehouseError
from sluice.stored_keys import OPERATION_COLUMN
from sluice.tables.catalog import catalog_refusals

FIELD_ID = b"PARQUET:field_id"
_POSITIONS = frozenset({2147483545, 2147483546})
"""The ids of Iceberg's files of deleted positions, which hold paths and numbers of rows alone."""

_WAY_OUT = "`rewrite_data_files` in Spark writes a file of the newest snapshot with all columns."


class UnreadableFileError(LakehouseError):
    """A file is no Parquet, or Parquet that cannot be compared with the condition."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableColumns:
    """The columns of a table, and how files have them.

    schema: the newest. names: that the id of each has had. mapping: of the names of files without ids to ids, where the
    table has one. identities: the columns whose values partitions have had. values: of these in the partition of each
    listed file, by `key_of` its path.
    """

    schema: Schema
    names: Mapping[int, frozenset[str]]
    mapping: Mapping[str, int] | None
    identities: frozenset[int]
    values: Mapping[str, Mapping[int, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldColumn:
    """A column as a file has it. place: its number; unset where it is absent. has_value: whether the partition gives a
    value for all rows. value: that one, or none for null."""

    place: int | None
    has_value: bool = False
    value: Any = None


def columns_of(
    metadata: TableMetadata, others: Iterable[TableMetadata] = (), *, values: Mapping[str, Mapping[int, Any]]
) -> TableColumns:
    """The columns of a table.

    Parameters
    ----------
    others: of its staging tables, with the same ids. values: as `partition_values` reads them.
    """
    every = [one for each in (metadata, *others) for schema in each.schemas for one in schema.fields]
    names: dict[int, set[str]] = {}
    for one in every:
        names.setdefault(one.field_id, set()).update({one.name, make_compatible_name(one.name)})
    return TableColumns(
        schema=metadata.schema(),
        names={number: frozenset(found) for number, found in names.items()},
        mapping=_mapping_of(metadata),
        identities=frozenset(_identities(metadata, frozenset(names))),
        values=values,
    )


def _mapping_of(metadata: TableMetadata) -> Mapping[str, int] | None:
    """Which name means which column; one that means two is left out."""
    mapping = metadata.name_mapping()
    if mapping is None:
        return None
    pairs = [(name, one.field_id) for one in mapping for name in one.names if one.field_id is not None]
    names = [name for name, _ in pairs]
    return {name: number for name, number in pairs if names.count(name) == 1}


def _identities(metadata: TableMetadata, tested: Collection[int]) -> Iterator[int]:
    for spec in metadata.specs().values():
        for one in spec.fields:
            if isinstance(one.transform, IdentityTransform) and one.source_id in tested:
                yield one.source_id


def partition_values(tables: Iterable[Table], tested: Collection[int]) -> Mapping[str, Mapping[int, Any]]:
    """The values of some columns in the partitions of all files that some tables list; of one that is listed with
    several, none.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    found: dict[str, Mapping[int, Any]] = {}
    several: set[str] = set()
    for table in tables:
        if not set(_identities(table.metadata, tested)):
            continue
        for one in _listed(table):
            path, values = key_of(one.file_path), values_of(table.metadata, one)
            if found.setdefault(path, values) != values:
                several.add(path)
    return {path: values for path, values in found.items() if path not in several}


def _listed(table: Table) -> Iterator[DataFile]:
    with catalog_refusals(f"read the manifests of {'.'.join(table.name())}"):
        manifests = {one.manifest_path: one for each in table.snapshots() for one in each.manifests(table.io)}
        for manifest in manifests.values():
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False):
                entry.data_file.spec_id = manifest.partition_spec_id
                yield entry.data_file


def values_of(metadata: TableMetadata, file: DataFile) -> Mapping[int, Any]:
    """The values of columns that the partition of a file has, by their ids."""
    fields = metadata.specs()[file.spec_id].fields
    return {
        one.source_id: file.partition[place]
        for place, one in enumerate(fields)
        if isinstance(one.transform, IdentityTransform)
    }


def key_of(path: str) -> str:
    """A path without its scheme, of which engines write several for one store."""
    return re.sub(r"^([A-Za-z0-9+.-]+:)?/+", "/", path)


def held_columns(
    found: pa.Schema, tested: Iterable[NestedField], columns: TableColumns, *, path: str
) -> Mapping[str, HeldColumn]:
    """How a file has the tested columns, by their names in the table.

    Parameters
    ----------
    found: the schema of the file. path: where it lies.

    Raises
    ------
    UnreadableFileError: when it is not sure.
    """
    ids = _ids(found, columns)
    is_whole = all(id_of(one) is not None for one in found)
    return {one.name: _held(one, ids, columns, is_whole=is_whole, path=key_of(path)) for one in tested}


def _held(
    tested: NestedField, ids: Mapping[int, int], columns: TableColumns, *, is_whole: bool, path: str
) -> HeldColumn:
    number = tested.field_id
    place, values = ids.get(number), columns.values.get(path)
    if values is not None and number in values:
        return HeldColumn(place=place, has_value=True, value=values[number])
    if place is None and values is None and number in columns.identities:
        raise UnreadableFileError(f"It lacks the column {tested.name}, and its partition is not known.")
    if place is None and tested.initial_default is not None:
        raise UnreadableFileError(f"It lacks the column {tested.name}, which has a default for such files. {_WAY_OUT}")
    if place is None and not is_whole:
        raise UnreadableFileError(f"It lacks the column {tested.name}, or has it without an id. {_WAY_OUT}")
    return HeldColumn(place=place)


def _ids(found: pa.Schema, columns: TableColumns) -> Mapping[int, int]:
    """The places of columns by their ids."""
    if len(set(found.names)) < len(found):
        raise UnreadableFileError("It has two columns of one name.")
    numbers = [id_of(one) for one in found]
    if not any(map(_has_ids, found)):
        if columns.mapping is None:
            raise UnreadableFileError(
                "Its columns have no ids, and the table has no `schema.name-mapping.default` that says which they are. "
                f"{_WAY_OUT}"
            )
        numbers = [columns.mapping.get(name) for name in found.names]
    else:
        _require_own(found, columns)
    known = [one for one in numbers if one is not None]
    if len(set(known)) < len(known):
        raise UnreadableFileError("It has one column of the table twice.")
    return {one: place for place, one in enumerate(numbers) if one is not None}


def _require_own(found: pa.Schema, columns: TableColumns) -> None:
    for one in found:
        number = id_of(one)
        if number is None or one.name == OPERATION_COLUMN or one.name in columns.names.get(number, ()):
            continue
        raise UnreadableFileError(
            f"Its column {one.name} with the id {number} was never one of the table: another table may have lain here."
        )


def id_of(field: pa.Field[Any]) -> int | None:
    """The id of a column, where it has one."""
    found = (field.metadata or {}).get(FIELD_ID)
    return None if found is None else int(found)


def _has_ids(field: pa.Field[Any]) -> bool:
    """Whether a column has an id, or one inside it."""
    kind: Any = field.type
    inside = [kind.field(number) for number in range(kind.num_fields)] if pat.is_nested(kind) else []
    return id_of(field) is not None or any(map(_has_ids, inside))


def has_positions_alone(found: pa.Schema) -> bool:
    """Whether a file names deleted rows of others by their numbers, and holds none."""
    ids = {id_of(one) for one in found}
    return bool(ids) and ids <= _POSITIONS


def column_of(held: HeldColumn, found: Any, kind: IcebergType, rows: int, *, is_old_time: bool) -> Any:
    """The values of a column as today's type has them.

    Parameters
    ----------
    found: as the file has it; none where it lacks it. rows: how many. is_old_time: whether it has 96 bits.

    Raises
    ------
    UnreadableFileError: when its type cannot become today's, or the file has not what its partition says.
    """
    constant = arrow_value(held.value, kind) if held.has_value and held.value is not None else None
    given = pa.nulls(rows, arrow_value(None, kind).type) if constant is None else pa.repeat(constant, rows)
    if found is None:
        return given
    found = found.storage if isinstance(found, pa.ExtensionArray) else found
    found = found.dictionary_decode() if pat.is_dictionary(found.type) else found
    is_kin = is_old_time and isinstance(kind, TimestamptzType)
    if not is_kin and not can_become(found.type, kind):
        raise UnreadableFileError(f"It has {found.type} where the table has {kind}.")
    values = found.cast(given.type)
    if held.has_value and not (values.equals(given) or _are_no_numbers(values, constant)):
        raise UnreadableFileError("It has other values than its partition says.")
    return values


def _are_no_numbers(values: Any, constant: Any) -> bool:
    """Whether all are NaN, as the value of the partition is, which equals no value."""
    is_nan = constant is not None and pat.is_floating(constant.type) and math.isnan(constant.as_py())
    return is_nan and values.null_count == 0 and bool(pc.all(pc.is_nan(values), min_count=0).as_py())


def can_become(found: Any, kind: IcebergType) -> bool:
    """Whether every value of a type in a file is one of a type of today, as Iceberg lets types grow."""
    if isinstance(kind, IntegerType | LongType):
        bits = 32 if isinstance(kind, IntegerType) else 64
        fits = pat.is_signed_integer(found) and found.bit_width <= bits
        return bool(fits or (pat.is_unsigned_integer(found) and found.bit_width < bits))
    if isinstance(kind, DecimalType):
        return bool(pat.is_decimal(found) and found.scale == kind.scale and found.precision <= kind.precision)
    if isinstance(kind, FixedType | UUIDType):
        length = len(kind) if isinstance(kind, FixedType) else 16
        return bool(pat.is_fixed_size_binary(found) and found.byte_width == length)
    if isinstance(kind, TimestampType | TimestamptzType):
        return bool(pat.is_timestamp(found) and (found.tz is not None) is isinstance(kind, TimestamptzType))
    return any(one(found) for one in _TYPES.get(type(kind), ()))


_TYPES: Mapping[type[IcebergType], tuple[Any, ...]] = {
    BooleanType: (pat.is_boolean,),
    FloatType: (pat.is_float32,),
    DoubleType: (pat.is_float32, pat.is_float64),
    DateType: (pat.is_date32,),
    TimeType: (lambda found: found == pa.time64("us"),),
    StringType: (pat.is_string, pat.is_large_string, pat.is_string_view),
    BinaryType: (pat.is_binary, pat.is_large_binary, pat.is_binary_view),
}
