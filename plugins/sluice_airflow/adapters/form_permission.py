"""Which tables and streams a person may choose in the forms of the platform's DAGs: those that the pages show them.

`table_maintenance`, `data_quality` and `checkpoint_health` are one DAG each for all tables or streams, so Airflow's
permission on them says nothing about one of those. A quarantine is called like its stream, and is for who may read the
DAG of that. A run for all of them, which the schedule makes too, chooses none and passes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from sluice.supervision.platform_dags import CHECKPOINTS_DAG, MAINTENANCE_DAG, QUALITY_DAG
from sluice_airflow.adapters.api_requests import (
    Denial,
    document_of,
    may_change_something,
    refuse,
    repeated,
    user_of,
    whole_body,
)

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

    from sluice.pages.declared_now import DeclaredNow

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
    from sluice.pages.declared_now import DeclaredNow
    from sluice.settings import load_settings

    return DeclaredNow(load_settings().pipelines)
