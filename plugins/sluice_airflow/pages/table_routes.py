"""The addresses of the tables: all tables, and one table.

Who may read the DAG `table_maintenance` sees the tables; who may read `data_quality` sees what their rules found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from urllib.parse import urlencode

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse

from sluice.declarations.table_declaration import TableDeclaration
from sluice.pages.line_selection import TableSelection, counts_of
from sluice.pages.page_figures import DONE_SENTENCES, DoneWord
from sluice.pages.page_templates import render
from sluice.pages.table_lines import TableLine, observe_tables, visible_tables
from sluice.pages.table_looks import TableLook
from sluice.pages.table_page import columns_shown, load_table_page, queries_of
from sluice.quality.rule_results import read_report
from sluice.supervision.platform_dags import MAINTENANCE_DAG, QUALITY_DAG
from sluice.supervision.platform_troubles import unusual_rows
from sluice_airflow.pages.dag_outlooks import find_outlooks
from sluice_airflow.pages.page_access import Reader, ReaderDep
from sluice_airflow.pages.page_addresses import airflow_of, base_of
from sluice_airflow.pages.page_state import PageState, StateDep


def table_routes() -> APIRouter:
    """The routes of the tables."""
    router = APIRouter()
    router.add_api_route("/tables", _tables_page, methods=["GET"], response_class=HTMLResponse)
    router.add_api_route("/tables/{table}", _table_page, methods=["GET"], response_class=HTMLResponse)
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
