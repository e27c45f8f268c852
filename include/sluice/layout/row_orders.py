"""The orders that rows of a table could have, and what conditions would leave of a table's files in each.

A z-order follows Iceberg: of each value eight bytes that compare as the value does, their bits by turns. Values of very
different size so count differently, as they do in a rewrite by Spark.

Source: org.apache.iceberg.util.ZOrderByteUtils and org.apache.iceberg.spark.actions.SparkZOrderUDF, Iceberg 1.12.

The sampled rows of each group are put in the order and cut into as many files as a rewrite would make, and the bounds
of each are judged as a scan judges them. Bounds are kept and cut as the table's properties say.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyiceberg.conversions import to_bytes
from pyiceberg.io.pyarrow import MetricModeTypes, StatisticsCollector, compute_statistics_plan
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.table import Table
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import BinaryType, PrimitiveType, StringType
from pyiceberg.utils.truncate import truncate_upper_bound_binary_string, truncate_upper_bound_text_string

from sluice.layout.pruning import FilesRead, TableFilter, pruner_of
from sluice.layout.row_sample import FileGroup, RowSample, SampledGroup

MOST_COLUMNS = 4
"""Of so many columns pairs and curves are tried: twelve pairs and ten curves."""

_VALUE_BYTES = 8
_SIGN = np.uint64(1 << 63)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RowOrder:
    """An order of rows: as they lie, without columns; by columns, one after another; or along a curve through them."""

    columns: tuple[str, ...] = ()
    is_z_order: bool = False
    descending: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.columns:
            return "as the rows lie"
        shown = [f"{name} descending" if name in self.descending else name for name in self.columns]
        return f"z-order of {' and '.join(shown)}" if self.is_z_order else f"sorted by {', then '.join(shown)}"

    @property
    def declaration(self) -> dict[str, Any]:
        """The keys of a table's declaration that ask for it."""
        if self.is_z_order:
            return {"maintenance": {"compaction": {"strategy": "z_order", "z_order": list(self.columns)}}}
        if not self.columns:
            return {"maintenance": {"compaction": {"strategy": "binpack"}}}
        return {
            "sort_order": [{"column": name} for name in self.columns],
            "maintenance": {"compaction": {"strategy": "sort"}},
        }

    def places(self, rows: pa.Table) -> NDArray[np.int64]:
        """The numbers of some rows in this order."""
        if not self.columns:
            return np.arange(rows.num_rows)
        if not self.is_z_order:
            keys: list[tuple[str, Literal["ascending", "descending"]]] = [
                (name, "descending" if name in self.descending else "ascending") for name in self.columns
            ]
            found = pc.sort_indices(rows, sort_keys=keys)  # where nulls go makes no difference to bounds
            return np.asarray(found.to_numpy(), dtype=np.int64)
        return np.argsort(_interleaved([_ordered_bytes(rows.column(name)) for name in self.columns]), kind="stable")


def possible_orders(columns: Sequence[str], *, z_orderable: Collection[str]) -> Iterator[RowOrder]:
    """The orders to try, the plainest first.

    Parameters
    ----------
    columns: by which queries filter, the most frequent first.
    z_orderable: those by which Iceberg z-orders rows.
    """
    yield from (RowOrder(columns=(name,)) for name in columns)
    first = columns[:MOST_COLUMNS]
    yield from (RowOrder(columns=pair) for pair in permutations(first, 2))
    fit = [name for name in first if name in z_orderable]
    for count in (2, 3):
        yield from (RowOrder(columns=some, is_z_order=True) for some in combinations(fit, count))


def _interleaved(values: Sequence[NDArray[np.uint8]]) -> NDArray[Any]:
    """The bits of some values by turns, as texts of bytes that compare as Iceberg's do."""
    bits = np.stack([np.unpackbits(one, axis=1) for one in values], axis=2)
    packed = np.packbits(bits.reshape(len(bits), -1), axis=1)
    return np.ascontiguousarray(packed).view(f"S{packed.shape[1]}").ravel()


def _ordered_bytes(column: pa.ChunkedArray[Any]) -> NDArray[np.uint8]:
    """Eight bytes of each value that compare as the values do; of a null all are zero."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _first_bytes([None if one is None else one.encode() for one in column.to_pylist()])
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
        return _first_bytes(column.to_pylist())
    if pa.types.is_floating(kind):
        numbers = _filled(column.cast(pa.float64()))
        bits = numbers.view(np.uint64)
        ordered = np.where(bits >> np.uint64(63) == 1, ~bits, bits ^ _SIGN)
    else:
        numbers = _filled(_whole_numbers(column))
        ordered = numbers.view(np.uint64) ^ _SIGN
    ordered[np.asarray(column.is_null().to_numpy())] = 0
    return ordered.astype(">u8").view(np.uint8).reshape(-1, _VALUE_BYTES)


def _filled(column: Any) -> NDArray[Any]:
    """Numbers, with a zero in the place of each null."""
    return np.array(column.fill_null(0).to_numpy())


def _whole_numbers(column: pa.ChunkedArray[Any]) -> pa.ChunkedArray[Any]:
    """Whole numbers for values: of times the seconds since 1970, as Spark casts them."""
    kind = column.type
    if pa.types.is_date(kind):
        column = column.cast(pa.timestamp("s"))
    if not pa.types.is_timestamp(column.type):
        return column.cast(pa.int64())
    per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[column.type.unit]
    seconds: pa.ChunkedArray[Any] = pc.divide(column.cast(pa.int64()), per_second)
    return seconds


def _first_bytes(values: Sequence[bytes | None]) -> NDArray[np.uint8]:
    cut = b"".join((one or b"")[:_VALUE_BYTES].ljust(_VALUE_BYTES, b"\0") for one in values)
    return np.frombuffer(cut, dtype=np.uint8).reshape(-1, _VALUE_BYTES)


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
