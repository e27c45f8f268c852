"""Rejects values in which a change feed says that it does not have one.

PostgreSQL's log does not repeat a large value (TOAST) that an update has left as it was, and Debezium then sends a
marker in its place. Taken for a value, it would overwrite the value.

Source: https://debezium.io/documentation/reference/stable/connectors/postgresql.html#postgresql-toasted-values and
`UnchangedToastedPlaceholder` of https://github.com/debezium/debezium
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import replace
from hashlib import md5
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from sluice.record_values.arrow_columns import DecodedBlock
from sluice.record_values.rejection import Rejection, RejectionKind

MARKER = "__debezium_unavailable_value"
"""Debezium's default for `unavailable.value.placeholder`."""

_BYTES = MARKER.encode()
_TEXTS = (
    MARKER,
    b64encode(_BYTES).decode(),  # `binary.handling.mode: base64`, and `base64-url-safe`, which is the same here
    _BYTES.hex(),
    str(UUID(bytes=md5(_BYTES, usedforsecurity=False).digest(), version=3)),  # in an array of UUIDs
)
_BINARIES = (
    _BYTES,
    bytes.fromhex(
        "0101000020E6100000000000FC83D797C1000000FC83D797C1"
    ),  # as the WKB of a geometry: a point at -99999999
    bytes.fromhex("0101000020E61000000C21E7FDFF7F66401842CEFBFF7F5640"),  # of a geography: at 179.999999, 89.999999
)
"""In which other forms Debezium sends it: by how binary columns are sent, and for the types that take no text. An array
of numbers gets the bytes of the marker, each as a number."""

_DETAIL = "Debezium sent its marker of an unchanged large value; with REPLICA IDENTITY FULL it sends the value"


def without_unavailable(block: DecodedBlock, names: Sequence[str]) -> DecodedBlock:
    """The same block; values with the marker in any of its forms, also inside of other types, are rejected.

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
        markers: Any = pa.array(_TEXTS if pa.types.is_string(kind) else _BINARIES, kind)
        is_marked: Any = pc.is_in(column, value_set=markers)
        if pc.any(is_marked).as_py():
            for index in pc.indices_nonzero(pc.fill_null(is_marked, pa.scalar(value=False))).to_pylist():
                yield path, index
    elif pa.types.is_struct(kind):
        for field, inner in zip(kind, column.flatten(), strict=True):
            yield from _marked(inner, f"{path}.{field.name}")
    elif pa.types.is_list(kind) and pa.types.is_integer(kind.value_type):
        yield from ((path, index) for index in _marked_numbers(column))
    elif pa.types.is_list(kind):
        yield from _within(column, f"{path}.element")
    elif pa.types.is_map(kind):
        for part, suffix in ((column.keys, "key"), (column.items, "value")):
            yield from _within(pa.ListArray.from_arrays(column.offsets, part), f"{path}.{suffix}")


def _marked_numbers(lists: Any) -> Iterator[int]:
    is_as_long: Any = pc.equal(pc.list_value_length(lists), pa.scalar(len(_BYTES), pa.int32()))
    for index in pc.indices_nonzero(pc.fill_null(is_as_long, pa.scalar(value=False))).to_pylist():
        if lists[index].as_py() == list(_BYTES):
            yield index


def _within(lists: Any, path: str) -> Iterator[tuple[str, int]]:
    found = list(_marked(lists.flatten(), path))
    if found:
        parents = pc.list_parent_indices(lists).to_pylist()
        yield from ((inner, parents[index]) for inner, index in found)
