"""The lines of the tables page: every declared table with its size, its maintenance and its quality."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sluice.declarations.loaded_declarations import Declarations
from sluice.ledger.all_tables import KnownTable, find_tables
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.records.quality_check import UNSUCCESSFUL_VERDICTS, QualityVerdict
from sluice.pages.shown_health import ShownTone


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLine:
    """One table of the page. The figures are those after its newest maintenance run; unset before the first.

    writers, readers: the streams that write and read it. file_history: its files before each of the newest maintenance
    runs, oldest first.
    verdict, failed, expectations, checked_at: of its newest quality check; unset without one.
    """

    table: str
    now: datetime
    owner: str
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    delete_files: int | None = None
    snapshots: int | None = None
    file_history: tuple[int, ...] = ()
    files_before: int | None = None
    maintained_at: datetime | None = None
    verdict: QualityVerdict | None = None
    failed: int = 0
    expectations: int = 0
    checked_at: datetime | None = None

    @property
    def tone(self) -> ShownTone:
        """How the result of its newest check is marked."""
        if self.verdict is None or self.verdict is QualityVerdict.NOTHING_TO_CHECK:
            return ShownTone.CALM
        if self.verdict is QualityVerdict.PASSED:
            return ShownTone.GOOD
        return ShownTone.BAD if self.verdict is QualityVerdict.FAILED else ShownTone.ODD

    @property
    def is_healthy(self) -> bool:
        """Whether its newest check found nothing."""
        return self.verdict not in UNSUCCESSFUL_VERDICTS


def observe_tables(
    ledger: Ledger, declarations: Declarations, *, readable_streams: Iterable[str]
) -> tuple[TableLine, ...]:
    """Read the lines of all declared tables.

    Parameters
    ----------
    readable_streams: the streams that the reader may see; others are not named.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    names = sorted(declarations.tables)
    known = find_tables(ledger, names)
    now = database_time(ledger)
    readable = frozenset(readable_streams)
    writers: dict[str, list[str]] = {}
    readers: dict[str, list[str]] = {}
    for name, stream in sorted(declarations.streams.items()):
        if name in readable:
            for table in stream.declaration.tables_written:
                writers.setdefault(table, []).append(name)
            for table in stream.declaration.tables_read:
                readers.setdefault(table, []).append(name)
    owners = {name: declarations.tables[name].declaration.owner for name in names}
    return tuple(_line(name, known[name], now, owners, writers, readers) for name in names)


def _line(
    name: str,
    known: KnownTable,
    now: datetime,
    owners: Mapping[str, str],
    writers: Mapping[str, list[str]],
    readers: Mapping[str, list[str]],
) -> TableLine:
    run = known.maintenance[0] if known.maintenance else None
    check = known.quality[0] if known.quality else None
    return TableLine(
        table=name,
        now=now,
        owner=owners[name],
        writers=tuple(writers.get(name, ())),
        readers=tuple(readers.get(name, ())),
        rows=None if run is None else run.rows_after,
        files=None if run is None else run.files_after,
        bytes=None if run is None else run.bytes_after,
        delete_files=None if run is None else run.delete_files_after,
        snapshots=None if run is None else run.snapshots_after,
        file_history=tuple(one.files_before for one in reversed(known.maintenance)),
        files_before=None if run is None else run.files_before,
        maintained_at=None if run is None else run.ended_at,
        verdict=None if check is None else QualityVerdict(check.verdict),
        failed=0 if check is None else len(check.failed_expectations),
        expectations=0 if check is None else check.expectations,
        checked_at=None if check is None else check.checked_at,
    )
