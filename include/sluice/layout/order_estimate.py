"""Estimates what conditions would leave of a table's files if its rows had another order.

The sampled rows of each group are put in the order and cut into as many files as a rewrite would make, and the bounds
of each are judged as a scan judges them. Bounds are kept and cut as the table's properties say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import MetricModeTypes, StatisticsCollector, compute_statistics_plan
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import BinaryType, PrimitiveType, StringType
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string, truncate_upper_bound_text_string

from sluice.layout.pruning import FilesRead, TableFilter, pruner_of
from sluice.layout.row_orders import RowOrder
from sluice.layout.row_sample import FileGroup, RowSample, SampledGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderEstimate:
    """What each condition would leave if the rows had an order; in the order of the conditions."""

    order: RowOrder
    read: tuple[FilesRead, ...]

    @property
    def bytes(self) -> float:
        """What all conditions together would leave."""
        return sum(one.bytes for one in self.read)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judged:
    """A condition. is_read: whether it leaves a file. is_selected: whether it selects the partition of a file.

    files, bytes: of all groups that it selects, the files that a rewrite makes of them.
    """

    is_read: Callable[[DataFile], bool]
    is_selected: Callable[[DataFile], bool]
    files: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderEstimator:
    """Estimates orders of a table's rows.

    groups: in which a rewrite would write all files. sample: rows of some of them.
    """

    table: Table
    groups: Sequence[FileGroup]
    sample: RowSample
    filters: Sequence[TableFilter]

    def estimates(self, orders: Sequence[RowOrder]) -> Iterator[OrderEstimate]:
        """The estimate of each order."""
        judged = [self._judged(condition) for condition in self.filters]
        collectors = self._collectors()
        for order in orders:
            new = [(one.group, tuple(_new_files(one, order, collectors))) for one in self.sample.groups]
            yield OrderEstimate(order=order, read=tuple(_read_of(one, new) for one in judged))

    def _judged(self, condition: TableFilter) -> _Judged:
        pruner = pruner_of(self.table, condition)
        is_selected = pruner.judge_partition(self.table.spec().spec_id)
        selected = [group for group in self.groups if is_selected(group.files[0])]
        return _Judged(
            is_read=pruner.judge(),
            is_selected=is_selected,
            files=sum(group.new_files for group in selected),
            bytes=sum(group.bytes for group in selected),
        )

    def _collectors(self) -> Sequence[StatisticsCollector]:
        """Which bounds the table keeps, of the columns that conditions name."""
        named = {name for condition in self.filters for name in condition.columns}
        plan = compute_statistics_plan(self.table.schema(), self.table.properties)
        return [one for one in plan.values() if one.column_name in named]


def _read_of(judged: _Judged, new: Sequence[tuple[FileGroup, Sequence[DataFile]]]) -> FilesRead:
    """What a condition leaves of all groups, by the share that it leaves of the sampled ones."""
    seen = [(group, files) for group, files in new if judged.is_selected(group.files[0])]
    if not seen:
        return FilesRead()
    left = [(group, sum(map(judged.is_read, files)) / len(files)) for group, files in seen]
    files = sum(group.new_files * share for group, share in left) / sum(group.new_files for group, _ in left)
    size = sum(group.bytes * share for group, share in left) / sum(group.bytes for group, _ in left)
    return FilesRead(files=judged.files * files, bytes=judged.bytes * size)


def _new_files(sampled: SampledGroup, order: RowOrder, collectors: Sequence[StatisticsCollector]) -> Iterator[DataFile]:
    """The files that a rewrite would make, as their manifest entries. Where only some rows are known, each file reaches
    to the first row of the next one: what lies between two known rows is in one of both."""
    rows = sampled.rows.take(order.places(sampled.rows))
    edges = np.linspace(0, rows.num_rows, sampled.group.new_files + 1).astype(int).tolist()
    overlap = 0 if sampled.is_whole else 1
    for start, end in pairwise(edges):
        yield _file_of(rows.slice(start, end - start + overlap), sampled.group.files[0], collectors)


def _file_of(rows: pa.Table, beside: DataFile, collectors: Sequence[StatisticsCollector]) -> DataFile:
    """A file with some rows in the partition of another one."""
    known = [(one, rows.column(one.column_name)) for one in collectors if one.column_name in rows.column_names]
    counted = [pair for pair in known if pair[0].mode.type is not MetricModeTypes.NONE]
    bounded = [(one.field_id, *_bounds(one, column)) for one, column in counted if _has_bounds(one)]
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path="",
        file_format=FileFormat.PARQUET,
        partition=beside.partition,
        record_count=rows.num_rows,
        file_size_in_bytes=0,
        value_counts={one.field_id: len(column) for one, column in counted},
        null_value_counts={one.field_id: column.null_count for one, column in counted},
        lower_bounds={field: lower for field, lower, _ in bounded if lower is not None},
        upper_bounds={field: upper for field, _, upper in bounded if upper is not None},
    )
    file.spec_id = beside.spec_id
    return file


def _has_bounds(collector: StatisticsCollector) -> bool:
    return collector.mode.type in (MetricModeTypes.FULL, MetricModeTypes.TRUNCATE)


def _bounds(collector: StatisticsCollector, column: pa.ChunkedArray[Any]) -> tuple[bytes | None, bytes | None]:
    """The bounds of a column as a writer keeps them; none of values without an order."""
    kind = collector.iceberg_type
    try:
        found = pc.min_max(column)
    except pa.ArrowNotImplementedError:
        return None, None
    least, most = found["min"].as_py(), found["max"].as_py()
    if least is None or most is None or not isinstance(kind, PrimitiveType):
        return None, None
    if (length := collector.mode.length) is None:
        return to_bytes(kind, least), to_bytes(kind, most)
    lower: Any = TruncateTransform(width=length).transform(kind)(least)
    return to_bytes(kind, lower), _cut_upwards(kind, most, length)


def _cut_upwards(kind: PrimitiveType, most: Any, length: int) -> bytes | None:
    """An upper bound of so many signs that is not below a value; none where no sign is above all of its signs."""
    if isinstance(kind, StringType):
        text = truncate_upper_bound_text_string(most, length)
        return None if text is None else to_bytes(kind, text)
    if isinstance(kind, BinaryType):
        return truncate_upper_bound_binary_string(most, length)
    return to_bytes(kind, most)
