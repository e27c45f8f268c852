"""An HTTP server on loopback that answers with the recorded shapes of a cluster's API, and keeps some state.

They are the answers of a ResourceManager 3.4.2 (`make test-yarn` asks a real one the same questions).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from sluice.launching.launcher_port import ApplicationState, DriverTag
from sluice.launching.yarn import yarn_tags

Answer = tuple[int, dict[str, Any]]


class Api(Protocol):
    """What answers a request."""

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer:
        """The status and the JSON."""


@dataclass(slots=True)
class YarnApi:
    """A ResourceManager's REST API. is_standby: whether it points at another one instead."""

    is_standby: bool = False
    apps: list[dict[str, Any]] = field(default_factory=list)

    def add(self, tag: DriverTag, state: ApplicationState, *, explanation: str = "") -> str:
        """Let an application stand somewhere. Returns its id."""
        states = {
            ApplicationState.QUEUED: ("ACCEPTED", "UNDEFINED"),
            ApplicationState.RUNNING: ("RUNNING", "UNDEFINED"),
            ApplicationState.SUCCEEDED: ("FINISHED", "SUCCEEDED"),
            ApplicationState.FAILED: ("FINISHED", "FAILED"),
            ApplicationState.KILLED: ("KILLED", "KILLED"),
        }
        name = f"application_1795290792835_{len(self.apps) + 1:04d}"
        word, final = states[state]
        self.apps.append(
            {
                "id": name,
                "user": "root",
                "name": "sluice flights",
                "queue": "root.default",
                "state": word,
                "finalStatus": final,
                "diagnostics": explanation,
                "applicationType": "SPARK",
                "applicationTags": ",".join(sorted(yarn_tags(tag))),
                "startedTime": 1795290973786 + len(self.apps),
            }
        )
        return name

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer:
        """As a ResourceManager answers."""
        if self.is_standby:
            return 307, {}
        parts = path.removeprefix("/ws/v1/cluster/").split("/")
        if method == "GET" and parts == ["apps"]:
            wanted = set(query["applicationTags"][0].split(","))
            found = [app for app in self.apps if wanted & set(app["applicationTags"].split(","))]
            return 200, {"apps": {"app": found} if found else {}}
        app = next((app for app in self.apps if app["id"] == parts[1]), None)
        if app is None:
            content = {"exception": "NotFoundException", "message": f"app with id: {parts[1]} not found"}
            return 404, {"RemoteException": content}
        if not query.get("user.name"):
            return 403, {"RemoteException": {"exception": "ForbiddenException", "message": "User dr.who not allowed"}}
        if app["state"] in {"ACCEPTED", "RUNNING"}:
            app |= {"state": body["state"], "finalStatus": body["state"]}
        return 200, {"state": app["state"]}


@contextmanager
def served(api: Api) -> Iterator[str]:
    """The address at which an API answers."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def _answer(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            status, content = api.answer(self.command, parts.path, parse_qs(parts.query), body)
            encoded = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(encoded)))
            self.end_headers()
            self.wfile.write(encoded)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
