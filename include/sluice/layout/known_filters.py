"""The conditions by which a table is read, as far as declarations say: its own ones, and those of backfills.

Every interval of a backfill is read by the same condition with other times. That of the newest whole interval stands
for all: its times are taken from the bounds of the table's files.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, date, datetime, time, timedelta

from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.schema import Schema
from pyiceberg.types import DateType, IcebergType, LongType, NestedField, TimestampType, TimestamptzType
from pyiceberg.utils.datetime import days_to_date, micros_to_timestamptz

from sluice.backfill.intervals import IntervalLength, floor_time
from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.declarations.table_declaration import TableDeclaration
from sluice.layout.pruning import TableFilter, table_filter

_TIMES = (DateType, TimestampType, TimestamptzType)


def known_filters(
    declarations: Declarations, declaration: TableDeclaration, schema: Schema, files: Iterable[DataFile]
) -> tuple[TableFilter, ...]:
    """The declared conditions of a table, and those of backfills.

    Parameters
    ----------
    files: the data files of the table, which are looked at once, and only where a backfill is declared.

    Raises
    ------
    UsageError: when a declared one is no condition on columns of the table.
    """
    declared = declared_filters(declaration, schema)
    return (*declared, *_backfill_filters(declarations, declaration.table, schema, files))


def declared_filters(declaration: TableDeclaration, schema: Schema) -> tuple[TableFilter, ...]:
    """The conditions that a table declares.

    Raises
    ------
    UsageError: when one is no condition on columns of the table.
    """
    return tuple(table_filter(schema, text, origin="declared") for text in declaration.filters)


def _backfill_filters(
    declarations: Declarations, name: str, schema: Schema, files: Iterable[DataFile]
) -> tuple[TableFilter, ...]:
    """The conditions of the declared backfills on a table, without repetition."""
    times = {field.name: field for field in schema.fields if isinstance(field.field_type, _TIMES)}
    reads = [
        (times[column], length, f"a backfill of {stream_name} {what} one {length}")
        for stream_name, loaded in sorted(declarations.streams.items())
        for column, length, what in _reads(loaded.declaration, name)
        if column in times
    ]
    newest = _newest({field.field_id: field for field, _, _ in reads}, files) if reads else {}
    found: dict[str, TableFilter] = {}
    for field, length, origin in reads:
        if field.field_id in newest:
            condition = _condition(field, newest[field.field_id], length)
            found.setdefault(condition, table_filter(schema, condition, origin=origin))
    return tuple(found.values())


def _newest(fields: Mapping[int, NestedField], files: Iterable[DataFile]) -> Mapping[int, datetime]:
    """The newest time of each field, by the bounds of files; none of a field without any."""
    found: dict[int, datetime] = {}
    for file in files:
        for field_id, field in fields.items():
            if (bound := (file.upper_bounds or {}).get(field_id)) is not None:
                time_of = _time(field.field_type, bound)
                found[field_id] = max(time_of, found.get(field_id, time_of))
    return found


def _reads(stream: StreamDeclaration, name: str) -> Iterator[tuple[str, IntervalLength, str]]:
    """The columns of a table by which a backfill selects an interval, with its length and what it does with it."""
    backfill = stream.backfill
    if backfill is None:
        return
    for given, column in backfill.reads.items():
        source = stream.inputs[given].declared_source.source
        if isinstance(source, IcebergSource) and source.table == name:
            yield column, backfill.interval, "reads"
    if any(one.iceberg is not None and one.iceberg.table == name for one in stream.outputs.values()):
        yield backfill.column, backfill.interval, "replaces"


def _condition(field: NestedField, newest: datetime, length: IntervalLength) -> str:
    """The condition that selects the newest whole interval."""
    kept: IntervalLength = "day" if length == "hour" and isinstance(field.field_type, DateType) else length
    end = floor_time(newest, kept)
    start = floor_time(end - timedelta(microseconds=1), kept)
    first, last = (_text(field.field_type, moment) for moment in (start, end))
    return f"{field.name} >= '{first}' and {field.name} < '{last}'"


def _time(kind: IcebergType, bound: bytes) -> datetime:
    value = int(from_bytes(LongType() if not isinstance(kind, DateType) else kind, bound))
    return _midnight(days_to_date(value)) if isinstance(kind, DateType) else micros_to_timestamptz(value)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)


def _text(kind: IcebergType, moment: datetime) -> str:
    """A time as a literal of Iceberg's expressions."""
    if isinstance(kind, DateType):
        return f"{moment:%Y-%m-%d}"
    return moment.isoformat() if isinstance(kind, TimestamptzType) else moment.replace(tzinfo=None).isoformat()
