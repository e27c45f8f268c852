"""The address of the samples of a stream's quarantine. They are data and not operations: a permission of its own."""

from __future__ import annotations

from datetime import UTC, datetime

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse

from sluice.pages.page_templates import render
from sluice_airflow.pages.page_access import SAMPLES_HIDDEN, ReaderDep
from sluice_airflow.pages.page_state import StateDep
from sluice_airflow.pages.stream_routes import base_of


def quarantine_routes() -> APIRouter:
    """The route of the samples."""
    router = APIRouter()
    router.add_api_route("/streams/{stream}/quarantine", _samples_page, methods=["GET"], response_class=HTMLResponse)
    return router


def _samples_page(stream: str, request: Request, reader: ReaderDep, pages: StateDep) -> HTMLResponse:
    if not reader.may_read([stream]):
        raise HTTPException(403, f"You may not read the DAG {stream}.")
    if not reader.may_see_samples(stream):
        raise HTTPException(403, SAMPLES_HIDDEN)
    declarations = pages.declarations
    declared = declarations.streams.get(stream)
    if declared is None or not declared.declaration.quarantine:
        raise HTTPException(404, f"No valid file declares a stream called {stream} with a quarantine.")
    values = {
        "base": base_of(request),
        "stream": stream,
        "page": pages.quarantines.load(declared.declaration, declarations.tables),
        "now": datetime.now(UTC),
    }
    return HTMLResponse(render("quarantine", values))
