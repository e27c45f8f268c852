"""What a person rejected, and what a later reading of the same sources does with it.

A rejected batch is a range of offsets of each input. Records of topics in such a range are left out wherever a topic is
read again between offsets. Nothing distinguishes the rows of tables and files once files were rewritten or put back:
plans name the batches that come back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sluice.backfill.read_bounds import InputBound, OffsetRange, TopicBound
from sluice.ledger.batches import BatchObservation
from sluice.publication.batch_rejection import name_of


def without_rejected(
    bound: InputBound,
    rejections: Sequence[BatchObservation],
    *,
    is_of: Callable[[BatchObservation, str], bool] = lambda batch, topic: True,
) -> InputBound:
    """What is read of an input, without what a person rejected; or with the rejected batches that come back.

    Parameters
    ----------
    rejections: those of the generation whose offsets the bound has, and of those that it continues.
    is_of: whether the offsets of a batch are those of a topic as it is now, and not of an earlier one of its name.
    """
    reading = [one for one in rejections if one.start_offsets.get(bound.input) != one.end_offsets.get(bound.input)]
    if not reading:
        return bound
    if isinstance(bound, TopicBound):
        whole = bound.everything
        everything = None if whole is None else replace(whole, left_out=_parts(whole, reading, is_of))
        return replace(bound, left_out=_parts(bound, reading, is_of), everything=everything)
    return replace(bound, returning=tuple(name_of(one) for one in reading))


def _parts(
    bound: TopicBound, rejections: Sequence[BatchObservation], is_of: Callable[[BatchObservation, str], bool]
) -> Mapping[str, Mapping[int, Any]]:
    found: dict[str, dict[int, tuple[OffsetRange, ...]]] = {}
    for batch in rejections:
        starts, ends = (_offsets(offsets, bound.input) for offsets in (batch.start_offsets, batch.end_offsets))
        for topic, partitions in bound.ranges.items():
            if not is_of(batch, topic):
                continue
            for number, whole in partitions.items():
                end = int(ends.get(topic, {}).get(str(number), 0))
                first = int(starts.get(topic, {}).get(str(number), 0))
                part = OffsetRange(first=max(first, whole.first), end=min(end, whole.end))
                if part.first < part.end:
                    of_topic = found.setdefault(topic, {})
                    of_topic[number] = (*of_topic.get(number, ()), part)
    return found


def _offsets(offsets: Mapping[str, Any], name: str) -> Mapping[str, Mapping[str, int]]:
    found = offsets.get(name)
    return found if isinstance(found, Mapping) else {}
