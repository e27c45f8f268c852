"""The orders that rows of a table could have, and the places of some rows in each. Pure.

A z-order follows Iceberg: of each value eight bytes that compare as the value does, their bits by turns. Values of very
different size so count differently, as they do in a rewrite by Spark.

Source: org.apache.iceberg.util.ZOrderByteUtils and org.apache.iceberg.spark.actions.SparkZOrderUDF, Iceberg 1.12.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

MOST_COLUMNS = 4
"""Of so many columns pairs and curves are tried: twelve pairs and ten curves."""

_VALUE_BYTES = 8
_SIGN = np.uint64(1 << 63)


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
