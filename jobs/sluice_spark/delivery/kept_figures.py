"""The figures of published batches, from their publication until the ledger gets them.

Only staged files have metrics that are read for the commit. A merge is read by Spark, and what is written directly was
never staged: neither has figures.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import masked_columns_of_table
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT, StreamDeclaration
from sluice.errors import SluiceError
from sluice.ledger.batches import PublicationKey
from sluice.ledger.hourly_figures import ColumnFigures
from sluice.publication.publish_batches import Publication
from sluice.tables.column_facts import figures_of

_log = logging.getLogger(__name__)

_MASKS_KNOWN_SECONDS = 3600.0
"""How long masks of streams before this one are not read again: all declarations are read for it."""

Figures = Mapping[str, Mapping[str, ColumnFigures]]
"""By output and column."""


@dataclass(slots=True, kw_only=True)
class DeclaredMasks:
    """The columns of which a stream, or one before it, masks something.

    folder: of the declarations. now_seconds: a clock that never goes back.
    """

    declaration: StreamDeclaration
    folder: Path
    now_seconds: Callable[[], float] = time.monotonic
    _known: dict[str, tuple[float, frozenset[str] | None]] = field(default_factory=dict)

    def of(self, table: str) -> frozenset[str] | None:
        """The columns of a table that the stream writes, in lower case; none when it is not known which they are."""
        own = self.declaration.masked_names
        if not self.declaration.tables_read:
            return own
        now = self.now_seconds()
        if table not in self._known or now - self._known[table][0] >= _MASKS_KNOWN_SECONDS:
            self._known[table] = (now, self._read(table))
        _, before = self._known[table]
        return None if before is None else own | before

    def _read(self, table: str) -> frozenset[str] | None:
        try:
            declarations = load_declarations(self.folder)
        except (SluiceError, OSError) as error:
            _log.warning("the masked columns of %s are not known, so no bounds of columns are kept: %s", table, error)
            return None
        if len(declarations.streams) < len(declarations.stream_names):  # one that is broken may mask a column
            return None
        return masked_columns_of_table(declarations, table)


@dataclass(slots=True, kw_only=True)
class KeptFigures:
    """The figures of the batches of one run.

    masked_of: as `DeclaredMasks.of`. is_kept: not those of the shadow of a refresh, whose table no stream declares.
    """

    masked_of: Callable[[str], frozenset[str] | None]
    is_kept: bool = True
    _kept: dict[PublicationKey, dict[str, Mapping[str, ColumnFigures]]] = field(default_factory=dict)

    def note(self, output: str, table: str, published: Publication) -> None:
        """Keep the figures of what has become visible in an output. Rejected rows have none."""
        schema = published.staged_schema
        if not self.is_kept or output == QUARANTINE_OUTPUT or schema is None:
            return
        try:
            masked = self.masked_of(table)
            for batch in published.published:
                figures = figures_of(published.staged_files.get(batch.snapshot_id, ()), schema, masked=masked)
                self._kept.setdefault(batch.summary.key, {})[output] = figures
        except Exception as error:  # noqa: BLE001  # the batch is visible: its publication must not fail for its figures
            _log.warning("the figures of a batch for %s are not known: %r", table, error)

    def take(self, key: PublicationKey) -> Figures:
        """The figures of a batch, which are not kept any longer."""
        return self._kept.pop(key, {})
