"""The addresses of the streams: the page of all, and that as JSON; one stream, its quarantine, Spark's UI; the lineage.

The samples of a quarantine are data and not operations: they have a permission of their own. Spark's own UI is for who
may read the stream's DAG, and read only. Its addresses have the form of Hadoop's proxy, `…/proxy/<application>/…`, by
which Spark's scripts find its REST API.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from sluice.ledger.driver_access import DriverUi
from sluice.operations import OperationVerb
from sluice.pages.job_plans import BACKFILL_SUFFIX, BATCH_WORDS, CONTROL_DAG, can_stage
from sluice.pages.line_selection import LineCounts, LineSelection
from sluice.pages.lineage_edges import NodeKind
from sluice.pages.lineage_page import MOST_NAMED, LineageSelection, known_lineage, lineage_page
from sluice.pages.page_actions import MEANINGS, PageVerb, batches_to_go_back_to, verbs_for
from sluice.pages.page_figures import DONE_SENTENCES, DoneWord
from sluice.pages.page_templates import render
from sluice.pages.spark_ui import FILE_TYPES, find_ui, read_static_file, read_ui
from sluice.pages.stream_lines import HISTORY_HOURS, StreamLine
from sluice.pages.stream_page import WINDOWS_HOURS, StreamPage, load_stream_page
from sluice.processes.host_processes import observe_process
from sluice.publication.held_decisions import BATCH_VERBS
from sluice.supervision.platform_dags import CHECKPOINTS_DAG, GAPS_DAG, RECONCILER_DAG
from sluice.supervision.stream_verdict import StreamState
from sluice_airflow.pages.page_access import SAMPLES_HIDDEN, Reader, ReaderDep
from sluice_airflow.pages.page_addresses import airflow_of, base_of, dag_run_link
from sluice_airflow.pages.page_guard import spark_ui_policy
from sluice_airflow.pages.page_state import PageState, StateDep, find_outlooks


def stream_routes() -> APIRouter:
    """The routes of the streams."""
    router = APIRouter()
    router.add_api_route("/", _to_streams, methods=["GET"])
    router.add_api_route("/streams", _streams_page, methods=["GET"], response_class=HTMLResponse)
    router.add_api_route("/streams/{stream}", _stream_page, methods=["GET"], response_class=HTMLResponse)
    router.add_api_route("/streams/{stream}/quarantine", _samples_page, methods=["GET"], response_class=HTMLResponse)
    router.add_api_route("/lineage", _lineage_page, methods=["GET"], response_class=HTMLResponse)
    router.add_api_route("/api/streams", _streams_json, methods=["GET"])
    router.add_api_route("/api/unhealthy", _unhealthy_json, methods=["GET"])
    router.add_api_route("/streams/{stream}/spark", _to_ui, methods=["GET"])
    router.add_api_route("/streams/{stream}/spark/proxy/{application}/{path:path}", _ui_page, methods=["GET"])
    return router


def _to_streams(request: Request) -> RedirectResponse:
    return RedirectResponse(f"{base_of(request)}/streams")


def _streams_page(request: Request, reader: ReaderDep, pages: StateDep) -> HTMLResponse:
    seen = pages.observe(reader)
    selection = LineSelection.of(request.query_params)
    query = dict(request.query_params)
    values = {
        "base": base_of(request),
        "lines": selection.select(seen.lines),
        "counts": LineCounts.of(seen.lines),
        "selection": selection,
        "problems": pages.problems_for(reader),
        "may_act": reader.may_act_on(line.stream for line in seen.lines),
        "airflow": airflow_of(request),
        "outlooks": find_outlooks([line.stream for line in seen.lines if line.is_waiting]),
        "paused": pages.paused_for(reader),
        "failed_checks": pages.failed_checks_for(reader),
        "history_hours": HISTORY_HOURS,
        "link_to_sort": lambda key: _link(query, sort=key, desc=selection.direction(key)),
        "link_to_show": lambda show: _link(query, show=show),
    }
    return HTMLResponse(render("streams", values))


def _stream_page(
    stream: str,
    request: Request,
    reader: ReaderDep,
    pages: StateDep,
    hours: int = WINDOWS_HOURS[0],
    done: DoneWord | None = None,
) -> HTMLResponse:
    if not reader.may_read([stream]):
        raise HTTPException(403, f"You may not read the DAG {stream}.")
    page = load_stream_page(
        pages.ledger,
        pages.declarations,
        stream,
        hours=hours if hours in WINDOWS_HOURS else WINDOWS_HOURS[0],
        may_read=reader.may_read,
        may_read_log=reader.may_read_log(stream),
        logs=pages.deployment.settings.logs,
    )
    drawn = () if page.graph is None else page.graph.boxes
    neighbours = {box.node.name for box in drawn if box.node.kind is NodeKind.STREAM}
    seen = pages.observe(reader, among={stream, *neighbours}, with_history=False)
    line = next((one for one in seen.lines if one.stream == stream), None)
    if line is None:
        raise HTTPException(404, f"{stream} is not a stream: no valid file declares it, and no run of it is to run.")
    has_quarantine = _has_quarantine(line, pages)
    values = {
        "base": base_of(request),
        "airflow": airflow_of(request),
        "line": line,
        "page": page,
        "windows": WINDOWS_HOURS,
        "done": None if done is None else DONE_SENTENCES[done],
        "paused": pages.paused_for(reader, among=_dags_about(line, pages)),
        "outlook": find_outlooks([stream]).get(stream) if line.is_waiting else None,
        "clears": _failed_run(line, page, reader),
        "verbs": _verbs(line, reader, pages),
        "back_to": _back_to(line, page, reader, pages),
        "may_backfill": _may_backfill(line, reader, pages),
        "batch_verbs": _batch_verbs(line, reader, pages),
        "batch_words": BATCH_WORDS,
        "has_quarantine": has_quarantine,
        "may_see_samples": has_quarantine and reader.may_see_samples(line.stream),
        "samples_hidden": SAMPLES_HIDDEN,
        "resets_need_another": pages.deployment.settings.approval_by_another,
        "meanings": MEANINGS,
        "lines": {one.stream: one for one in seen.lines},
        "tables": pages.tables_for(reader),
        "failed": {one.stream: one for one in pages.failed_checks_for(reader)},
        "has_ui": _has_ui(line, pages),
        "dag_run_links": {run.run_id: link for run in page.runs if (link := dag_run_link(run.launched_by))},
    }
    return HTMLResponse(render("stream", values))


def _verbs(line: StreamLine, reader: Reader, pages: PageState) -> tuple[PageVerb, ...]:
    """The buttons: what the stream's state allows, and what this person may do."""
    if not line.is_declared or not reader.may_act_on([line.stream]):
        return ()
    return verbs_for(line, resets_need_another=pages.deployment.settings.approval_by_another)


def _back_to(line: StreamLine, page: StreamPage, reader: Reader, pages: PageState) -> frozenset[int]:
    """The batches that have a button which takes the stream back to them."""
    declared = pages.declarations.streams.get(line.stream)
    if declared is None or not can_stage(declared) or not reader.may_act_on([line.stream]):
        return frozenset()
    needs_another = pages.deployment.settings.approval_by_another
    return batches_to_go_back_to(line, page.batches, rewinds_need_another=needs_another)


def _has_ui(line: StreamLine, pages: PageState) -> bool:
    """Whether a driver lives that was asked to serve Spark's own UI; whether it does is seen by opening it."""
    declared = pages.declarations.streams.get(line.stream)
    return declared is not None and declared.declaration.engine.ui and line.has_live_run


def _may_backfill(line: StreamLine, reader: Reader, pages: PageState) -> bool:
    declared = pages.declarations.streams.get(line.stream)
    if declared is None or declared.declaration.backfill is None:
        return False
    return bool(reader.may_act_on([line.stream])) and reader.may_start(f"{line.stream}{BACKFILL_SUFFIX}")


def held_batch_verbs(stream: str, reader: Reader, pages: PageState) -> tuple[OperationVerb, ...]:
    """What a reader may decide about a batch of a stream that a rule holds."""
    declared = pages.declarations.streams.get(stream)
    may_decide = bool(reader.may_act_on([stream])) and reader.may_start(CONTROL_DAG)
    if declared is None or not can_stage(declared) or not may_decide:
        return ()
    is_separable = declared.declaration.quarantine
    return tuple(verb for verb in BATCH_VERBS if is_separable or verb is not OperationVerb.SEPARATE_BATCH)


def _batch_verbs(line: StreamLine, reader: Reader, pages: PageState) -> tuple[OperationVerb, ...]:
    """What may be decided about a batch that waits. One that no rule holds: not while a driver lives, which publishes
    what is staged, nor where all is published; whether one waits is seen with the plan."""
    verbs = held_batch_verbs(line.stream, reader, pages)
    if line.state is StreamState.HELD or OperationVerb.REJECT_BATCH not in verbs:
        return verbs
    is_in_order = line.state is StreamState.ALL_REJECTED or (line.is_healthy and line.state is not StreamState.STOPPED)
    return () if line.has_live_run or is_in_order else (OperationVerb.REJECT_BATCH,)


def _failed_run(line: StreamLine, page: StreamPage, reader: Reader) -> str:
    """The page in Airflow of the failed run of an increment, whose task is to be cleared; empty where none is."""
    if line.state is not StreamState.FAILED or not page.runs or not reader.may_act_on([line.stream]):
        return ""
    return dag_run_link(page.runs[0].launched_by) or f"dags/{quote(line.stream, safe='')}"


def _dags_about(line: StreamLine, pages: PageState) -> tuple[str, ...]:
    """The DAGs of the platform whose results the page of a stream shows."""
    declared = pages.declarations.streams.get(line.stream)
    has_backfill = declared is not None and declared.declaration.backfill is not None
    return (RECONCILER_DAG, CHECKPOINTS_DAG, *((GAPS_DAG,) if has_backfill else ()))


def _has_quarantine(line: StreamLine, pages: PageState) -> bool:
    declared = pages.declarations.streams.get(line.stream)
    return declared is not None and declared.declaration.quarantine


def _streams_json(request: Request, reader: ReaderDep, pages: StateDep) -> Mapping[str, Any]:
    seen = pages.observe(reader, with_history=False)
    lines = LineSelection.of(request.query_params).select(seen.lines)
    return {"observed_at": seen.observed_at, "streams": [_line_json(line) for line in lines]}


def _unhealthy_json(reader: ReaderDep, pages: StateDep) -> Mapping[str, Any]:
    seen = pages.observe(reader, with_history=False)
    return {
        "total": len(seen.lines),
        "unhealthy": [_line_json(line) for line in seen.unhealthy],
        "failed_checks": [
            {"table": one.stream, "since": one.since, "explanation": one.explanation}
            for one in pages.failed_checks_for(reader)
        ],
        "paused": [{"dag": one.dag, "missed": one.is_missed} for one in pages.paused_for(reader)],
    }


def _line_json(line: StreamLine) -> Mapping[str, Any]:
    return {
        "stream": line.stream,
        "state": line.state,
        "healthy": line.is_healthy,
        "explanation": line.explanation,
        "next_step": line.next_step,
        "since": line.since,
        "owner": line.owner,
        "tags": line.tags,
        "lag_rows": line.lag_rows,
        "behind_seconds": None if line.behind is None else line.behind.total_seconds(),
        "read_per_second": line.read_per_second,
        "published_per_second": line.published_per_second,
        "batch": line.batch,
        "published_at": line.published_at,
        "watermark": line.watermark,
        "failed_runs": line.failed_runs,
        "run_id": line.run_id,
    }


def _link(query: Mapping[str, str], **changed: str) -> str:
    return urlencode({**query, **changed})


def _samples_page(stream: str, request: Request, reader: ReaderDep, pages: StateDep) -> HTMLResponse:
    if not reader.may_read([stream]):
        raise HTTPException(403, f"You may not read the DAG {stream}.")
    if not reader.may_see_samples(stream):
        raise HTTPException(403, SAMPLES_HIDDEN)
    declarations = pages.declarations
    declared = declarations.streams.get(stream)
    if declared is None or not declared.declaration.quarantine:
        raise HTTPException(404, f"No valid file declares a stream called {stream} with a quarantine.")
    values = {
        "base": base_of(request),
        "stream": stream,
        "page": pages.quarantines.load(declared.declaration, declarations.tables),
        "now": datetime.now(UTC),
    }
    return HTMLResponse(render("quarantine", values))


def _lineage_page(request: Request, reader: ReaderDep, pages: StateDep) -> HTMLResponse:
    seen = pages.observe(reader, with_figures=False, with_history=False)
    declarations, tables = pages.declarations, pages.tables_for(reader)
    readable = reader.may_read(declarations.streams)
    known = known_lineage(declarations, readable_streams=readable, readable_tables=tables)
    selection = LineageSelection.of(request.query_params)
    query = dict(request.query_params)
    values = {
        "base": base_of(request),
        "known": known,
        "selection": selection,
        "page": lineage_page(known, selection, urgent={line.stream for line in seen.unhealthy}),
        "lines": {line.stream: line for line in seen.lines},
        "tables": tables,
        "failed": {one.stream: one for one in pages.failed_checks_for(reader)},
        "problems": pages.problems_for(reader),
        "most_named": MOST_NAMED,
        "link_to_choose": lambda name: urlencode({**query, "of": name}),
    }
    return HTMLResponse(render("lineage", values))


def _to_ui(stream: str, request: Request, reader: ReaderDep, pages: StateDep) -> RedirectResponse:
    ui = _ui_of(stream, reader, pages)
    return RedirectResponse(f"{_base(request, stream, ui.application)}/jobs/")


def _ui_page(
    stream: str, application: str, path: str, request: Request, reader: ReaderDep, pages: StateDep
) -> Response:
    ui = _ui_of(stream, reader, pages)
    base = _base(request, stream, ui.application)
    if application != ui.application:  # a page of a driver that was restarted meanwhile
        return RedirectResponse(f"{base}/jobs/")
    headers = {"Content-Security-Policy": spark_ui_policy(request.headers.get("host", ""), base)}
    if path.startswith("static/"):
        return _static_file(path, headers)
    answer = read_ui(ui, quote(path), query=request.url.query, base=base)
    if answer.redirect is not None:
        return RedirectResponse(f"{base}/{answer.redirect}", headers=headers)
    return Response(answer.body, status_code=answer.status, media_type=answer.content_type, headers=headers)


def _ui_of(stream: str, reader: Reader, pages: PageState) -> DriverUi:
    if not reader.may_read([stream]):
        raise HTTPException(403, f"You may not read the DAG {stream}.")
    return find_ui(pages.ledger, stream, observe_process=observe_process)


def _base(request: Request, stream: str, application: str) -> str:
    return f"{base_of(request)}/streams/{quote(stream)}/spark/proxy/{quote(application, safe='')}"


def _static_file(path: str, headers: dict[str, str]) -> Response:
    content = read_static_file(path)
    if content is None:
        raise HTTPException(404, f"Spark's UI has no file {path!r}.")
    cached = headers | {"Cache-Control": "private, max-age=3600"}
    return Response(content, media_type=FILE_TYPES[PurePosixPath(path).suffix], headers=cached)
