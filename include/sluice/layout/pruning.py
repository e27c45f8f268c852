"""What a condition of a query leaves of a table's files, by their partitions and the bounds of their columns.

Both are decided by pyiceberg's evaluators, as a scan decides them, so that a file counts when a reader would open it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

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
from pyparsing import ParseBaseException

from sluice.errors import UsageError
from sluice.tables.catalog import catalog_refusals
from sluice.tables.manifest_reading import each_manifest


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
