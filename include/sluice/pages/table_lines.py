"""The lines of the tables page: every declared table with its size, its debt, who holds its snapshots, its quality."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Row

from sluice.declarations.loaded_declarations import Declarations, all_tables
from sluice.declarations.table_declaration import TableDeclaration
from sluice.ledger.batch_findings import RuleResult, rule_results_of_tables
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.maintenance_runs import newest_runs_of_tables
from sluice.ledger.recorded_checks import UNSUCCESSFUL_VERDICTS, QualityVerdict, newest_results_of_tables
from sluice.pages.page_figures import ShownTone
from sluice.pages.table_looks import TableLook
from sluice.quality.rule_results import TableRules, judged_rules, writers_of

QUARANTINE_NAMESPACE = "quarantine."
"""How the names of the tables of rejected rows begin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableLine:
    """One table of the page. Rows, files and bytes are those of its newest snapshot, and those after its newest
    maintenance run where the catalog is not known to this process; unset without either.

    writers, readers: the streams that write and read it. exists: whether the catalog has it; unset when unknown.
    fresh_at: when its rows last changed. file_sizes: the number of its files by size, after its newest maintenance run.
    debt: its small files and delete files, which its readers open for little, after that run.
    holders: the streams for which snapshots are kept; `others_hold` of further ones that the reader may not see.
    held_for: how old the oldest kept snapshot was at that run.
    rules: how many expectations are declared. verdict, failed, expectations, checked_at: of its newest quality check;
    unset without one.
    batch_rules: by how many rules its batches are judged. judged, broken, judged_at: how many of them have a result,
    how many do not hold by their newest, and when the newest batch was recorded.
    """

    table: str
    now: datetime
    owner: str
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    description: str = ""
    tags: tuple[str, ...] = ()
    exists: bool | None = None
    fresh_at: datetime | None = None
    rules: int = 0
    rows: int | None = None
    files: int | None = None
    bytes: int | None = None
    file_sizes: tuple[int, ...] = ()
    debt: int | None = None
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
    batch_rules: int = 0
    judged: int = 0
    broken: int = 0
    judged_at: datetime | None = None

    @property
    def all_rules(self) -> int:
        """How many rules are declared, whatever applies them."""
        return self.rules + self.batch_rules

    @property
    def found(self) -> int:
        """How many rules have a result."""
        return self.expectations + self.judged

    @property
    def holding(self) -> int:
        """How many of those hold."""
        return self.found - self.failed - self.broken

    @property
    def unchecked(self) -> int:
        """How many rules have no result yet."""
        return (0 if self.expectations else self.rules) + self.batch_rules - self.judged

    @property
    def found_at(self) -> datetime | None:
        """When its rules were applied last, by a check or by a batch."""
        return max((at for at in (self.checked_at, self.judged_at) if at is not None), default=None)

    @property
    def result(self) -> QualityVerdict | None:
        """The result of its newest check and of its newest batches together; none before the first."""
        if self.broken:
            return QualityVerdict.FAILED
        if self.judged and self.verdict in (None, QualityVerdict.NOTHING_TO_CHECK):
            return QualityVerdict.PASSED
        return self.verdict

    @property
    def tone(self) -> ShownTone:
        """How its result is marked."""
        if self.result is None or self.result is QualityVerdict.NOTHING_TO_CHECK:
            return ShownTone.CALM
        if self.result is QualityVerdict.PASSED:
            return ShownTone.GOOD
        return ShownTone.BAD if self.result is QualityVerdict.FAILED else ShownTone.ODD

    @property
    def quality_words(self) -> str:
        """Its result; a table without rules is not one that was not checked."""
        if self.result is not None:
            return self.result.replace("_", " ")
        return "not checked yet" if self.all_rules else "no rules"

    @property
    def is_quarantine(self) -> bool:
        """Whether it holds the rejected rows of a stream."""
        return self.table.startswith(QUARANTINE_NAMESPACE)

    @property
    def is_healthy(self) -> bool:
        """Whether its newest check and its newest batches found nothing."""
        return self.result not in UNSUCCESSFUL_VERDICTS


def observe_tables(
    ledger: Ledger,
    declarations: Declarations,
    *,
    readable_streams: Iterable[str],
    looks: Callable[[Sequence[str]], Mapping[str, TableLook]],
    only: str | None = None,
) -> tuple[TableLine, ...]:
    """Read the lines of the declared tables, and of the quarantines of the streams that the reader may see.

    Parameters
    ----------
    readable_streams: the streams that the reader may see; others are not named.
    looks: what the catalog says of some tables, by table, as far as that is known.
    only: the one table to read; unset: all.
    """
    readable = frozenset(readable_streams)
    visible = visible_tables(declarations, readable_streams=readable)
    names = sorted(visible) if only is None else [only] if only in visible else []
    seen = looks(names) if names else {}
    runs = newest_runs_of_tables(ledger, names) if names else {}
    checks = newest_results_of_tables(ledger, names) if names else {}
    rules = judged_rules(declarations)
    batches = rule_results_of_tables(ledger, writers_of(rules, names), limit=1)
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
            runs.get(name),
            checks.get(name),
            readable,
            seen.get(name),
            table=name,
            now=now,
            owner=visible[name].owner,
            description=visible[name].description,
            tags=visible[name].tags,
            rules=0 if (quality := visible[name].quality) is None else len(quality.expectations),
            writers=tuple(writers.get(name, ())),
            readers=tuple(readers.get(name, ())),
            **_judged(rules.get(name, TableRules()), batches.get(name, ())),
        )
        for name in names
    )


def visible_tables(declarations: Declarations, *, readable_streams: Collection[str]) -> Mapping[str, TableDeclaration]:
    """The tables that a person who may see tables may see. A quarantine is called like its stream, so it is visible to
    those who may see that."""
    hidden = {
        stream.declaration.quarantine_table
        for name, stream in declarations.streams.items()
        if stream.declaration.quarantine and name not in readable_streams
    }
    return {name: table for name, table in all_tables(declarations).items() if name not in hidden}


def debt_of(small_files: int | None, delete_files: int | None) -> int | None:
    """The files that cost a reader a request each and hold little; unset where they were not counted."""
    return None if small_files is None else small_files + (delete_files or 0)


def _line(
    run: Row[Any] | None, check: Row[Any] | None, readable: frozenset[str], look: TableLook | None, **fixed: Any
) -> TableLine:
    maintained = {} if run is None else _maintained(run) | _held(run, readable)
    return TableLine(**fixed, **(maintained | _looked(look)), **_checked(check))


def _looked(look: TableLook | None) -> dict[str, Any]:
    """What the catalog says, where it was asked and has answered."""
    if look is None or look.problem:
        return {}
    figures = {"rows": look.rows, "files": look.files, "bytes": look.bytes}
    counted = {name: count for name, count in figures.items() if count is not None} if look.exists else {}
    return {"exists": look.exists, "fresh_at": look.fresh_at, **counted}


def _maintained(run: Row[Any]) -> dict[str, Any]:
    return {
        "file_sizes": tuple(run.file_sizes),
        "rows": run.after_rows,
        "files": run.after_files,
        "bytes": run.after_bytes,
        "debt": debt_of(run.after_small_files, run.after_delete_files),
        "snapshots": run.after_snapshots,
        "files_before": run.before_files,
        "maintained_at": run.ended_at,
    }


def _held(run: Row[Any], readable: frozenset[str]) -> dict[str, Any]:
    streams = {str(kept["stream"]) for kept in run.kept}
    moments = [datetime.fromisoformat(kept["committed_at"]) for kept in run.kept if kept.get("committed_at")]
    return {
        "holders": tuple(sorted(streams & readable)),
        "others_hold": len(streams - readable),
        "held_for": run.ended_at - min(moments) if moments else None,
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


def _judged(known: TableRules, batches: Sequence[RuleResult]) -> Mapping[str, Any]:
    """batches: the newest of each stream that writes it, newest first."""
    found = [one for rule in known.rules if (one := rule.newest_in(batches)) is not None]
    return {
        "batch_rules": len(known.rules),
        "judged": len(found),
        "broken": sum(one.is_broken for one in found),
        "judged_at": batches[0].recorded_at if batches else None,
    }
