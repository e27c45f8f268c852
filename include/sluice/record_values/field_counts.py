"""Fields of values that no column takes: which there are, how often each was sent, and what becomes of such values.

A sender that adds a field is seen on the first day, instead of when somebody misses it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

from sluice.declarations.column_types import ColumnType, ListType, MapType, StructType
from sluice.record_values.rejection import Rejection, RejectionKind

OTHERS = "(others)"
"""Stands for the fields beyond the limit, here and in the ledger."""

_MOST_NAMES = 50
"""Of each block: a sender whose keys are data, such as ids, sends a new field with each value."""

_LONGEST_NAME = 200

_Object: TypeAlias = Mapping[str, Any]


def undeclared_fields(
    objects: Sequence[_Object], columns: Mapping[str, ColumnType], *, with_nulls: bool = True
) -> Counter[str]:
    """How often each field was sent that no column takes. A field in an object is named with the path to it.

    Parameters
    ----------
    with_nulls: whether a field that was sent as null counts.
    """
    counts: Counter[str] = Counter()
    _count(objects, columns, "", counts, with_nulls=with_nulls)
    return +counts


def _count(
    objects: Sequence[_Object],
    declared: Mapping[str, ColumnType],
    path: str,
    counts: Counter[str],
    *,
    with_nulls: bool,
) -> None:
    by_names = Counter(map(tuple, objects))  # most objects have the same keys
    for name in {name for names in by_names for name in names if name not in declared}:
        times = sum(times for names, times in by_names.items() if name in names)
        nulls = 0 if with_nulls else sum(name in one and one[name] is None for one in objects)
        counts[f"{path}{name}"] += times - nulls
    for name, kind in declared.items():
        inner = struct_in(kind)
        if inner is not None:
            children = list(_objects_in([one[name] for one in objects if name in one], kind))
            _count(children, dict(inner.fields), f"{path}{name}.", counts, with_nulls=with_nulls)


def struct_in(kind: ColumnType) -> StructType | None:
    """The struct that a type is, or that its elements or values are."""
    match kind:
        case StructType():
            return kind
        case ListType(element):
            return struct_in(element)
        case MapType(value=value):
            return struct_in(value)
    return None


def _objects_in(values: Iterable[Any], kind: ColumnType) -> Iterable[_Object]:
    """The objects in values of a type."""
    present = [value for value in values if value is not None]
    match kind:
        case ListType(element):
            return _objects_in(chain.from_iterable(present), element)
        case MapType(value=value):
            return _objects_in(chain.from_iterable(one.values() for one in present), value)
    return present


def undeclared_rejection(names: Iterable[str], *, are_data: bool) -> Rejection:
    """Why a value with such fields is rejected. are_data: whether the names are its own, and not those of a schema."""
    detail = ", ".join(f"`{name}`" for name in bounded_counts(Counter(names)))
    return Rejection(kind=RejectionKind.UNDECLARED, detail=detail, quotes_data=are_data)


def bounded_counts(counts: Counter[str]) -> dict[str, int]:
    """The most frequent fields, with names that are not too long; the sum of all others under `OTHERS`."""
    kept = {name[:_LONGEST_NAME]: times for name, times in counts.most_common(_MOST_NAMES)}
    left = counts.total() - sum(kept.values())
    return kept | ({OTHERS: left} if left else {})


def counts_text(counts: Mapping[str, int]) -> str | None:
    """Counts as the text that a Spark column holds; None when there are none."""
    return json.dumps(bounded_counts(Counter(counts))) if counts else None


def counts_of_texts(texts: Iterable[str]) -> dict[str, int]:
    """The sum of such texts."""
    total: Counter[str] = Counter()
    for text in texts:
        total.update(json.loads(text))
    return dict(total)
