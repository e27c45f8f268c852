"""Whether a table is partition-aligned with intervals of time: no file then holds rows of two intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from sluice.declarations.table_declaration import TableDeclaration

_ALIGNED_WITH: Mapping[str, frozenset[str]] = {
    "hour": frozenset({"identity", "hour"}),
    "day": frozenset({"identity", "hour", "day"}),
    "month": frozenset({"identity", "hour", "day", "month"}),
}
"""The transforms of a partition that never put the values of two intervals of a length into one file."""


def is_partition_aligned(table: TableDeclaration, column: str, length: Literal["hour", "day", "month"]) -> bool:
    """Whether each file that is written into a table holds rows of one interval alone, by the table's partitions."""
    return any(part.column == column and part.transform in _ALIGNED_WITH[length] for part in table.partitioning)
