"""Which columns of a table hold what a stream masks: of the tables that it writes, and of those behind them."""

from __future__ import annotations

from collections.abc import Iterator

from sluice.declarations.column_types import kind_of
from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.quarantine_table import all_tables
from sluice.declarations.stream_declaration import StreamDeclaration

_BYTES = ("binary", "fixed")


def masked_columns_of_table(declarations: Declarations, table: str) -> frozenset[str]:
    """The columns whose values are not shown, in lower case.

    A column is masked when a stream that its rows came through masks one of its name, as a whole also for a field of
    it. Beside a masked column every column of bytes is, because the masked field may lie in it unseen.
    """
    masked = {name for stream in _led_through(declarations, table) for name in stream.masked_names}
    declared = all_tables(declarations).get(table)
    if not masked or declared is None:
        return frozenset(masked)
    of_bytes = {column.name.lower() for column in declared.columns if kind_of(column.column_type) in _BYTES}
    return frozenset(masked | of_bytes)


def _led_through(declarations: Declarations, table: str) -> Iterator[StreamDeclaration]:
    """The streams that write a table, and those that write what they read, and so on; a circle is walked once."""
    tables, seen = [table], {table}
    for reached in tables:  # it grows while it is walked through
        for stream in declarations.streams.values():
            declared = stream.declaration
            if reached in declared.tables_written or (declared.quarantine and reached == declared.quarantine_table):
                yield declared
                fresh = [one for one in declared.tables_read if one not in seen]
                seen |= set(fresh)
                tables += fresh
