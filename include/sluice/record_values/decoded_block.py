"""What becomes of a block of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sluice.record_values.arrow_columns import Column


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedBlock:
    """The columns of a block of values, and why some are rejected.

    columns: one for each declared column, of the length of the block; null where a value is rejected.
    rejections: the reason by the index of a rejected value.
    undeclared: how often each field was sent that no column takes.
    """

    columns: Sequence[Column]
    rejections: dict[int, str] = field(default_factory=dict)
    undeclared: Mapping[str, int] = field(default_factory=dict)
