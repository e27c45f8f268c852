"""Requests to Airflow's API as a middleware of the API server sees them: their body, who asks, and a refusal."""

from __future__ import annotations

import json
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

CHANGES = frozenset({"POST", "PATCH", "PUT", "DELETE"})


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
