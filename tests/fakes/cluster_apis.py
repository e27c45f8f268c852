"""HTTP servers on loopback that answer with the shapes of the real APIs, recorded or documented, and keep some state.

YARN's shapes are the answers of a ResourceManager 3.4.2 (`make test-yarn` asks a real one the same questions). Those of
Kubernetes are of its API reference, pod v1: no Kubernetes was there to be asked.
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

from sluice.launching.cluster.cluster_application import ApplicationState, DriverTag
from sluice.launching.cluster.yarn import yarn_tags

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


@dataclass(slots=True)
class KubernetesApi:
    """The pods of one namespace. token: what a request must carry."""

    token: str
    pods: list[dict[str, Any]] = field(default_factory=list)

    def add(self, tag: DriverTag, state: ApplicationState, *, explanation: str = "") -> str:
        """Let a driver's pod stand somewhere. Returns its name."""
        phases = {
            ApplicationState.QUEUED: "Pending",
            ApplicationState.RUNNING: "Running",
            ApplicationState.SUCCEEDED: "Succeeded",
            ApplicationState.FAILED: "Failed",
        }
        name = f"sluice-flights-{len(self.pods) + 1}-driver"
        container: dict[str, Any] = {"running": {"startedAt": "2026-11-21T19:00:00Z"}}
        if state in {ApplicationState.SUCCEEDED, ApplicationState.FAILED}:
            code = 0 if state is ApplicationState.SUCCEEDED else 137
            container = {"terminated": {"exitCode": code, "reason": explanation}}
        self.pods.append(
            {
                "metadata": {
                    "name": name,
                    "namespace": "streams",
                    "creationTimestamp": f"2026-11-21T19:00:{len(self.pods):02d}Z",
                    "labels": {**tag.labels(), "spark-role": "driver", "spark-app-selector": "spark-1"},
                },
                "status": {
                    "phase": phases[state],
                    "containerStatuses": [{"name": "spark-kubernetes-driver", "state": container}],
                },
            }
        )
        return name

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer:
        """As the API server answers."""
        del body
        if method == "GET":
            wanted = dict(term.split("=") for term in query["labelSelector"][0].split(","))
            found = [pod for pod in self.pods if wanted.items() <= pod["metadata"]["labels"].items()]
            return 200, {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": found}
        name = path.rpartition("/")[2]
        left = [pod for pod in self.pods if pod["metadata"]["name"] != name]
        if len(left) == len(self.pods):
            return 404, {"kind": "Status", "status": "Failure", "reason": "NotFound", "code": 404}
        self.pods[:] = left
        return 200, {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}}


@contextmanager
def served(api: Api, *, token: str | None = None) -> Iterator[str]:
    """The address at which an API answers. token: what every request must carry; unset: nothing."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def do_DELETE(self) -> None:
            self._answer()

        def _answer(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            if token is not None and self.headers.get("Authorization") != f"Bearer {token}":
                status, content = 401, {"kind": "Status", "reason": "Unauthorized", "code": 401}
            else:
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
