"""The addresses of the tables: all tables, one table, and the reports of its quality checks.

Who may read the DAG `table_maintenance` sees the tables; who may read `data_quality` sees their checks and reports.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from airflow.models.dag import DagModel
from airflow.utils.session import create_session
from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import FileResponse, HTMLResponse
from sqlalchemy import select

from sluice.ledger.quality_checks import recent_quality
from sluice.maintenance.maintained_tables import find_declaration
from sluice.pages.job_plans import MAINTENANCE_DAG
from sluice.pages.page_templates import render
from sluice.pages.page_words import DONE_SENTENCES, DoneWord
from sluice.pages.table_lines import TableLine, observe_tables
from sluice.pages.table_page import SHOWN_RUNS, load_table_page
from sluice.quality.quality_pages import QualityPages
from sluice_airflow.pages.page_access import Reader, ReaderDep
from sluice_airflow.pages.page_addresses import airflow_of, base_of
from sluice_airflow.pages.page_state import PageState, StateDep

QUALITY_DAG = "data_quality"

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
    return HTMLResponse(render("tables", {"base": base_of(request), "lines": _lines(reader, pages)}))


def _table_page(
    table: str, request: Request, reader: ReaderDep, pages: StateDep, done: DoneWord | None = None
) -> HTMLResponse:
    _require(reader, MAINTENANCE_DAG)
    line = next(iter(_lines(reader, pages, only=table)), None)
    if line is None:
        raise HTTPException(404, f"No valid file declares a table called {table}.")
    may_see_quality = bool(reader.may_read([QUALITY_DAG]))
    checks = recent_quality(pages.ledger, table, limit=SHOWN_RUNS) if may_see_quality else ()
    docs = QualityPages(root=pages.deployment.settings.reports)
    folders = {check.checked_at: docs.data_docs(table, check.checked_at) for check in checks}
    values = {
        "base": base_of(request),
        "airflow": airflow_of(request),
        "line": line,
        "page": load_table_page(pages.ledger, line, find_declaration(pages.declarations, table).maintenance),
        "outlook": _find_outlook(MAINTENANCE_DAG),
        "maintenance_dag": MAINTENANCE_DAG,
        "done": None if done is None else DONE_SENTENCES[done],
        "may_maintain": table in pages.maintained_tables(reader) and reader.may_start(MAINTENANCE_DAG),
        "checks": checks,
        "may_see_quality": may_see_quality,
        "reports": {at: folder.name for at, folder in folders.items() if (folder / "index.html").is_file()},
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


def _lines(reader: Reader, pages: PageState, *, only: str | None = None) -> tuple[TableLine, ...]:
    readable = reader.may_read(pages.declarations.streams)
    lines = observe_tables(pages.ledger, pages.declarations, readable_streams=readable, only=only)
    if reader.may_read([QUALITY_DAG]):
        return lines
    return tuple(replace(line, verdict=None, failed=0, expectations=0, checked_at=None) for line in lines)


def _require(reader: Reader, dag: str) -> None:
    if not reader.may_read([dag]):
        raise HTTPException(403, f"You may not read the DAG {dag}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class _DagOutlook:
    """A DAG as its scheduler has it. next_run_at: unset when its schedule yields no further run."""

    is_paused: bool
    next_run_at: datetime | None


def _find_outlook(dag_id: str) -> _DagOutlook | None:
    """Look a DAG up by its id; none when Airflow has not parsed it. One row, by the primary key."""
    query = select(DagModel.is_paused, DagModel.next_dagrun_create_after).where(
        DagModel.dag_id == dag_id, DagModel.is_stale.is_(False)
    )
    with create_session(scoped=False) as session:
        row = session.execute(query).one_or_none()
    return None if row is None else _DagOutlook(is_paused=bool(row[0]), next_run_at=row[1])
