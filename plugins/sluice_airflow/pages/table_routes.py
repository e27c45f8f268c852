"""The addresses of the tables: all tables, one table, and the reports of its quality checks.

Who may read the DAG `table_maintenance` sees the tables; who may read `data_quality` sees their checks and reports.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlencode

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse

from sluice.declarations.masked_tables import masked_columns_of_table
from sluice.ledger.quality_checks import recent_quality
from sluice.pages.page_templates import render
from sluice.pages.page_words import DONE_SENTENCES, DoneWord
from sluice.pages.table_facts import columns_shown, queries_of, rules_shown
from sluice.pages.table_lines import TableLine, observe_tables, visible_tables
from sluice.pages.table_looks import TableLook
from sluice.pages.table_page import SHOWN_RUNS, load_table_page
from sluice.pages.table_selection import TableSelection, counts_of
from sluice.quality.quality_pages import QualityPages
from sluice.supervision.platform_dags import MAINTENANCE_DAG, QUALITY_DAG
from sluice_airflow.pages.dag_outlooks import find_outlooks
from sluice_airflow.pages.page_access import Reader, ReaderDep
from sluice_airflow.pages.page_addresses import airflow_of, base_of
from sluice_airflow.pages.page_state import PageState, StateDep

_REPORT_POLICY = (
    "sandbox; default-src 'none'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'self'"
)
"""For the reports of Great Expectations, which write values from the data unescaped: no script of a report runs, and it
has an origin of its own. Its texts and tables are HTML and need none."""

_TYPES = {".html": "text/html", ".css": "text/css", ".png": "image/png", ".ico": "image/x-icon"}


def table_routes() -> APIRouter:
    """The routes of the tables."""
    router = APIRouter()
    router.add_api_route("/tables", _tables_page, methods=["GET"], response_class=HTMLResponse)
    router.add_api_route("/tables/{table}", _table_page, methods=["GET"], response_class=HTMLResponse)
    router.add_api_route("/tables/{table}/reports/{check}/{path:path}", _report_file, methods=["GET"])
    return router


def _tables_page(request: Request, reader: ReaderDep, pages: StateDep) -> HTMLResponse:
    _require(reader, MAINTENANCE_DAG)
    lines = _lines(reader, pages, looks=pages.looks.known)
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
    _require(reader, MAINTENANCE_DAG)
    visible = visible_tables(pages.declarations, readable_streams=reader.may_read(pages.declarations.streams))
    if table not in visible:
        raise HTTPException(404, f"No valid file declares a table called {table}.")
    declared, look = visible[table], pages.looks.look(table)
    (line,) = _lines(reader, pages, looks=lambda _: {table: look}, only=table)
    may_see_quality = bool(reader.may_read([QUALITY_DAG]))
    checks = recent_quality(pages.ledger, table, limit=SHOWN_RUNS) if may_see_quality else ()
    docs = QualityPages(root=pages.deployment.settings.reports)
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
        "may_maintain": table in pages.maintained_tables(reader) and reader.may_start(MAINTENANCE_DAG),
        "checks": checks,
        "rules": rules_shown(declared, checks, masked_columns_of_table(pages.declarations, table)),
        "may_see_quality": may_see_quality,
        "reports": {check.checked_at: docs.result_page(table, check.checked_at) for check in checks},
    }
    return HTMLResponse(render("table", values))


def _report_file(table: str, check: str, path: str, reader: ReaderDep, pages: StateDep) -> FileResponse:
    """A file of the report of a check that the ledger knows; a path that leaves the report's folder is not found."""
    _require(reader, QUALITY_DAG)
    docs = QualityPages(root=pages.deployment.settings.reports)
    known = recent_quality(pages.ledger, table, limit=SHOWN_RUNS)
    folder = next((one for seen in known if (one := docs.data_docs(table, seen.checked_at)).name == check), None)
    file = None if folder is None else _within(folder, path)
    if file is None or file.suffix not in _TYPES or not file.is_file():
        raise HTTPException(404, "There is no such report, or it is no longer kept.")
    return FileResponse(file, media_type=_TYPES[file.suffix], headers={"Content-Security-Policy": _REPORT_POLICY})


def _within(folder: Path, path: str) -> Path | None:
    root = folder.resolve()
    file = (root / path).resolve()
    return file if file.is_relative_to(root) else None


def _lines(
    reader: Reader,
    pages: PageState,
    *,
    looks: Callable[[Sequence[str]], Mapping[str, TableLook]],
    only: str | None = None,
) -> tuple[TableLine, ...]:
    readable = reader.may_read(pages.declarations.streams)
    lines = observe_tables(pages.ledger, pages.declarations, readable_streams=readable, looks=looks, only=only)
    if reader.may_read([QUALITY_DAG]):
        return lines
    return tuple(replace(line, verdict=None, failed=0, expectations=0, checked_at=None) for line in lines)


def _require(reader: Reader, dag: str) -> None:
    if not reader.may_read([dag]):
        raise HTTPException(403, f"You may not read the DAG {dag}.")
