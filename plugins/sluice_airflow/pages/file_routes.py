"""The style sheet, the scripts and the icons of the pages, behind the login as everything else."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException
from fastapi.responses import FileResponse

from sluice.pages.page_templates import STATIC

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = {path.name: path for path in STATIC.iterdir() if path.suffix in _TYPES}


def file_routes() -> APIRouter:
    """The route of the files; only those that exist at the start are served."""
    router = APIRouter()

    @router.get("/static/{name}")
    def static_file(name: str) -> FileResponse:
        path = _FILES.get(name)
        if path is None:
            raise HTTPException(404, f"There is no file {name!r}.")
        return FileResponse(path, media_type=_TYPES[path.suffix], headers={"Cache-Control": "private, max-age=300"})

    return router
