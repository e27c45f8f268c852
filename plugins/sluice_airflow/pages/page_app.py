"""The application of the pages: its routes behind Airflow's login, and what an error looks like."""

from __future__ import annotations

import logging
from http import HTTPStatus

from airflow.api_fastapi.app import get_auth_manager
from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.responses import Response

from sluice.errors import LedgerError, SluiceError
from sluice.pages.page_templates import STATIC, render
from sluice_airflow.composition import load_deployment
from sluice_airflow.pages.action_routes import action_routes
from sluice_airflow.pages.page_access import REQUIRES_LOGIN
from sluice_airflow.pages.page_addresses import base_of
from sluice_airflow.pages.page_guard import add_headers, require_readable
from sluice_airflow.pages.page_state import PageState
from sluice_airflow.pages.stream_routes import stream_routes
from sluice_airflow.pages.table_routes import table_routes

_log = logging.getLogger(__name__)

_HEADINGS = {
    HTTPStatus.UNAUTHORIZED: "Please log in",
    HTTPStatus.FORBIDDEN: "This is not allowed",
    HTTPStatus.NOT_FOUND: "There is no such page",
}

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = {path.name: path for path in STATIC.iterdir() if path.suffix in _TYPES}
"""The style sheet, the scripts and the icons: only those that exist at the start are served."""


def pages_app() -> FastAPI:
    """Make the application. Its own documentation is switched off: it would be open to everybody.

    Raises
    ------
    SettingsError: when the environment of the API server does not describe a deployment.
    """
    app = FastAPI(
        title="Sluice",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        dependencies=[REQUIRES_LOGIN, Depends(require_readable)],
        debug=False,
    )
    app.state.pages = PageState.of(load_deployment())
    app.middleware("http")(add_headers)
    app.include_router(stream_routes())
    app.include_router(action_routes())
    app.include_router(table_routes())
    app.add_api_route("/static/{name}", _static_file, methods=["GET"])
    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(SluiceError, _sluice_problem)
    return app


def _static_file(name: str) -> FileResponse:
    path = _FILES.get(name)
    if path is None:
        raise HTTPException(404, f"There is no file {name!r}.")
    return FileResponse(path, media_type=_TYPES[path.suffix], headers={"Cache-Control": "private, max-age=300"})


async def _http_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101  # it is registered for this one
    status = HTTPStatus(error.status_code)
    link = None
    if status is HTTPStatus.UNAUTHORIZED:
        login = get_auth_manager().get_url_login(next_url=str(request.url))
        link = (login, "Log in to Airflow", True)
    return _problem(request, status, _HEADINGS.get(status, status.phrase), str(error.detail), link=link)


async def _bad_request(request: Request, error: Exception) -> Response:
    _log.info("%s %s: %s", request.method, request.url.path, error)
    sentence = "The request is incomplete, or a value in it is not allowed."
    return _problem(request, HTTPStatus.UNPROCESSABLE_ENTITY, "The request cannot be read", sentence)


async def _sluice_problem(request: Request, error: Exception) -> Response:
    """An error of ours: the page says what the command line would say; the ledger may come back by itself."""
    assert isinstance(error, SluiceError)  # noqa: S101  # it is registered for this one
    _log.warning("%s %s: %s", request.method, request.url.path, error)
    is_ledger = isinstance(error, LedgerError)
    status = HTTPStatus.SERVICE_UNAVAILABLE if is_ledger else HTTPStatus.CONFLICT
    heading = "The ledger does not answer" if is_ledger else "This cannot be done now"
    retry = 5 if is_ledger and request.method == "GET" else None
    return _problem(request, status, heading, error.message, next_step=error.next_step, retry_seconds=retry)


def _problem(
    request: Request,
    status: HTTPStatus,
    heading: str,
    sentence: str,
    *,
    next_step: str = "",
    link: tuple[str, str, bool] | None = None,
    retry_seconds: int | None = None,
) -> Response:
    if request.url.path.removeprefix(request.scope.get("root_path", "")).startswith("/api/"):
        return JSONResponse({"error": sentence, "next_step": next_step}, status_code=status)
    values = {
        "base": base_of(request),
        "heading": heading,
        "sentence": sentence,
        "next_step": next_step,
        "link": link,
        "retry_seconds": retry_seconds,
    }
    return HTMLResponse(render("problem", values), status_code=status)
