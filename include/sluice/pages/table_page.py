"""The page of one table: its columns and queries, its maintenance over time, what is kept for whom, what the next run
finds.

A page does not look at the table itself: that reads every manifest. Maintenance does so every hour, and records it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from sluice.declarations.column_types import kind_of
from sluice.declarations.maintenance_declaration import MaintenanceDeclaration
from sluice.declarations.scalar_types import duration_words
from sluice.declarations.table_declaration import TableDeclaration
from sluice.ledger.batches import count_batches_since
from sluice.ledger.connection import Ledger
from sluice.ledger.events import EventObservation, EventSubject, recent_events
from sluice.ledger.maintenance_runs import (
    KeptSnapshot,
    MaintenanceObservation,
    MaintenanceStep,
    StepOutcome,
    recent_maintenance,
)
from sluice.pages.page_figures import (
    Chart,
    SizeBar,
    bars_of,
    coloured_lines,
    count_text,
    duration_text,
    newest_of,
    top_of,
)
from sluice.pages.table_lines import TableLine, debt_of
from sluice.pages.table_looks import LookedColumn, TableLook
from sluice.settings import CatalogSettings

SHOWN_RUNS, SHOWN_EVENTS = 20, 20

CHART_RUNS = 72
"""How many of the newest maintenance runs the charts show: three days of hourly ones."""

_TIMES = ("timestamptz", "timestamp", "date")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownQuery:
    """A query to copy. language: what runs it."""

    language: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutlook:
    """What is to be expected of one step: its outcome in the newest run, and when it will have something to do."""

    step: str
    outcome: StepOutcome
    explanation: str
    outlook: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePage:
    """What the page of a table shows beside its line.

    runs: the newest first. kept: at the newest run, for streams that the reader may see. outlooks: of each step.
    batches_since: how many batches its writers have published since the newest run.
    """

    bars: tuple[SizeBar, ...]
    charts: tuple[Chart, ...]
    runs: tuple[MaintenanceObservation, ...]
    kept: tuple[KeptSnapshot, ...]
    outlooks: tuple[StepOutlook, ...]
    batches_since: int
    events: tuple[EventObservation, ...]


def load_table_page(ledger: Ledger, line: TableLine, policy: MaintenanceDeclaration) -> TablePage:
    """Read what the page of a table shows."""
    runs = recent_maintenance(ledger, line.table, limit=CHART_RUNS)
    newest = runs[0] if runs else None
    kept = () if newest is None else newest.kept
    return TablePage(
        bars=bars_of(line.file_sizes),
        charts=charts_of_runs(runs),
        runs=runs[:SHOWN_RUNS],
        kept=tuple(one for one in kept if one.stream in line.holders),
        outlooks=() if newest is None else tuple(outlooks_of(newest, policy, now=line.now)),
        batches_since=0 if newest is None else count_batches_since(ledger, line.writers, newest.ended_at),
        events=recent_events(ledger, EventSubject.TABLE, line.table, limit=SHOWN_EVENTS),
    )


def charts_of_runs(runs: Sequence[MaintenanceObservation]) -> tuple[Chart, ...]:
    """The charts of a table over its maintenance runs, of which the newest is the first. Pure."""
    if not runs:
        return ()
    old_first = runs[::-1]
    small = [debt_of(run.before.small_files, 0) for run in old_first]
    deletes = [run.before.delete_files for run in old_first]
    return (
        _chart("Debt found by each run", ("small files", small), ("delete files", deletes)),
        _chart("Data files", ("before", [run.before.files for run in old_first]), _after(old_first)),
        _chart(
            "Snapshots and manifests",
            ("snapshots", [run.before.snapshots for run in old_first]),
            ("manifests", [run.before.manifests for run in old_first]),
        ),
    )


def _after(runs: Sequence[MaintenanceObservation]) -> tuple[str, list[int | None]]:
    return ("after", [run.after.files for run in runs])


def _chart(title: str, *series: tuple[str, Sequence[int | None]]) -> Chart:
    values = [list(figures) for _, figures in series]
    top = top_of(*values)
    figures = [f"{count_text(newest_of(each))} {words}" for each, (words, _) in zip(values, series, strict=True)]
    return Chart(
        title=title,
        figure=" · ".join(figures),
        summary=f"{title}: now {', '.join(figures)}; at most {count_text(top)}.",
        top=count_text(top),
        lines=coloured_lines(values, top),
        legend=tuple(zip(("a", "b"), (words for words, _ in series), strict=False)),
    )


def outlooks_of(run: MaintenanceObservation, policy: MaintenanceDeclaration, *, now: datetime) -> Iterator[StepOutlook]:
    """What the next run is to be expected to do, from what the newest one found. Pure."""
    for done in run.operations:
        yield StepOutlook(
            step=str(done.step).replace("_", " "),
            outcome=done.outcome,
            explanation=done.explanation,
            outlook=_outlook(done.step, run, policy, now),
        )


def _outlook(step: MaintenanceStep, run: MaintenanceObservation, policy: MaintenanceDeclaration, now: datetime) -> str:
    if any(one.step is step for one in run.unfinished):
        return "the next run tries it again"
    kept = policy.retention
    if step is MaintenanceStep.REMOVE_OLD_ROWS and kept is not None and kept.is_whole and kept.older_than is not None:
        return f"due once all rows of a file are {duration_words(kept.older_than)} old"
    if step is MaintenanceStep.REWRITE_DATA_FILES and policy.compaction is not None:
        few, share = policy.compaction.min_input_files, policy.compaction.max_deleted_share
        return f"due once a partition has {few} small files, or delete files hide {share:.0%} of its rows"
    if step is MaintenanceStep.REWRITE_MANIFESTS and policy.manifest_rewrite is not None:
        missing = policy.manifest_rewrite.min_manifests - run.after.manifests
        return "due now" if missing <= 0 else f"due after {missing:,} more manifests"
    if step is MaintenanceStep.EXPIRE_SNAPSHOTS and policy.expiry is not None and run.oldest_snapshot_at is not None:
        if run.after.snapshots <= policy.expiry.retain_last:
            return f"due once there are more than {policy.expiry.retain_last:,} snapshots"
        left = run.oldest_snapshot_at + policy.expiry.older_than - now
        return "due now" if left.total_seconds() <= 0 else f"due in {duration_text(left)}, by the oldest snapshot"
    if step is MaintenanceStep.REMOVE_ORPHANS and policy.orphan_removal is not None:
        return f"looked for {duration_words(policy.orphan_removal.every)} after the last time"
    if step is MaintenanceStep.COMPUTE_STATISTICS and policy.statistics is not None:
        return f"computed again {duration_words(policy.statistics.older_than)} after the table has changed"
    return "due when a reader has moved on" if step is MaintenanceStep.PIN_SNAPSHOTS and policy.expiry else ""


def columns_shown(declared: TableDeclaration, look: TableLook) -> tuple[LookedColumn, ...]:
    """The columns as the table has them; those that are declared, while it is not there or not known."""
    if look.columns:
        docs = {column.name: column.doc for column in declared.columns}
        return tuple(replace(column, doc=column.doc or docs.get(column.path, "")) for column in look.columns)
    return tuple(
        LookedColumn(path=column.name, type=column.type, is_required=column.required, doc=column.doc)
        for column in declared.columns
    )


def queries_of(declared: TableDeclaration, catalog: CatalogSettings) -> tuple[ShownQuery, ...]:
    """Queries of the newest rows; no secret is in them."""
    spark = _sql(declared, of=f"{catalog.name}.{declared.table}", quote="`")
    duckdb = _sql(declared, of=declared.table, quote='"')
    return (
        ShownQuery(language="Command line (DuckDB)", text=f"sluice sql '{duckdb}'"),
        ShownQuery(language="Spark SQL", text=spark),
        ShownQuery(language="Python (PyIceberg)", text="\n".join(_python(declared, catalog))),
    )


def _sql(declared: TableDeclaration, *, of: str, quote: str) -> str:
    """The rows of the last day that the table has: it may hold times of years ago alone."""
    by_name = {column.name: kind_of(column.column_type) for column in declared.columns}
    candidates = (*(part.column for part in declared.partitioning), *by_name)
    time = next((name for name in candidates if by_name.get(name) in _TIMES), None)
    lines = ["SELECT *", f"FROM {of}"]
    if time is not None:
        column = f"{quote}{time}{quote}"
        newest = f"(SELECT max({column}) FROM {of})"  # noqa: S608  # declared names, and a person runs it
        lines += [f"WHERE {column} >= {newest} - INTERVAL 1 DAY", f"ORDER BY {column} DESC"]
    return "\n".join((*lines, "LIMIT 20"))


def _python(declared: TableDeclaration, catalog: CatalogSettings) -> Iterator[str]:
    yield "from pyiceberg.catalog import load_catalog"
    yield ""
    yield "catalog = load_catalog("
    yield f'    "{catalog.name}",'
    yield '    type="rest",'
    yield f'    uri="{catalog.uri}",'
    yield f'    warehouse="{catalog.warehouse}",'
    yield '    credential="…",'
    yield ")"
    yield f'table = catalog.load_table("{declared.table}")'
    yield "rows = table.scan(limit=20).to_pandas()"
