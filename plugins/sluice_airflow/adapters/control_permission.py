"""Who may control which stream from Airflow: only who may edit the stream's own DAG, and so pause it.

The form of `stream_control` is one DAG for all streams, so Airflow's permission on it says nothing about a stream. The
API server asks its auth manager about the stream's own DAG before it triggers, changes or answers a run of
`stream_control`: the question that the page of the stream asks too (`pages.page_access`). Only the API server knows the
person; a task does not.

    POST …/dags/stream_control/dagRuns                    the stream is in the body
    POST, PATCH, PUT, DELETE …/dags/stream_control/…      the stream is in the DAG run that the path or the body names
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

_PATH = re.compile(r"/api/v2/dags/stream_control/(?P<rest>dagRuns(/(?P<run>[^/]+))?|clearTaskInstances)")
_MANY_RUNS = frozenset({"clear"})
"""What stands in the place of a run's id when a request is about several."""

_CHANGES = frozenset({"POST", "PATCH", "PUT", "DELETE"})


@dataclass(frozen=True, slots=True)
class Denial:
    """The answer to a request that is not permitted. status: of HTTP."""

    status: int
    detail: str


MayControl = Callable[["Scope", str], Awaitable[Denial | None]]
StreamOfRun = Callable[[str], Awaitable[str | None]]


class ControlPermission:
    """The middleware of the API server; every other request passes untouched.

    Parameters
    ----------
    app: what answers a request that is allowed.
    may_control: refuses a request of a person who may not edit the DAG of a stream; none when it is allowed.
    stream_of_run: the stream that a run of `stream_control` is about; none when there is no such run.
    """

    def __init__(
        self, app: ASGIApp, *, may_control: MayControl | None = None, stream_of_run: StreamOfRun | None = None
    ) -> None:
        self._app = app
        self._may_control = may_control or _may_control
        self._stream_of_run = stream_of_run or _stream_of_run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        place = _PATH.search(scope.get("path", "")) if scope["type"] == "http" else None
        if place is None or scope["method"] not in _CHANGES:
            await self._app(scope, receive, send)
            return
        body = await _whole_body(receive)
        refusal = await self._refusal(scope, place["run"], body, is_trigger=_is_trigger(scope, place))
        if refusal is not None:
            await _refuse(refusal, send)
            return
        await self._app(scope, _repeated(body, receive), send)

    async def _refusal(self, scope: Scope, run_id: str | None, body: bytes, *, is_trigger: bool) -> Denial | None:
        document = _document_of(body)
        if is_trigger:
            conf = document.get("conf")
            stream = conf.get("stream") if isinstance(conf, dict) else None
            # Without a stream the trigger fails: the parameter is required.
            return await self._may_control(scope, stream) if isinstance(stream, str) else None
        named = run_id or document.get("dag_run_id")
        if not isinstance(named, str) or named in _MANY_RUNS:
            return Denial(403, "Name one DAG run of stream_control: who may change it depends on its stream.")
        stream = await self._stream_of_run(named)
        return None if stream is None else await self._may_control(scope, stream)


def _is_trigger(scope: Scope, place: re.Match[str]) -> bool:
    return scope["method"] == "POST" and place["rest"] == "dagRuns"


async def _may_control(scope: Scope, stream: str) -> Denial | None:
    """Ask Airflow's auth manager, as the API does when the stream's own DAG is paused."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
    from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
    from airflow.api_fastapi.core_api.security import get_user
    from airflow.models.dag import DagModel
    from fastapi import HTTPException, Request
    from fastapi.security.utils import get_authorization_scheme_param
    from starlette.concurrency import run_in_threadpool

    request = Request(scope)
    if not request.headers.get("authorization") and COOKIE_NAME_JWT_TOKEN not in request.cookies:
        return None  # Airflow refuses a request without credentials itself, unless it takes all for admins
    kind, token = get_authorization_scheme_param(request.headers.get("authorization"))
    try:
        user = await get_user(request, None, _bearer(token) if kind.lower() == "bearer" else None)
    except HTTPException as error:
        return Denial(error.status_code, str(error.detail))

    def is_allowed() -> bool:
        details = DagDetails(id=stream, team_name=DagModel.get_team_name(stream))
        return get_auth_manager().is_authorized_dag(method="PUT", details=details, user=user)

    if await run_in_threadpool(is_allowed):
        return None
    return Denial(403, f"You may not edit the DAG {stream}, and so not control its stream.")


def _bearer(token: str) -> Any:
    from fastapi.security import HTTPAuthorizationCredentials

    return HTTPAuthorizationCredentials(scheme="Bearer", credentials=token)


async def _stream_of_run(run_id: str) -> str | None:
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import select
    from starlette.concurrency import run_in_threadpool

    def find() -> str | None:
        with create_session() as session:
            query = select(DagRun.conf).where(DagRun.dag_id == "stream_control", DagRun.run_id == run_id)
            conf = session.scalars(query).one_or_none()
        stream = (conf or {}).get("stream")
        return stream if isinstance(stream, str) else None

    return await run_in_threadpool(find)


def _document_of(body: bytes) -> dict[str, Any]:
    try:
        document = json.loads(body or b"{}")
    except ValueError:  # Airflow's own answer says what is wrong with it
        return {}
    return document if isinstance(document, dict) else {}


async def _whole_body(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message: MutableMapping[str, Any] = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _repeated(body: bytes, receive: Receive) -> Receive:
    """Hands the body out once more, then what follows it."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def repeat() -> Message:
        return pending.pop() if pending else await receive()

    return repeat


async def _refuse(refusal: Denial, send: Send) -> None:
    body = json.dumps({"detail": refusal.detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
