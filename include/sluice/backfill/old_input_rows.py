"""Says which rows are missing in a table that removes its old rows, where a stream reads it or looks rows up in it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from sluice.backfill.intervals import Interval
from sluice.backfill.read_bounds import ShortenedLookup, TableBound
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.tables.declared_tables import load_table
from sluice.tables.removed_rows import RemovedRows, removed_from


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
