"""The lines of the tables page: every declared table with its size, its debt, who holds its snapshots, its quality."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row

from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.quarantine_table import all_tables
from sluice.ledger.all_tables import KnownTable, find_tables
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.quality_checks import UNSUCCESSFUL_VERDICTS, QualityVerdict
from sluice.pages.page_words import ShownTone


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLine:
    """One table of the page. The figures are those after its newest maintenance run; unset before the first.

    writers, readers: the streams that write and read it. file_sizes: the number of its files by size.
    debt: its small files and delete files, which its readers open for little. debt_history: the debt that each of the
    newest maintenance runs found, oldest first; unset where a run did not count it.
    holders: the streams for which snapshots are kept; `others_hold` of further ones that the reader may not see.
    held_for: how old the oldest kept snapshot was at that run.
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
    file_sizes: tuple[int, ...] = ()
    debt: int | None = None
    debt_history: tuple[int | None, ...] = ()
    snapshots: int | None = None
    holders: tuple[str, ...] = ()
    others_hold: int = 0
    held_for: timedelta | None = None
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
    ledger: Ledger, declarations: Declarations, *, readable_streams: Iterable[str], only: str | None = None
) -> tuple[TableLine, ...]:
    """Read the lines of the declared tables, and of the quarantines of the streams that the reader may see.

    Parameters
    ----------
    readable_streams: the streams that the reader may see; others are not named.
    only: the one table to read; unset: all.
    """
    readable = frozenset(readable_streams)
    owners = visible_tables(declarations, readable_streams=readable)
    names = sorted(owners) if only is None else [only] if only in owners else []
    known = find_tables(ledger, names) if names else {}
    now = database_time(ledger)
    writers: dict[str, list[str]] = {}
    readers: dict[str, list[str]] = {}
    for name, stream in sorted(declarations.streams.items()):
        if name in readable:
            declared = stream.declaration
            quarantine = (declared.quarantine_table,) if declared.quarantine else ()
            for table in (*declared.tables_written, *quarantine):
                writers.setdefault(table, []).append(name)
            for table in declared.tables_read:
                readers.setdefault(table, []).append(name)
    return tuple(
        _line(
            known[name],
            readable,
            table=name,
            now=now,
            owner=owners[name],
            writers=tuple(writers.get(name, ())),
            readers=tuple(readers.get(name, ())),
        )
        for name in names
    )


def visible_tables(declarations: Declarations, *, readable_streams: Collection[str]) -> Mapping[str, str]:
    """The tables that a person who may see tables may see, each with its owner. A quarantine is called like its stream,
    so it is visible to those who may see that."""
    hidden = {
        stream.declaration.quarantine_table
        for name, stream in declarations.streams.items()
        if stream.declaration.quarantine and name not in readable_streams
    }
    return {name: table.owner for name, table in all_tables(declarations).items() if name not in hidden}


def debt_of(small_files: int | None, delete_files: int | None) -> int | None:
    """The files that cost a reader a request each and hold little; unset where they were not counted."""
    return None if small_files is None else small_files + (delete_files or 0)


def _line(known: KnownTable, readable: frozenset[str], **fixed: Any) -> TableLine:
    return TableLine(
        **fixed,
        **_maintained(known.maintenance[0] if known.maintenance else None),
        **_held(known, readable, known.maintenance[0].ended_at if known.maintenance else None),
        **_checked(known.quality),
        file_sizes=known.file_sizes,
        debt_history=tuple(
            debt_of(run.before_small_files, run.before_delete_files) for run in reversed(known.maintenance)
        ),
    )


def _maintained(run: Row[Any] | None) -> Mapping[str, Any]:
    if run is None:
        return {}
    return {
        "rows": run.after_rows,
        "files": run.after_files,
        "bytes": run.after_bytes,
        "debt": debt_of(run.after_small_files, run.after_delete_files),
        "snapshots": run.after_snapshots,
        "files_before": run.before_files,
        "maintained_at": run.ended_at,
    }


def _held(known: KnownTable, readable: frozenset[str], at: datetime | None) -> Mapping[str, Any]:
    streams = {str(kept["stream"]) for kept in known.kept}
    moments = [datetime.fromisoformat(kept["committed_at"]) for kept in known.kept if kept.get("committed_at")]
    return {
        "holders": tuple(sorted(streams & readable)),
        "others_hold": len(streams - readable),
        "held_for": at - min(moments) if at is not None and moments else None,
    }


def _checked(check: Row[Any] | None) -> Mapping[str, Any]:
    if check is None:
        return {}
    return {
        "verdict": QualityVerdict(check.verdict),
        "failed": len(check.failed_expectations),
        "expectations": check.expectations,
        "checked_at": check.checked_at,
    }
