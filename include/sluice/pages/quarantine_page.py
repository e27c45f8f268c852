"""The page of a stream's quarantine: its newest records, read from the table within bounds of time and size."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog

from sluice.declarations.loaded_declarations import LoadedTable
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.pages.bounded_looks import BoundedLooks
from sluice.pages.masked_values import LONGEST_SEARCHED
from sluice.pages.quarantine_samples import SHOWN_SAMPLES, QuarantineSample, sample_of
from sluice.pages.record_masks import RecordMasks, record_masks_of
from sluice.processes.deadline import Deadline
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import load_table
from sluice.tables.newest_rows import read_newest_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantinePage:
    """What the page of a quarantine shows.

    samples: the newest first. has_table: whether the table is there. is_cut: whether there may be older records in
    files that were not looked at. masked_columns: those declared.
    """

    table: str
    samples: tuple[QuarantineSample, ...]
    has_table: bool
    is_cut: bool
    masked_columns: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineReading:
    """Reads quarantines for the pages of one process. Safe to use from many threads.

    open: connects to the catalog. looks: the bounds of a look.
    """

    settings: Settings
    open: Callable[[Settings], Catalog] = open_catalog
    looks: BoundedLooks = field(default_factory=lambda: BoundedLooks(at="quarantines"))

    def load(self, declaration: StreamDeclaration, tables: Mapping[str, LoadedTable]) -> QuarantinePage:
        """Read the newest records of a stream's quarantine.

        Parameters
        ----------
        tables: the declared tables, by name.

        Raises
        ------
        LakehouseError: when the catalog or the object store cannot be read, or as `BoundedLooks.look` raises it.
        """
        masks = record_masks_of(declaration, tables)
        return self.looks.look(lambda deadline: self._page_of(declaration, masks, deadline))

    def _page_of(self, declaration: StreamDeclaration, masks: RecordMasks | None, deadline: Deadline) -> QuarantinePage:
        table = load_table(self.open(self.settings), declaration.quarantine_table)
        found = None
        if table is not None:
            found = read_newest_rows(
                table,
                time_column="refused_at",
                limit=SHOWN_SAMPLES,
                longest_text=LONGEST_SEARCHED,
                deadline=deadline,
            )
        return QuarantinePage(
            table=declaration.quarantine_table,
            samples=tuple(sample_of(row, declaration, masks) for row in (found.rows if found is not None else ())),
            has_table=table is not None,
            is_cut=found is not None and found.is_cut,
            masked_columns=declaration.masked_columns,
        )
