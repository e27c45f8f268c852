"""The addresses of the tables: all tables, one table, and their quality: a summary, each rule over time, and Data Docs.

Who may read the DAG `table_maintenance` sees the tables; who may read `data_quality` sees what their rules found.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse

from sluice.declarations.loaded_declarations import masked_columns_of_table
from sluice.declarations.table_declaration import TableDeclaration
from sluice.ledger.batch_findings import rule_results_of_tables
from sluice.ledger.recorded_checks import checks_of_tables, recent_quality
from sluice.pages.job_plans import BATCH_WORDS
from sluice.pages.line_selection import TableSelection, counts_of
from sluice.pages.page_figures import DONE_SENTENCES, DoneWord
from sluice.pages.page_templates import render
from sluice.pages.quality_report import (
    SUMMARY_CHECKS,
    QualityLine,
    batch_lines,
    charts_of_report,
    has_rules,
    quality_line,
    summary_figures,
)
from sluice.pages.table_lines import TableLine, observe_tables, visible_tables
from sluice.pages.table_looks import TableLook
from sluice.pages.table_page import columns_shown, load_table_page, queries_of
from sluice.publication.held_decisions import broken_samples, held_of_table
from sluice.quality.check_results import QualityPages
from sluice.quality.rule_results import SHOWN_RESULTS, TableRules, judged_rules, read_report, writers_of
from sluice.supervision.platform_dags import MAINTENANCE_DAG, QUALITY_DAG
from sluice.supervision.platform_troubles import unusual_rows
from sluice_airflow.pages.page_access import Reader, ReaderDep
from sluice_airflow.pages.page_addresses import airflow_of, base_of, dag_run_link
from sluice_airflow.pages.page_state import PageState, StateDep, find_outlooks
from sluice_airflow.pages.stream_routes import held_batch_verbs


def table_routes() -> APIRouter:
    """The routes of the tables."""
    router = APIRouter()
    router.add_api_route("/tables", _tables_page, methods=["GET"], response_class=HTMLResponse)
    router.add_api_route("/tables/{table}", _table_page, methods=["GET"], response_class=HTMLResponse)
    router.add_api_route("/quality", _summary_page, methods=["GET"], response_class=HTMLResponse)
    router.add_api_route("/tables/{table}/quality", _report_page, methods=["GET"], response_class=HTMLResponse)
    router.add_api_route("/tables/{table}/reports/{check}/{path:path}", _report_file, methods=["GET"])
    return router


def _tables_page(request: Request, reader: ReaderDep, pages: StateDep) -> HTMLResponse:
    require_dag(reader, MAINTENANCE_DAG)
    lines = lines_for(reader, pages, looks=pages.looks.known)
    selection = TableSelection.of(request.query_params)
    query = dict(request.query_params)
    values = {
        "base": base_of(request),
        "airflow": airflow_of(request),
        "lines": selection.select(lines),
        "counts": counts_of(lines),
        "selection": selection,
        "paused": pages.paused_for(reader, among=(QUALITY_DAG, MAINTENANCE_DAG)),
        "may_see_quality": bool(reader.may_read([QUALITY_DAG])),
        "link_to_sort": lambda key: urlencode({**query, "sort": key, "desc": selection.direction(key)}),
        "link_to_show": lambda kind: urlencode({**query, "show": kind}),
    }
    return HTMLResponse(render("tables", values))


def _table_page(
    table: str, request: Request, reader: ReaderDep, pages: StateDep, done: DoneWord | None = None
) -> HTMLResponse:
    require_dag(reader, MAINTENANCE_DAG)
    declared, look = visible_table(table, reader, pages), pages.looks.look(table)
    (line,) = lines_for(reader, pages, looks=lambda _: {table: look}, only=table)
    may_see_quality = bool(reader.may_read([QUALITY_DAG]))
    values = {
        "base": base_of(request),
        "airflow": airflow_of(request),
        "line": line,
        "look": look,
        "columns": columns_shown(declared, look),
        "queries": queries_of(declared, pages.deployment.settings.catalog),
        "page": load_table_page(pages.ledger, line, declared.maintenance),
        "outlooks": find_outlooks((MAINTENANCE_DAG, QUALITY_DAG)),
        "paused": pages.paused_for(reader, among=(QUALITY_DAG, MAINTENANCE_DAG) if line.rules else (MAINTENANCE_DAG,)),
        "maintenance_dag": MAINTENANCE_DAG,
        "quality_dag": QUALITY_DAG,
        "done": None if done is None else DONE_SENTENCES[done],
        "unusual": unusual_rows(pages.ledger, table) if may_see_quality else (),
        "may_maintain": table in pages.maintained_tables(reader) and reader.may_start(MAINTENANCE_DAG),
        "report": read_report(pages.ledger, pages.declarations, declared, limit=1) if may_see_quality else None,
    }
    return HTMLResponse(render("table", values))


def visible_table(name: str, reader: Reader, pages: PageState) -> TableDeclaration:
    """A declared table that a person may see.

    Raises
    ------
    HTTPException: 404 when there is none.
    """
    visible = visible_tables(pages.declarations, readable_streams=reader.may_read(pages.declarations.streams))
    if name not in visible:
        raise HTTPException(404, f"No valid file declares a table called {name}.")
    return visible[name]


def lines_for(
    reader: Reader,
    pages: PageState,
    *,
    looks: Callable[[Sequence[str]], Mapping[str, TableLook]],
    only: str | None = None,
) -> tuple[TableLine, ...]:
    """The lines of the tables that a person may see; results of checks only for who may see those."""
    readable = reader.may_read(pages.declarations.streams)
    lines = observe_tables(pages.ledger, pages.declarations, readable_streams=readable, looks=looks, only=only)
    if reader.may_read([QUALITY_DAG]):
        return lines
    return tuple(replace(line, verdict=None, failed=0, expectations=0, checked_at=None) for line in lines)


def require_dag(reader: Reader, dag: str) -> None:
    """Refuse a reader who may not read a DAG.

    Raises
    ------
    HTTPException: 403.
    """
    if not reader.may_read([dag]):
        raise HTTPException(403, f"You may not read the DAG {dag}.")


_REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'self'"
)
"""For the reports of Great Expectations, which write values from the data unescaped: no script of a report runs, and it
has an origin of its own. Its texts and tables are HTML and need none."""

_TYPES = {".html": "text/html", ".css": "text/css", ".png": "image/png", ".ico": "image/x-icon"}


def _summary_page(request: Request, reader: ReaderDep, pages: StateDep) -> HTMLResponse:
    for dag in (MAINTENANCE_DAG, QUALITY_DAG):
        require_dag(reader, dag)
    lines = lines_for(reader, pages, looks=pages.looks.known)
    query = dict(request.query_params)
    selection = TableSelection.of({"sort": "quality", **query})
    selected = selection.select(lines)
    by_table = _quality_lines(pages, lines)
    values = {
        "base": base_of(request),
        "airflow": airflow_of(request),
        "shown": [by_table[line.table] for line in selected if has_rules(line)],
        "without_rules": [line for line in selected if not has_rules(line)],
        "counts": counts_of(lines),
        "figures": summary_figures([one for one in by_table.values() if not one.line.is_quarantine]),
        "selection": selection,
        "most_checks": SUMMARY_CHECKS,
        "paused": pages.paused_for(reader, among=(QUALITY_DAG,)),
        "link_to_show": lambda kind: urlencode({**query, "show": kind}),
    }
    return HTMLResponse(render("quality", values))


def _quality_lines(pages: PageState, lines: Sequence[TableLine]) -> Mapping[str, QualityLine]:
    """The lines of the summary by table, from two queries for all of them."""
    names = [line.table for line in lines]
    checks = checks_of_tables(pages.ledger, names, limit=SUMMARY_CHECKS)
    rules = judged_rules(pages.declarations)
    batches = rule_results_of_tables(pages.ledger, writers_of(rules, names), limit=SUMMARY_CHECKS)
    shows_values = {table for table, seen in checks.items() if seen[0].details}
    shows_values |= {table for table, judged in batches.items() if any(batch.broken for batch in judged)}
    masked = {table: masked_columns_of_table(pages.declarations, table) for table in shows_values}
    return {
        line.table: quality_line(
            line,
            checks.get(line.table, ()),
            masked.get(line.table, ()),
            rules=rules.get(line.table, TableRules()).rules,
            batches=batches.get(line.table, ()),
        )
        for line in lines
    }


def _report_page(table: str, request: Request, reader: ReaderDep, pages: StateDep) -> HTMLResponse:
    for dag in (MAINTENANCE_DAG, QUALITY_DAG):
        require_dag(reader, dag)
    declared, look = visible_table(table, reader, pages), pages.looks.look(table)
    (line,) = lines_for(reader, pages, looks=lambda _: {table: look}, only=table)
    report = read_report(pages.ledger, pages.declarations, declared)
    docs = QualityPages(root=pages.deployment.settings.reports)
    values = {
        "base": base_of(request),
        "airflow": airflow_of(request),
        "line": line,
        "report": report,
        "charts": charts_of_report(report),
        "batches": batch_lines(report),
        "held": list(_held_of(table, reader, pages)),
        "batch_words": BATCH_WORDS,
        "run_link": dag_run_link(report.newest.launched_by) if report.newest is not None else "",
        "data_docs": {check.checked_at: docs.result_page(table, check.checked_at) for check in report.checks},
        "paused": pages.paused_for(reader, among=(QUALITY_DAG,)),
        "outlook": find_outlooks((QUALITY_DAG,)).get(QUALITY_DAG),
    }
    return HTMLResponse(render("table_quality", values))


def _held_of(table: str, reader: Reader, pages: PageState) -> Iterator[Mapping[str, Any]]:
    """The batches that wait for a person, each with rows that break its rules and what this reader may decide."""
    waiting = held_of_table(pages.ledger, pages.declarations, table)
    for held in waiting:
        stream = held.key.stream
        if reader.may_read([stream]):
            sees = reader.may_see_samples(stream)
            yield {
                "batch": held,
                "samples": list(broken_samples(pages.declarations, stream, held)) if sees else [],
                "verbs": held_batch_verbs(stream, reader, pages),
            }


def _report_file(table: str, check: str, path: str, reader: ReaderDep, pages: StateDep) -> FileResponse:
    """A file of the report of a check that the ledger knows; a path that leaves the report's folder is not found. The
    reader sees the page that leads here."""
    for dag in (MAINTENANCE_DAG, QUALITY_DAG):
        require_dag(reader, dag)
    visible_table(table, reader, pages)
    docs = QualityPages(root=pages.deployment.settings.reports)
    known = recent_quality(pages.ledger, table, limit=SHOWN_RESULTS)
    folder = next((one for seen in known if (one := docs.data_docs(table, seen.checked_at)).name == check), None)
    file = None if folder is None else _within(folder, path)
    if file is None or file.suffix not in _TYPES or not file.is_file():
        raise HTTPException(404, "There is no such report, or it is no longer kept.")
    return FileResponse(file, media_type=_TYPES[file.suffix], headers={"Content-Security-Policy": _REPORT_POLICY})


def _within(folder: Path, path: str) -> Path | None:
    root = folder.resolve()
    file = (root / path).resolve()
    return file if file.is_relative_to(root) else None
