"""What is known of a block of values beside its columns: the fields that no column takes, and what wrote the values.

It travels from Spark's Python workers to the driver as a text in the first row of each block.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from sluice.record_values.schemas import MAGIC_BYTE, PREFIX_BYTES
from sluice.record_values.unknown_fields import bounded_counts

if TYPE_CHECKING:
    Column: TypeAlias = pa.Array[Any]
else:
    Column = pa.Array

_MOST_SCHEMAS = 20
"""Of a block; only a sender that registers a schema for each value has more."""

_MOST_NAMES, _LONGEST_NAME = 1_000, 200
"""Of the first line of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenValues:
    """How many values were written with a schema, and how many of them are rejected."""

    values: int
    rejected: int = 0

    def __add__(self, other: WrittenValues) -> WrittenValues:
        return WrittenValues(values=self.values + other.values, rejected=self.rejected + other.rejected)


WrittenAs = Mapping[str, WrittenValues]
"""By the id of the schema in a registry, or by the names in the first line of a file as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockFacts:
    """What is known of values beside their columns.

    undeclared: how often each field was sent that no column takes.
    """

    undeclared: Mapping[str, int] = field(default_factory=dict)
    written_as: WrittenAs = field(default_factory=dict)


def facts_text(facts: BlockFacts) -> str | None:
    """Facts as the text that a Spark column holds; None when there are none."""
    if not facts.undeclared and not facts.written_as:
        return None
    written = {name: [one.values, one.rejected] for name, one in facts.written_as.items()}
    return json.dumps([bounded_counts(Counter(facts.undeclared)), written])


def facts_of_texts(texts: Iterable[str]) -> BlockFacts:
    """The sum of such texts."""
    counts: Counter[str] = Counter()
    written: dict[str, WrittenValues] = {}
    for text in texts:
        undeclared, by_schema = json.loads(text)
        counts.update(undeclared)
        for name, (values, rejected) in by_schema.items():
            more = WrittenValues(values=values, rejected=rejected)
            written[name] = written[name] + more if name in written else more
    return BlockFacts(undeclared=dict(counts), written_as=written)


def written_by_id(block: Column, rejected: Iterable[int]) -> WrittenAs:
    """How many values of a block have the id of each schema in front, and how many of those are rejected.

    Parameters
    ----------
    rejected: the indexes of the rejected values.
    """
    heads = _heads(block)
    counts = Counter({one["values"]: one["counts"] for one in pc.value_counts(heads.drop_null()).to_pylist()})
    wrong = Counter(heads.take(pa.array(list(rejected), pa.int64())).drop_null().to_pylist())
    return {
        str(int.from_bytes(head[1:], "big")): WrittenValues(values=values, rejected=wrong[head])
        for head, values in counts.most_common(_MOST_SCHEMAS)
    }


def written_by_header(names: Iterable[str | None], *, values: int, rejected: int) -> WrittenAs:
    """The lines of a file by the names in its first line, as JSON."""
    kept = [(name or "")[:_LONGEST_NAME] for name in names][:_MOST_NAMES]
    return {json.dumps(kept): WrittenValues(values=values, rejected=rejected)}


def _heads(block: Any) -> Any:
    """The prefix of each value; null for one without."""
    magic: Any = MAGIC_BYTE
    least, none = pa.scalar(PREFIX_BYTES), pa.scalar(None, pa.binary())
    are_framed = pc.and_(pc.starts_with(block, magic), pc.greater_equal(pc.binary_length(block), least))
    return pc.if_else(are_framed, pc.binary_slice(block, 0, PREFIX_BYTES), none)
