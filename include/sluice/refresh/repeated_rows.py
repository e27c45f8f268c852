"""The rows that readers of a table get twice when a refresh is taken back.

What the stream has appended since the refresh lies in the history of the table, and what it appends again afterwards
does too. Whoever reads the appended rows reads those of both times, wherever it stands now.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

from pyiceberg.catalog import Catalog

from sluice.backfill.backfill_plan import TargetReader
from sluice.backfill.observe_backfill import readers_of
from sluice.declarations.loaded_declarations import Declarations
from sluice.ledger.refreshes import RefreshObservation
from sluice.operations import Refusal, RefusalReason
from sluice.publication.marks import entries_of, history_of_main
from sluice.refresh.swap_content import swap_key
from sluice.sources.iceberg_positions import step_of
from sluice.stored_keys import PUBLICATION_KEY
from sluice.tables.declared_tables import require_table


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedRows:
    """Rows that were appended to a table since a refresh, and who reads them. is_known: whether they were counted."""

    table: str
    rows: int
    is_known: bool
    readers: tuple[TargetReader, ...]

    @property
    def are_read(self) -> bool:
        """Whether somebody gets a row twice, or may."""
        return bool(self.readers) and (self.rows > 0 or not self.is_known)

    @property
    def names(self) -> tuple[str, ...]:
        """Stream and input of each reader."""
        return tuple(f"{reader.stream} (input {reader.input})" for reader in self.readers)

    @property
    def sentence(self) -> str:
        """What the readers get twice."""
        rows = f"{self.rows:,} rows were" if self.is_known else f"At least {self.rows:,} rows were"
        return (
            f"{rows} appended to {self.table} since the refresh, and are appended again afterwards: "
            f"{', '.join(self.names)} gets them a second time."
        )

    def refusal(self, stream: str) -> Refusal:
        """Why the refresh is not taken back without the word of a person."""
        return Refusal(
            reason=RefusalReason.READERS_REPEAT,
            sentence=self.sentence,
            next_step=f"Refresh {stream} again instead. If the readers may get these rows twice, or are refreshed "
            "afterwards, repeat it with `--allow-repeated`.",
        )


def repeated_rows(
    catalog: Catalog, declarations: Declarations, table: str, refresh: RefreshObservation
) -> RepeatedRows:
    """What the readers of a table would get twice.

    Raises
    ------
    LakehouseError: when the table cannot be read.
    """
    history = tuple(history_of_main(require_table(catalog, table)))
    key = swap_key(refresh)
    since = tuple(takewhile(lambda snapshot: entries_of(snapshot).get(PUBLICATION_KEY) != key, history))
    return RepeatedRows(
        table=table,
        rows=sum(step_of(snapshot).appended_rows for snapshot in since),
        is_known=len(since) < len(history),
        readers=tuple(one for one in readers_of(declarations, table) if one.on_overwrite is not None),
    )
