"""Where the pages lie, below Airflow's own address and in frames of its UI, and what the plugin registers of them.

Every process of Airflow imports the plugin; only the API server needs the application. So it is made when the first
request comes, and this module imports nothing that is slow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from fastapi import Request

PREFIX = "/sluice"
"""Where the application lies below Airflow's address. Airflow mounts it there; the login does not come with it."""

ROUTE = "streams"
"""The page in Airflow's UI that shows the application in a frame: `/plugin/streams/…`."""


def stream_address(stream: str) -> str:
    """Where Airflow's UI shows the page of a stream, relative to Airflow's own address."""
    return f"plugin/{ROUTE}{PREFIX}/streams/{quote(stream)}"


def quality_address(table: str) -> str:
    """Where Airflow's UI shows what the rules of a table found, relative to Airflow's own address."""
    return f"plugin/{ROUTE}{PREFIX}/tables/{quote(table)}/quality"


def base_of(request: Request) -> str:
    """The path below which the application lies, as links need it."""
    return quote(request.scope.get("root_path", ""))


def airflow_of(request: Request) -> str:
    """The path below which Airflow's own pages lie."""
    return base_of(request).removesuffix(PREFIX) + "/"


def dag_run_link(launched_by: str) -> str:
    """The page of the task that started a run, from the name that the ledger has of it; empty when it was another."""
    words = launched_by.removeprefix("airflow: ").split(", ", 1)
    if not launched_by.startswith("airflow: ") or len(words) != 2:
        return ""
    dag, dag_run = (quote(word, safe="") for word in words)
    return f"dags/{dag}/runs/{dag_run}"


TILE_NAME = "Sluice streams"
"""The name under which `tile.js` registers itself."""

Message = MutableMapping[str, Any]


class PagesApplication:
    """An ASGI application that is made when it is first called."""

    def __init__(self) -> None:
        self._made: Any = None
        self._lock = Lock()

    async def __call__(
        self,
        scope: Message,
        receive: Callable[[], Awaitable[Message]],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Hand a request to the application."""
        await self._application()(scope, receive, send)

    def _application(self) -> Any:
        with self._lock:
            if self._made is None:
                from sluice_airflow.pages.page_app import pages_app

                self._made = pages_app()
            return self._made


_BELOW = PREFIX.removeprefix("/")
"""Addresses in Airflow's UI are relative, so that they are right as well where Airflow itself lies below a path."""

_ICONS = {"icon": f"{_BELOW}/static/streams.svg", "icon_dark_mode": f"{_BELOW}/static/streams-dark.svg"}

FASTAPI_APPS = [{"name": "sluice", "url_prefix": PREFIX, "app": PagesApplication()}]

EXTERNAL_VIEWS = [
    {
        "name": "Streams",
        "href": f"{_BELOW}/streams",
        "destination": "nav",
        "url_route": ROUTE,
        "nav_top_level": True,
        **_ICONS,
    },
    {
        "name": "Stream",
        "href": f"{_BELOW}/streams/{{DAG_ID}}",
        "destination": "dag",
        "url_route": "stream",
        **_ICONS,
    },
]

REACT_APPS = [
    {
        "name": TILE_NAME,
        "bundle_url": f"{_BELOW}/static/tile.js",
        "destination": "dashboard",
        "url_route": "sluice-tile",
    },
]
