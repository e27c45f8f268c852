"""What a backfill does not read of its inputs: old rows that their tables have removed, and what a person rejected.

A rejected batch is a range of offsets of each input. Records of topics in such a range are left out wherever a topic is
read again between offsets. Nothing distinguishes the rows of tables and files once files were rewritten or put back:
plans name the batches that come back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.backfill.intervals import Interval
from sluice.backfill.read_bounds import InputBound, OffsetRange, ShortenedLookup, TableBound, TopicBound
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.ledger.batches import BatchObservation
from sluice.publication.batch_rejection import name_of
from sluice.tables.declared_tables import load_table
from sluice.tables.table_observation import RemovedRows, removed_from


def shortened_lookups(declaration: StreamDeclaration, catalog: Catalog) -> Iterator[ShortenedLookup]:
    """The static inputs of a stream whose tables have removed old rows. Not those that read a fixed state.

    Raises
    ------
    LakehouseError: when a table cannot be loaded.
    """
    for name, declared in declaration.inputs.items():
        source = declared.declared_source.source
        if declared.is_stream or not isinstance(source, IcebergSource) or source.is_fixed:
            continue
        table = load_table(catalog, source.table)
        removed = removed_from(table) if table is not None else None
        if removed is not None:
            yield ShortenedLookup(input=name, table=source.table, removed=removed)


def without_old_rows(bound: TableBound, table: Table, *, wide: Interval) -> TableBound:
    """The bound of a table with what is missing in it, where rows were removed because they were too old.

    Parameters
    ----------
    wide: the interval with its margin: of one that begins before what was removed, rows are missing.
    """
    removed = removed_from(table)
    if removed is None:
        return bound
    bound = replace(bound, has_lost_rows=True)
    if bound.column != removed.column:
        return bound if bound.problem else _of_another_time(bound, removed)
    bound = replace(bound, complete_after=removed.before)
    if bound.problem or wide.start >= removed.before:
        return bound
    choose = f"Choose an interval that begins, with its margin, after {removed.before:%Y-%m-%d %H:%M:%S} UTC."
    return replace(bound, problem=f"of {bound.table}, {removed}.", is_gone=True, way_out=choose)


def _of_another_time(bound: TableBound, removed: RemovedRows) -> TableBound:
    """Which rows are gone is known by the column of the retention alone: a row that is old there may be young here."""
    read = "the input is read whole" if bound.column is None else f"the input is read by {bound.column}"
    return replace(
        bound,
        problem=f"of {bound.table}, {removed}, and {read}.",
        is_gone=True,
        way_out=f"Declare `backfill: {{reads: {{{bound.input}: {removed.column}}}}}`, if that time says to which "
        "interval a row belongs; without such a time the interval cannot be computed again.",
    )


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
