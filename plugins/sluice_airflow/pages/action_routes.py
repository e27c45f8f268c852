"""The addresses that act: a plan to look at, and its confirmation.

Start, stop and restart of a stream are requests in the ledger, reset, repair and rewind are done at once; who may not
edit its DAG gets a 403. Maintenance of a table, a backfill and a decision about a batch are runs of Airflow: each needs
the permission to start runs of the DAG that does it, a backfill and such a decision also that to edit the DAG of the
stream.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, Form, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse

from sluice.backfill.backfill_plan import BackfillPlan
from sluice.backfill.intervals import Interval, parse_interval
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.control_requests import record_control_request
from sluice.ledger.control_values import Person
from sluice.maintenance.maintenance_plan import MaintenancePlan
from sluice.operations import OperationPlan, OperationVerb
from sluice.pages.job_plans import (
    BACKFILL_SUFFIX,
    BATCH_WORDS,
    CONTROL_DAG,
    UNPAUSE,
    backfill_request,
    batch_request,
    can_stage,
    maintenance_request,
    plan_backfill_runs,
    plan_batch_run,
    plan_maintenance_run,
    record_backfill_request,
    record_batch_request,
    record_maintenance_request,
    unpause_request,
)
from sluice.pages.page_actions import MEANINGS, NEEDS_ONE_PERSON, PageActions, PageVerb
from sluice.pages.page_templates import render
from sluice.publication.held_decisions import BATCH_VERBS
from sluice.supervision.platform_dags import MAINTENANCE_DAG, MISSED_WHILE_PAUSED
from sluice_airflow.pages.page_access import Reader, ReaderDep
from sluice_airflow.pages.page_addresses import base_of
from sluice_airflow.pages.page_guard import ShownPlan, is_of_own_origin, use_of
from sluice_airflow.pages.page_state import PageState, StateDep

_log = logging.getLogger(__name__)

_OF_ANOTHER_ORIGIN = "The request did not come from a page of this Airflow."
_USED = "This plan was confirmed before. Open it again."
_NOT_SHOWN = "The plan was not shown to you, or longer ago than ten minutes. Open it again."
"""Answers a confirmation without the token of a plan."""


_JOB_MEANINGS = {
    OperationVerb.MAINTAIN: "Run its maintenance now, where something is due.",
    OperationVerb.BACKFILL: "Compute the interval again and replace its rows, beside the live stream.",
    OperationVerb.REWIND: "Take the stopped stream and its tables back together; what came after is read again.",
    **{verb: meaning for verb, (_, meaning) in BATCH_WORDS.items()},
}

Moment = Annotated[str, Query(max_length=40)]
Token = Annotated[str, Form(max_length=2000)]
Place = Annotated[str, Form(max_length=400, pattern=r"^(streams|tables|quality)(/[\w.%-]+)*$")]
"""A page of ours to which a browser is sent back."""


def action_routes() -> APIRouter:
    """The routes of the actions. Those of the jobs come first: the addresses of the other verbs look the same."""
    router = APIRouter()
    own = [Depends(_require_own_origin)]
    router.add_api_route("/dags/{dag}/do/unpause", _unpause, methods=["POST"], dependencies=own)
    router.add_api_route("/tables/{table}/plan/maintain", _plan_maintenance, methods=["GET"])
    router.add_api_route("/tables/{table}/do/maintain", _maintain, methods=["POST"], dependencies=own)
    router.add_api_route("/streams/{stream}/backfill", _backfill_form, methods=["GET"])
    router.add_api_route("/streams/{stream}/plan/backfill", _plan_backfill, methods=["GET"])
    router.add_api_route("/streams/{stream}/do/backfill", _backfill, methods=["POST"], dependencies=own)
    for verb in BATCH_VERBS:
        router.add_api_route(f"/streams/{{stream}}/plan/{verb}", _plan_about_batch(verb), methods=["GET"])
        router.add_api_route(
            f"/streams/{{stream}}/do/{verb}", _decide_about_batch(verb), methods=["POST"], dependencies=own
        )
    router.add_api_route("/streams/{stream}/plan/rewind", _plan_rewind, methods=["GET"])
    router.add_api_route("/streams/{stream}/do/rewind", _rewind, methods=["POST"], dependencies=own)
    router.add_api_route("/streams/{stream}/plan/{verb}", _show_plan, methods=["GET"], response_class=HTMLResponse)
    router.add_api_route("/streams/{stream}/do/{verb}", _carry_out, methods=["POST"], dependencies=own)
    return router


def _require_own_origin(request: Request) -> None:
    """Refuse a request to act that did not come from a page of this Airflow."""
    if not is_of_own_origin(request.headers):
        _log.warning("refused a request from %s to %s", request.headers.get("origin"), request.url.path)
        raise HTTPException(403, _OF_ANOTHER_ORIGIN)


def _show_plan(stream: str, verb: PageVerb, request: Request, reader: ReaderDep, pages: StateDep) -> HTMLResponse:
    wanted = stream_to_act_on(stream, reader, pages)
    plan = _actions(reader, pages).plan(verb, wanted)
    shown = ShownPlan(user=reader.name, subject=stream, verb=verb, digest=plan.digest)
    values = {
        "base": base_of(request),
        "place": f"streams/{quote(stream)}",
        "plan": plan,
        "verb": verb,
        "label": verb.replace("-", " ").capitalize(),
        "meaning": MEANINGS[verb],
        "is_grave": verb in NEEDS_ONE_PERSON,
        "token": pages.tokens.token_of(shown),
    }
    return HTMLResponse(render("plan", values))


def _carry_out(
    stream: str,
    verb: PageVerb,
    request: Request,
    reader: ReaderDep,
    pages: StateDep,
    token: Token,
) -> RedirectResponse:
    wanted = stream_to_act_on(stream, reader, pages)
    shown = _confirmed(reader, pages, token, subject=stream, verb=verb)
    _actions(reader, pages).carry_out(verb, wanted, planned=shown.digest)
    _log.info("%s asked: %s %s", reader.name, verb, stream)
    return RedirectResponse(f"{base_of(request)}/streams/{quote(stream)}?done={verb}", status_code=303)


def _plan_rewind(
    stream: str, request: Request, reader: ReaderDep, pages: StateDep, batch: Annotated[int, Query(ge=0)]
) -> HTMLResponse:
    stream_to_act_on(stream, reader, pages)
    plan = _actions(reader, pages).plan_rewind(pages.declarations, stream, batch)
    shown = ShownPlan(user=reader.name, subject=stream, verb=plan.verb, number=batch, digest=plan.digest)
    label = f"Take back to batch {batch}:"
    return _page_of(request, pages, plan, shown, place=f"streams/{quote(stream)}", label=label, is_grave=True)


def _rewind(stream: str, request: Request, reader: ReaderDep, pages: StateDep, token: Token) -> RedirectResponse:
    stream_to_act_on(stream, reader, pages)
    shown = _confirmed(reader, pages, token, subject=stream, verb=OperationVerb.REWIND)
    if shown.number is None:
        raise HTTPException(403, _NOT_SHOWN)
    _actions(reader, pages).rewind(pages.declarations, stream, shown.number, planned=shown.digest)
    _log.info("%s took %s back to batch %d", reader.name, stream, shown.number)
    return RedirectResponse(f"{base_of(request)}/streams/{quote(stream)}?done=rewind", status_code=303)


def stream_to_act_on(name: str, reader: Reader, pages: PageState) -> LoadedStream:
    """A declared stream that a person may act on. Permission comes first: others do not learn whether it exists."""
    if not reader.may_act_on([name]):
        raise HTTPException(403, f"You may not edit the DAG {name}, and so not start or stop its stream.")
    if name not in pages.declarations.streams:
        raise HTTPException(404, f"No valid file declares a stream called {name}.")
    return pages.declarations.stream(name)


def _actions(reader: Reader, pages: PageState) -> PageActions:
    return PageActions(ledger=pages.ledger, settings=pages.deployment.settings, actor=reader.actor)


def _unpause(
    dag: str, request: Request, reader: ReaderDep, pages: StateDep, token: Token, here: Place = "streams"
) -> RedirectResponse:
    """Unpause a DAG of the platform: the button stands where its result is missed, and leads back there."""
    if dag not in MISSED_WHILE_PAUSED or not reader.may_act_on([dag]):
        raise HTTPException(403, f"You may not edit the DAG {dag}.")
    _confirmed(reader, pages, token, subject=dag, verb=UNPAUSE)
    pages.ask_airflow(request, unpause_request(dag))
    return _done(request, reader, UNPAUSE, here)


def _plan_maintenance(table: str, request: Request, reader: ReaderDep, pages: StateDep) -> HTMLResponse:
    _require_maintainer(reader, table, pages)
    plan = _maintenance_of(table, pages)
    return _shown(request, reader, pages, plan, place=f"tables/{quote(table)}")


def _maintenance_of(table: str, pages: PageState) -> OperationPlan[MaintenancePlan | None]:
    return plan_maintenance_run(pages.ledger, pages.declarations, pages.deployment.settings, table)


def _maintain(table: str, request: Request, reader: ReaderDep, pages: StateDep, token: Token) -> RedirectResponse:
    _require_maintainer(reader, table, pages)
    shown = _confirmed(reader, pages, token, subject=table, verb=OperationVerb.MAINTAIN)
    _maintenance_of(table, pages).require_same(shown.digest)
    record_maintenance_request(pages.ledger, table, by=reader.actor)
    pages.ask_airflow(request, maintenance_request(table))
    return _done(request, reader, OperationVerb.MAINTAIN, f"tables/{quote(table)}")


def _backfill_form(stream: str, request: Request, reader: ReaderDep, pages: StateDep) -> HTMLResponse:
    wanted = _stream_to_backfill(stream, reader, pages)
    values = {
        "base": base_of(request),
        "stream": wanted.name,
        "backfill": wanted.declaration.backfill,
        "days": pages.backfill_days.find(pages.ledger, wanted),
    }
    return HTMLResponse(render("backfill", values))


def _plan_backfill(
    stream: str, request: Request, reader: ReaderDep, pages: StateDep, start: Moment, end: Moment
) -> HTMLResponse:
    wanted = _stream_to_backfill(stream, reader, pages)
    plan = _backfill_of(wanted, parse_interval(start, end), pages)
    return _shown(request, reader, pages, plan, place=f"streams/{quote(stream)}", interval=f"{start}/{end}")


def _backfill_of(wanted: LoadedStream, whole: Interval, pages: PageState) -> BackfillPlan:
    return plan_backfill_runs(pages.ledger, pages.declarations, pages.deployment.settings, wanted, whole)


def _backfill(stream: str, request: Request, reader: ReaderDep, pages: StateDep, token: Token) -> RedirectResponse:
    wanted = _stream_to_backfill(stream, reader, pages)
    shown = _confirmed(reader, pages, token, subject=stream, verb=OperationVerb.BACKFILL)
    start, _, end = shown.interval.partition("/")
    whole = parse_interval(start, end)
    _backfill_of(wanted, whole, pages).require_same(shown.digest)
    asked = backfill_request(pages.declarations, wanted, whole)
    record_backfill_request(pages.ledger, stream, whole, by=reader.actor)
    pages.ask_airflow(request, asked)
    return _done(request, reader, OperationVerb.BACKFILL, f"streams/{quote(stream)}")


def _plan_about_batch(verb: OperationVerb) -> Callable[..., HTMLResponse]:
    """The address that shows the plan of what is decided about the batch that waits."""

    def show(stream: str, request: Request, reader: ReaderDep, pages: StateDep) -> HTMLResponse:
        wanted = stream_with_batches(stream, reader, pages)
        shown_by = pages.declarations if reader.may_see_samples(stream) else None
        plan = plan_batch_run(pages.ledger, pages.deployment.settings, wanted, verb, declarations=shown_by)
        number = plan.seen.key.batch
        shown = ShownPlan(user=reader.name, subject=stream, verb=plan.verb, number=number, digest=plan.digest)
        what, _ = BATCH_WORDS[verb]
        label = f"{what.replace(' batch', f' batch {number}')} of"
        is_grave = verb is OperationVerb.REJECT_BATCH
        return _page_of(request, pages, plan, shown, place=f"streams/{quote(stream)}", label=label, is_grave=is_grave)

    return show


def _decide_about_batch(verb: OperationVerb) -> Callable[..., RedirectResponse]:
    """The address at which that plan is confirmed."""

    def act(stream: str, request: Request, reader: ReaderDep, pages: StateDep, token: Token) -> RedirectResponse:
        stream_with_batches(stream, reader, pages)
        shown = _confirmed(reader, pages, token, subject=stream, verb=verb)
        if shown.number is None:
            raise HTTPException(403, _NOT_SHOWN)
        record_batch_request(pages.ledger, stream, verb, batch=shown.number, by=reader.actor)
        pages.ask_airflow(request, batch_request(stream, verb, batch=shown.number, digest=shown.digest))
        return _done(request, reader, verb, f"streams/{quote(stream)}")

    return act


def stream_with_batches(name: str, reader: Reader, pages: PageState) -> LoadedStream:
    """A stream with staged outputs about whose batches a person may decide: they may edit its DAG, and start the run.

    Raises
    ------
    HTTPException: 403 when they may not, 404 when there is no such stream.
    """
    wanted = stream_to_act_on(name, reader, pages)
    if not can_stage(wanted):
        raise HTTPException(404, f"{name} stages no batches that could wait for a person.")
    _require_starter(reader, CONTROL_DAG)
    return wanted


def _stream_to_backfill(name: str, reader: Reader, pages: PageState) -> LoadedStream:
    wanted = stream_to_act_on(name, reader, pages)
    if wanted.declaration.backfill is None:
        raise HTTPException(404, f"{name} declares no backfill.")
    _require_starter(reader, f"{name}{BACKFILL_SUFFIX}")
    return wanted


def _require_maintainer(reader: Reader, table: str, pages: PageState) -> None:
    _require_starter(reader, MAINTENANCE_DAG)
    if table not in pages.maintained_tables(reader):
        raise HTTPException(404, f"No maintained table is called {table}.")


def _require_starter(reader: Reader, dag: str) -> None:
    if not reader.may_start(dag):
        raise HTTPException(403, f"You may not start runs of the DAG {dag}.")


def _shown(
    request: Request,
    reader: Reader,
    pages: PageState,
    plan: OperationPlan[Any],
    *,
    place: str,
    interval: str = "",
) -> HTMLResponse:
    shown = ShownPlan(user=reader.name, subject=plan.subject, verb=plan.verb, interval=interval, digest=plan.digest)
    return _page_of(request, pages, plan, shown, place=place, label=plan.verb.capitalize(), is_grave=False)


def _page_of(
    request: Request,
    pages: PageState,
    plan: OperationPlan[Any],
    shown: ShownPlan,
    *,
    place: str,
    label: str,
    is_grave: bool,
) -> HTMLResponse:
    values = {
        "base": base_of(request),
        "place": place,
        "plan": plan,
        "verb": plan.verb,
        "label": label,
        "meaning": _JOB_MEANINGS[plan.verb],
        "is_grave": is_grave,
        "token": pages.tokens.token_of(shown),
    }
    return HTMLResponse(render("plan", values))


def _confirmed(reader: Reader, pages: PageState, token: str, *, subject: str, verb: str) -> ShownPlan:
    """The plan that is confirmed. Its token is used up from then on, in every API server."""
    shown = pages.tokens.plan_of(token, user=reader.name, subject=subject, verb=verb)
    if shown is None:
        raise HTTPException(403, _NOT_SHOWN)
    person = Person(person_id=reader.name, name=reader.name)
    if not record_control_request(pages.ledger, use_of(token), stream=subject, verb=str(verb), by=person):
        raise HTTPException(403, _USED)
    return shown


def _done(request: Request, reader: Reader, verb: str, place: str) -> RedirectResponse:
    _log.info("%s asked Airflow: %s %s", reader.name, verb, place)
    return RedirectResponse(f"{base_of(request)}/{place}?done={verb}", status_code=303)
