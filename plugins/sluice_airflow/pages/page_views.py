"""What the plugin registers in Airflow: the application, and the places in Airflow's UI that lead to it.

Every process of Airflow imports the plugin; only the API server needs the application. So it is made when the first
request comes, and this module imports nothing that is slow.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from threading import Lock
from typing import Any

from sluice_airflow.pages.page_addresses import PREFIX, ROUTE

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
