"""Rejects values in which a change feed says that it does not have one.

PostgreSQL's log does not repeat a large value (TOAST) that an update has left as it was, and Debezium then sends a
marker in its place. Taken for text, it would overwrite the value.

Source: https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-toasted-values
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from sluice.record_values.arrow_columns import DecodedBlock
from sluice.record_values.rejection import Rejection, RejectionKind

MARKER = "__debezium_unavailable_value"
"""Debezium's default for `unavailable.value.placeholder`."""

_DETAIL = "Debezium sent its marker of an unchanged large value; with REPLICA IDENTITY FULL it sends the value"


def without_unavailable(block: DecodedBlock, names: Sequence[str]) -> DecodedBlock:
    """The same block; values with the marker as a text or as bytes, also inside of other types, are rejected.

    Parameters
    ----------
    names: of the columns, as they were sent.
    """
    found: dict[int, Rejection] = {}
    for name, column in zip(names, block.columns, strict=True):
        for path, index in _marked(column, name):
            if index not in block.rejections:
                rejection = Rejection(kind=RejectionKind.UNAVAILABLE, path=path, detail=_DETAIL, quotes_data=False)
                found.setdefault(index, rejection)
    if not found:
        return block
    length = len(block.columns[0])
    kept = pa.array([None if index in found else index for index in range(length)], pa.int64())
    columns = [column.take(kept) for column in block.columns]
    return replace(block, columns=columns, rejections={**block.rejections, **found})


def _marked(column: Any, path: str) -> Iterator[tuple[str, int]]:
    """The path and the index of each marker in a column."""
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        marker: Any = pa.scalar(MARKER if pa.types.is_string(kind) else MARKER.encode(), kind)
        is_marked: Any = pc.equal(column, marker)
        if pc.any(is_marked).as_py():
            for index in pc.indices_nonzero(pc.fill_null(is_marked, pa.scalar(value=False))).to_pylist():
                yield path, index
    elif pa.types.is_struct(kind):
        for field, inner in zip(kind, column.flatten(), strict=True):
            yield from _marked(inner, f"{path}.{field.name}")
    elif pa.types.is_list(kind):
        yield from _within(column, f"{path}.element")
    elif pa.types.is_map(kind):
        for part, suffix in ((column.keys, "key"), (column.items, "value")):
            yield from _within(pa.ListArray.from_arrays(column.offsets, part), f"{path}.{suffix}")


def _within(lists: Any, path: str) -> Iterator[tuple[str, int]]:
    found = list(_marked(lists.flatten(), path))
    if found:
        parents = pc.list_parent_indices(lists).to_pylist()
        yield from ((inner, parents[index]) for inner, index in found)
