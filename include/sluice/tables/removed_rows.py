"""What a table says of rows that it keeps no longer: until which time they were removed.

The snapshot that removes such rows says it, for those who walk the history, and a property of the table does, because
that snapshot expires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Any

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from sluice.stored_keys import REMOVED_BEFORE

if TYPE_CHECKING:
    from pyiceberg.table import Table


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovedRows:
    """The rows that were removed: those of files of which every row has an earlier time.

    column: the date or time of a row. before: all rows from then on are still there.
    agreed: how old rows are, by this column, of which a person agreed that they go; unset for none.
    field_id: of the column, whatever name it has later; unset in what earlier versions have written.
    """

    column: str
    before: AwareDatetime
    agreed: timedelta | None = None
    field_id: int | None = None

    def entries(self) -> Mapping[str, str]:
        """The entry of a snapshot's summary, or of the properties of a table."""
        return {REMOVED_BEFORE: _TEXT.dump_json(self).decode()}

    def __str__(self) -> str:
        before = f"{self.before.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        return f"rows whose {self.column} is before {before} were removed as too old"


_TEXT = TypeAdapter(RemovedRows)


def removed_rows(entries: Mapping[str, Any]) -> RemovedRows | None:
    """What the entries of a snapshot's summary, or the properties of a table, say of removed rows; none without.

    Text that is none of ours counts as nothing said: another program has written it.
    """
    text = entries.get(REMOVED_BEFORE)
    if text is None:
        return None
    try:
        return _TEXT.validate_json(text)
    except ValidationError:
        return None


def removed_from(table: Table) -> RemovedRows | None:
    """What a table says of rows that it has removed, by the name that the column has now; none without. The name of one
    that was dropped is that of no column, also where another column has its name."""
    said = removed_rows(table.properties)
    if said is None or said.field_id is None:
        return said
    name = table.schema().find_column_name(said.field_id)
    return replace(said, column=f"{said.column} (dropped)" if name is None else name)
