"""The addresses of Spark's own UI of a stream's driver: for who may read its DAG, and read only.

The addresses have the form of Hadoop's proxy, `…/proxy/<application>/…`, by which Spark's scripts find its REST API.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from urllib.parse import quote

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import RedirectResponse, Response

from sluice.ledger.driver_uis import DriverUi
from sluice.pages.spark_ui import FILE_TYPES, find_ui, read_static_file, read_ui
from sluice.processes.driver_processes import observe_process
from sluice_airflow.pages.page_access import Reader, ReaderDep
from sluice_airflow.pages.page_addresses import base_of
from sluice_airflow.pages.page_guard import spark_ui_policy
from sluice_airflow.pages.page_state import PageState, StateDep


def spark_routes() -> APIRouter:
    """The routes of the UI."""
    router = APIRouter()
    router.add_api_route("/streams/{stream}/spark", _to_ui, methods=["GET"])
    router.add_api_route("/streams/{stream}/spark/proxy/{application}/{path:path}", _ui_page, methods=["GET"])
    return router


def _to_ui(stream: str, request: Request, reader: ReaderDep, pages: StateDep) -> RedirectResponse:
    ui = _ui_of(stream, reader, pages)
    return RedirectResponse(f"{_base(request, stream, ui.application)}/jobs/")


def _ui_page(
    stream: str, application: str, path: str, request: Request, reader: ReaderDep, pages: StateDep
) -> Response:
    ui = _ui_of(stream, reader, pages)
    base = _base(request, stream, ui.application)
    if application != ui.application:  # a page of a driver that was restarted meanwhile
        return RedirectResponse(f"{base}/jobs/")
    headers = {"Content-Security-Policy": spark_ui_policy(request.headers.get("host", ""), base)}
    if path.startswith("static/"):
        return _static_file(path, headers)
    answer = read_ui(ui, quote(path), query=request.url.query, base=base)
    if answer.redirect is not None:
        return RedirectResponse(f"{base}/{answer.redirect}", headers=headers)
    return Response(answer.body, status_code=answer.status, media_type=answer.content_type, headers=headers)


def _ui_of(stream: str, reader: Reader, pages: PageState) -> DriverUi:
    if not reader.may_read([stream]):
        raise HTTPException(403, f"You may not read the DAG {stream}.")
    return find_ui(pages.ledger, stream, observe_process=observe_process)


def _base(request: Request, stream: str, application: str) -> str:
    return f"{base_of(request)}/streams/{quote(stream)}/spark/proxy/{quote(application, safe='')}"


def _static_file(path: str, headers: dict[str, str]) -> Response:
    content = read_static_file(path)
    if content is None:
        raise HTTPException(404, f"Spark's UI has no file {path!r}.")
    cached = headers | {"Cache-Control": "private, max-age=3600"}
    return Response(content, media_type=FILE_TYPES[PurePosixPath(path).suffix], headers=cached)
