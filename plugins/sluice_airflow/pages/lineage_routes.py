"""The address of the whole lineage: the streams whose DAG a person may read, with their inputs and outputs."""

from __future__ import annotations

from urllib.parse import urlencode

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

from sluice.pages.lineage_page import MOST_NAMED, LineageSelection, known_lineage, lineage_page
from sluice.pages.page_templates import render
from sluice_airflow.pages.page_access import ReaderDep
from sluice_airflow.pages.page_state import StateDep
from sluice_airflow.pages.stream_routes import base_of, problems_of, tables_for


def lineage_routes() -> APIRouter:
    """The route of the lineage."""
    router = APIRouter()
    router.add_api_route("/lineage", _lineage_page, methods=["GET"], response_class=HTMLResponse)
    return router


def _lineage_page(request: Request, reader: ReaderDep, pages: StateDep) -> HTMLResponse:
    seen = pages.observe(reader, with_history=False)
    declarations, tables = pages.declarations, tables_for(reader, pages)
    readable = reader.may_read(declarations.streams)
    known = known_lineage(declarations, readable_streams=readable, readable_tables=tables)
    selection = LineageSelection.of(request.query_params)
    query = dict(request.query_params)
    values = {
        "base": base_of(request),
        "known": known,
        "selection": selection,
        "page": lineage_page(known, selection, urgent={line.stream for line in seen.unhealthy}),
        "lines": {line.stream: line for line in seen.lines},
        "tables": tables,
        "problems": problems_of(pages, reader),
        "most_named": MOST_NAMED,
        "link_to_choose": lambda name: urlencode({**query, "of": name}),
    }
    return HTMLResponse(render("lineage", values))
