"""The known conditions of queries, and what each leaves of a table's files, by their partitions and bounds.

Both are decided by pyiceberg's evaluators, as a scan decides them, so that a file counts when a reader would open it.

Every interval of a backfill is read by the same condition with other times. That of the newest whole interval stands
for all: its times are taken from the bounds of the table's files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import (
    _InclusiveMetricsEvaluator,
    bind,
    expression_evaluator,
    extract_field_ids,
    inclusive_projection,
)
from pyiceberg.manifest import DataFile, ManifestContent, ManifestFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import DateType, IcebergType, LongType, NestedField, TimestampType, TimestamptzType
from pyiceberg.utils.datetime import days_to_date, micros_to_timestamptz
from pyparsing import ParseBaseException

from sluice.backfill.intervals import IntervalLength, floor_time
from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.declarations.table_declaration import TableDeclaration
from sluice.errors import UsageError
from sluice.tables.catalog import catalog_refusals
from sluice.tables.manifest_reading import each_manifest

_TIMES = (DateType, TimestampType, TimestamptzType)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFilter:
    """A condition by which a table is read. origin: who reads it so, in words. columns: those that it names."""

    text: str
    origin: str
    expression: BooleanExpression
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesRead:
    """How many files a condition leaves, and how many bytes they have; of an estimate both are no whole numbers."""

    files: float = 0
    bytes: float = 0

    def __add__(self, other: FilesRead) -> FilesRead:
        return FilesRead(files=self.files + other.files, bytes=self.bytes + other.bytes)


def table_filter(schema: Schema, text: str, *, origin: str) -> TableFilter:
    """A condition in Iceberg's expression language, such as `id = 5 and day >= '2026-11-01'`.

    Parameters
    ----------
    schema: of the table that is read.
    text: the condition. origin: who reads the table so.

    Raises
    ------
    UsageError: when it is no condition on columns of the table.
    """
    try:
        expression = parse(text)
        fields = extract_field_ids(bind(schema, expression, case_sensitive=True))
    except (ParseBaseException, ValueError, TypeError) as error:
        known = ", ".join(field.name for field in schema.fields)
        raise UsageError(
            f"The condition `{text}` ({origin}) cannot be read: {error}.",
            next_step=f"Write it in Iceberg's expression language over the columns {known}; for example `id = 5 and "
            "name = 'x'`.",
        ) from error
    names = [schema.find_column_name(field) for field in sorted(fields)]
    columns = tuple(name for name in names if name is not None)
    if not columns or any("." in name for name in columns):
        raise UsageError(
            f"The condition `{text}` ({origin}) names {', '.join(columns) or 'no column'}.",
            next_step="Name columns of the table, not fields within them: rows are ordered by columns alone.",
        )
    return TableFilter(text=text, origin=origin, expression=expression, columns=columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilePruner:
    """What one condition leaves of the files of a table.

    schema: of the table. specs: its partition specs by id.
    """

    schema: Schema
    specs: Mapping[int, PartitionSpec]
    condition: TableFilter

    def judge(self) -> Callable[[DataFile], bool]:
        """Whether a scan by the condition reads a data file."""
        partitions = {spec_id: self.judge_partition(spec_id) for spec_id in self.specs}
        bounds = _InclusiveMetricsEvaluator(self.schema, self.condition.expression)
        return lambda file: partitions[file.spec_id](file) and bounds.eval(file)

    def judge_partition(self, spec_id: int) -> Callable[[DataFile], bool]:
        """Whether a scan reads files of the partition of a data file that has this spec."""
        spec = self.specs[spec_id]
        projected = inclusive_projection(self.schema, spec)(self.condition.expression)
        evaluate = expression_evaluator(Schema(*spec.partition_type(self.schema).fields), projected, True)
        return lambda file: evaluate(file.partition)


def pruner_of(table: Table, condition: TableFilter) -> FilePruner:
    """The pruner of a table for a condition."""
    return FilePruner(schema=table.schema(), specs=table.specs(), condition=condition)


def each_data_file(table: Table) -> Iterator[DataFile]:
    """Each data file of the newest snapshot, in the order of its manifests. A manifest's are dropped once it is read.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    newest = table.current_snapshot()

    def read(manifest: ManifestFile) -> list[DataFile]:
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        return [entry.data_file for entry in entries]

    with catalog_refusals(f"read the manifests of {'.'.join(table.name())}"):
        listed = newest.manifests(table.io) if newest is not None else []
        manifests = [one for one in listed if one.content is ManifestContent.DATA]
        for files in each_manifest(read, manifests):
            yield from files


def read_data_files(table: Table) -> tuple[DataFile, ...]:
    """All data files of the newest snapshot at once.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    return tuple(each_data_file(table))


def measure_filters(table: Table, filters: Sequence[TableFilter]) -> tuple[FilesRead, ...]:
    """What each condition leaves of the files of the newest snapshot, which are read once.

    Raises
    ------
    LakehouseError: when a manifest cannot be read.
    """
    judges = [pruner_of(table, one).judge() for one in filters]
    files, sizes = [0] * len(judges), [0] * len(judges)
    for file in each_data_file(table) if judges else ():
        for place, is_read in enumerate(judges):
            if is_read(file):
                files[place] += 1
                sizes[place] += file.file_size_in_bytes
    return tuple(FilesRead(files=count, bytes=size) for count, size in zip(files, sizes, strict=True))


def files_read(table: Table, files: Sequence[DataFile], condition: TableFilter) -> FilesRead:
    """What a condition leaves of some files of a table."""
    is_read = pruner_of(table, condition).judge()
    return total_of(file for file in files if is_read(file))


def total_of(files: Iterable[DataFile]) -> FilesRead:
    """The number of some files, and their bytes."""
    found = FilesRead()
    for file in files:
        found += FilesRead(files=1, bytes=file.file_size_in_bytes)
    return found


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
