"""The addresses that act on a stream: a plan to look at, and its confirmation. Who may not edit its DAG gets a 403."""

from __future__ import annotations

import logging
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Form, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.pages.page_actions import MEANINGS, PageActions, PageVerb, leaves_of
from sluice.pages.page_templates import render
from sluice_airflow.pages.page_access import Reader, ReaderDep
from sluice_airflow.pages.page_guard import ShownPlan, is_of_own_origin
from sluice_airflow.pages.page_state import PageState, StateDep
from sluice_airflow.pages.stream_routes import base_of

_log = logging.getLogger(__name__)

_OF_ANOTHER_ORIGIN = "The request did not come from a page of this Airflow."
NOT_SHOWN = "The plan was not shown to you, or longer ago than ten minutes. Open it again."
"""Answers a confirmation without the token of a plan."""


def action_routes() -> APIRouter:
    """The routes of the actions."""
    router = APIRouter()
    router.add_api_route("/streams/{stream}/plan/{verb}", _show_plan, methods=["GET"], response_class=HTMLResponse)
    router.add_api_route(
        "/streams/{stream}/do/{verb}", _carry_out, methods=["POST"], dependencies=[Depends(require_own_origin)]
    )
    return router


def require_own_origin(request: Request) -> None:
    """Refuse a request to act that did not come from a page of this Airflow."""
    if not is_of_own_origin(request.headers):
        _log.warning("refused a request from %s to %s", request.headers.get("origin"), request.url.path)
        raise HTTPException(403, _OF_ANOTHER_ORIGIN)


def _show_plan(stream: str, verb: PageVerb, request: Request, reader: ReaderDep, pages: StateDep) -> HTMLResponse:
    wanted = stream_to_act_on(stream, reader, pages)
    plan = _actions(reader, pages).plan(verb, wanted)
    shown = ShownPlan(user=reader.name, subject=stream, verb=verb, number=leaves_of(plan))
    values = {
        "base": base_of(request),
        "place": f"streams/{quote(stream)}",
        "plan": plan,
        "verb": verb,
        "label": verb.replace("-", " ").capitalize(),
        "meaning": MEANINGS[verb],
        "is_grave": verb is PageVerb.RESET,
        "token": pages.tokens.token_of(shown),
    }
    return HTMLResponse(render("plan", values))


def _carry_out(
    stream: str,
    verb: PageVerb,
    request: Request,
    reader: ReaderDep,
    pages: StateDep,
    token: Annotated[str, Form(max_length=2000)],
) -> RedirectResponse:
    wanted = stream_to_act_on(stream, reader, pages)
    shown = pages.tokens.plan_of(token, user=reader.name, subject=stream, verb=verb)
    if shown is None:
        raise HTTPException(403, NOT_SHOWN)
    _actions(reader, pages).carry_out(verb, wanted, leaves=shown.number)
    _log.info("%s asked: %s %s", reader.name, verb, stream)
    return RedirectResponse(f"{base_of(request)}/streams/{quote(stream)}?done={verb}", status_code=303)


def stream_to_act_on(name: str, reader: Reader, pages: PageState) -> LoadedStream:
    """A declared stream that a person may act on. Permission comes first: others do not learn whether it exists."""
    if not reader.may_act_on([name]):
        raise HTTPException(403, f"You may not edit the DAG {name}, and so not start or stop its stream.")
    if name not in pages.declarations.streams:
        raise HTTPException(404, f"No valid file declares a stream called {name}.")
    return pages.declarations.stream(name)


def _actions(reader: Reader, pages: PageState) -> PageActions:
    return PageActions(ledger=pages.ledger, settings=pages.deployment.settings, actor=reader.actor)
