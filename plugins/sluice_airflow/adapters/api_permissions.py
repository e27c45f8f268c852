"""Which requests to Airflow's API pass: who may control which stream, and who may choose what in the platform's forms.

*Control*: only who may edit the stream's own DAG, and so pause it, may control it. The form of `stream_control` is one
DAG for all streams, so Airflow's permission on it says nothing about a stream. The API server asks its auth manager
about the stream's own DAG before it triggers, changes or answers a run of `stream_control`: the question that the page
of the stream asks too (`pages.page_access`). Only the API server knows the person; a task does not. So it also records
in the ledger what the person asks and answers, and the tasks act on that alone. Which requests are meant is decided in
`control_routes`.

*Choices*: `table_maintenance`, `data_quality` and `checkpoint_health` are one DAG each for all tables or streams, so
Airflow's permission on them says nothing about one of those. A person may choose in their forms the tables and streams
that the pages show them: a quarantine is for who may read the DAG of its stream. A run for all of them, which the
schedule makes too, chooses none and passes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Protocol

from sluice.ledger.control_values import Person
from sluice.supervision.platform_dags import CHECKPOINTS_DAG, MAINTENANCE_DAG, QUALITY_DAG
from sluice_airflow.adapters.control_routes import CHANGES, CONTROL_DAG, ControlForm, ControlledRequest, judge_request

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from sluice.declarations.load_declarations import DeclaredNow


@dataclass(frozen=True, slots=True)
class Denial:
    """The answer to a request that is not permitted. status: of HTTP."""

    status: int
    detail: str


def may_change_something(scope: Scope) -> bool:
    """Whether a request is one to Airflow's API that may change something."""
    return scope["type"] == "http" and scope["method"] in CHANGES and "/api/v2/" in scope.get("path", "")


async def user_of(scope: Scope) -> Any | Denial | None:
    """The user of Airflow's auth manager who asks; none without credentials, which Airflow refuses itself, unless it
    takes all for admins."""
    from airflow.api_fastapi.auth.managers.base_auth_manager import COOKIE_NAME_JWT_TOKEN
    from airflow.api_fastapi.core_api.security import get_user
    from fastapi import HTTPException, Request
    from fastapi.security import HTTPAuthorizationCredentials
    from fastapi.security.utils import get_authorization_scheme_param

    request = Request(scope)
    if not request.headers.get("authorization") and COOKIE_NAME_JWT_TOKEN not in request.cookies:
        return None
    kind, token = get_authorization_scheme_param(request.headers.get("authorization"))
    bearer = HTTPAuthorizationCredentials(scheme="Bearer", credentials=token) if kind.lower() == "bearer" else None
    try:
        return await get_user(request, None, bearer)
    except HTTPException as error:
        return Denial(error.status_code, str(error.detail))


def document_of(body: bytes) -> tuple[Any, bool]:
    """The document of a body, none when it is no JSON; and whether it can be looked into."""
    try:
        return json.loads(body or b"{}"), True
    except RecursionError:
        return None, False
    except ValueError:  # Airflow's own answer says what is wrong with it
        return None, True


async def whole_body(receive: Receive) -> bytes:
    """The body of a request."""
    parts: list[bytes] = []
    while True:
        message: MutableMapping[str, Any] = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def repeated(body: bytes, receive: Receive) -> Receive:
    """Hands the body out once more, then what follows it."""
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def repeat() -> Message:
        return pending.pop() if pending else await receive()

    return repeat


async def refuse(refusal: Denial, send: Send) -> None:
    """Answer with a refusal in the form of Airflow's API."""
    body = json.dumps({"detail": refusal.detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": refusal.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


_SEVERAL = "Who may change a run of stream_control depends on its stream: name one run, in an address of that DAG."
_NO_RUN = "There is no such run of stream_control, or it names no stream."
_KNOWN_RUN = "There was a request for a run of stream_control with this id already. Leave `dag_run_id` out."
_NOT_RECORDED = "The ledger does not answer. {}"


MayControl = Callable[["Scope", str], Awaitable[Denial | Person | None]]


class ControlRecords(Protocol):
    """What is known of runs of `stream_control`, and where requests and answers are recorded."""

    async def stream_of_run(self, run_id: str) -> str | None:
        """The stream that a run is about; none when there is no such run."""

    async def shown_digest(self, run_id: str, task: str, *, map_index: int) -> str | None:
        """The digest of the plan that a task shows to whoever answers; none when it shows none."""

    async def record_request(self, run_id: str, conf: Mapping[str, Any], *, by: Person) -> bool | None:
        """Record what a run is to do. Returns whether it is the first for this id; none when the ledger is silent."""

    async def record_answer(self, run_id: str, *, by: Person, approved_digest: str | None) -> bool | None:
        """Record an answer. Returns whether it is the first; none when the ledger does not answer."""


class ControlPermission:
    """The middleware of the API server; every other request passes untouched.

    Parameters
    ----------
    app: what answers a request that is allowed.
    may_control: the person, or the refusal when they may not edit the DAG of a stream; none without credentials, which
        Airflow refuses itself.
    records: what is known of runs, and where requests and answers are recorded.
    """

    def __init__(
        self, app: ASGIApp, *, may_control: MayControl | None = None, records: ControlRecords | None = None
    ) -> None:
        self._app = app
        self._may_control = may_control or _may_control
        self._records = records or _ledger_records()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if not may_change_something(scope):
            await self._app(scope, receive, send)
            return
        body = await whole_body(receive)
        document, is_readable = document_of(body)
        request = judge_request(scope["method"], scope["path"], document) if is_readable else _UNREADABLE
        if request is None:
            await self._app(scope, repeated(body, receive), send)
        elif request.form is ControlForm.REFUSED:
            await refuse(Denial(403, _SEVERAL), send)
        elif request.form is ControlForm.TRIGGER:
            await self._trigger(scope, receive, send, body, document, request)
        else:
            await self._change(scope, receive, send, body, document, request)

    async def _trigger(
        self, scope: Scope, receive: Receive, send: Send, body: bytes, document: Any, request: ControlledRequest
    ) -> None:
        conf = document.get("conf") if isinstance(document, dict) else None
        stream = conf.get("stream") if isinstance(conf, dict) else None
        if not isinstance(conf, dict) or not isinstance(stream, str):  # the trigger fails: the parameter is required
            await self._app(scope, repeated(body, receive), send)
            return
        person = await self._may_control(scope, stream)
        if isinstance(person, Denial):
            await refuse(person, send)
            return
        if person is not None and conf.get("dry_run") is False:
            run_id = request.run_id or f"manual__{datetime.now(UTC).isoformat()}_{token_hex(4)}"
            recorded = await self._records.record_request(run_id, conf, by=person)
            if recorded is not True:
                await refuse(_not_recorded(is_unreachable=recorded is None), send)
                return
            body = json.dumps({**document, "dag_run_id": run_id}).encode()
            scope = _with_length(scope, len(body))
        await self._app(scope, repeated(body, receive), send)

    async def _change(
        self, scope: Scope, receive: Receive, send: Send, body: bytes, document: Any, request: ControlledRequest
    ) -> None:
        run_id = request.run_id or ""
        stream = await self._records.stream_of_run(run_id)
        person = await self._may_control(scope, stream or CONTROL_DAG)
        if stream is None and isinstance(person, Person):
            person = Denial(404, _NO_RUN)
        if isinstance(person, Denial):
            await refuse(person, send)
            return
        if request.form is not ControlForm.ANSWER or person is None:
            await self._app(scope, repeated(body, receive), send)
            return
        shown = await self._records.shown_digest(run_id, request.task, map_index=request.map_index)
        chosen = document.get("chosen_options") if isinstance(document, dict) else None
        approved = shown if isinstance(chosen, list) and chosen == ["Approve"] else None
        answer: list[Message] = []

        async def keep(message: Message) -> None:
            answer.append(message)

        await self._app(scope, repeated(body, receive), keep)
        # Only what Airflow has accepted is an answer. The task waits until it is recorded.
        is_accepted = bool(answer) and 200 <= answer[0]["status"] < 300
        if is_accepted and await self._records.record_answer(run_id, by=person, approved_digest=approved) is None:
            await refuse(Denial(503, _NOT_RECORDED.format("Trigger stream_control again: this answer is lost.")), send)
            return
        for message in answer:
            await send(message)


_UNREADABLE = ControlledRequest(form=ControlForm.REFUSED)
"""A body that is nested too deeply to look into."""


def _ledger_records() -> ControlRecords:
    from sluice_airflow.adapters.control_records import LedgerControlRecords  # the API server alone needs a ledger

    return LedgerControlRecords()


def _not_recorded(*, is_unreachable: bool) -> Denial:
    return Denial(503, _NOT_RECORDED.format("Nothing was triggered.")) if is_unreachable else Denial(409, _KNOWN_RUN)


async def _may_control(scope: Scope, stream: str) -> Denial | Person | None:
    """Ask Airflow's auth manager, as the API does when the stream's own DAG is paused."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
    from airflow.models.dag import DagModel
    from starlette.concurrency import run_in_threadpool

    user = await user_of(scope)
    if user is None or isinstance(user, Denial):
        return user

    def is_allowed() -> bool:
        details = DagDetails(id=stream, team_name=DagModel.get_team_name(stream))
        return get_auth_manager().is_authorized_dag(method="PUT", details=details, user=user)

    if await run_in_threadpool(is_allowed):
        return Person(person_id=str(user.get_id()), name=str(user.get_name()))
    return Denial(403, f"You may not edit the DAG {stream}, and so not control its stream.")


def _with_length(scope: Scope, length: int) -> Scope:
    headers = [(name, value) for name, value in scope.get("headers", ()) if name.lower() != b"content-length"]
    return {**scope, "headers": [*headers, (b"content-length", str(length).encode())]}


FORMS = frozenset({MAINTENANCE_DAG, QUALITY_DAG, CHECKPOINTS_DAG})
"""The DAGs whose runs are about what a person chooses."""

CHOICES = frozenset({"tables", "streams"})
"""The parameters that choose."""

_EVERY = "~"

MayChoose = Callable[["Scope", frozenset[str]], Awaitable[Denial | None]]


class FormPermission:
    """The middleware of the API server; every other request passes untouched.

    Parameters
    ----------
    app: what answers a request that is allowed.
    may_choose: why the person may not choose one of these names; none when they may.
    """

    def __init__(self, app: ASGIApp, *, may_choose: MayChoose | None = None) -> None:
        self._app = app
        self._may_choose = may_choose or _may_choose

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if not may_change_something(scope):
            await self._app(scope, receive, send)
            return
        body = await whole_body(receive)
        document, _ = document_of(body)  # Airflow takes none that is nested too deeply, either
        chosen = names_chosen(scope["path"], document)
        denial = await self._may_choose(scope, chosen) if chosen else None
        if denial is not None:
            await refuse(denial, send)
        else:
            await self._app(scope, repeated(body, receive), send)


def names_chosen(path: str, body: Any) -> frozenset[str]:
    """The tables and streams that a request chooses for a run of such a DAG, wherever its body has them. Pure.

    Parameters
    ----------
    body: the document that was sent; none when it is no JSON.
    """
    places = [part.strip().casefold() for part in path.split("/")]
    named = {*places, *(name.strip().casefold() for name in _texts(body))}
    return frozenset(_chosen(body)) if named & {*FORMS, _EVERY} else frozenset()


def _chosen(body: Any) -> Iterator[str]:
    match body:
        case Mapping():
            for key, inner in body.items():
                yield from _texts(inner) if key in CHOICES else _chosen(inner)
        case list():
            for inner in body:
                yield from _chosen(inner)


def _texts(body: Any) -> Iterator[str]:
    match body:
        case Mapping():
            for inner in body.values():
                yield from _texts(inner)
        case list():
            for inner in body:
                yield from _texts(inner)
        case str():
            yield body


async def _may_choose(scope: Scope, chosen: frozenset[str]) -> Denial | None:
    """Ask what the pages ask: whether the person may read the DAGs of the streams. Other tables are for all who may
    start runs of the DAG, and to a name that is not declared Airflow answers itself."""
    user = await user_of(scope)
    if user is None or isinstance(user, Denial):
        return user

    def hidden() -> list[str]:
        from airflow.api_fastapi.app import get_auth_manager
        from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails

        return [
            name
            for name, stream in _declared().read().streams.items()
            if not chosen.isdisjoint((name, stream.declaration.quarantine_table))
            and not get_auth_manager().is_authorized_dag(method="GET", details=DagDetails(id=name), user=user)
        ]

    if names := await asyncio.to_thread(hidden):
        return Denial(403, f"You may not read the DAG {', '.join(names)}, and so choose neither it nor its quarantine.")
    return None


@cache
def _declared() -> DeclaredNow:
    """The declarations of this process."""
    from sluice.declarations.load_declarations import DeclaredNow
    from sluice.settings import load_settings

    return DeclaredNow(load_settings().pipelines)
