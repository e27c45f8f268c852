"""Says which rows of an interval are missing in an input table that removes its old rows."""

from __future__ import annotations

from dataclasses import replace

from pyiceberg.table import Table

from sluice.backfill.intervals import Interval
from sluice.backfill.read_bounds import TableBound
from sluice.tables.removed_rows import RemovedRows, removed_from


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
