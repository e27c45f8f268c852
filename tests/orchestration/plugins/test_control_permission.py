"""Who may trigger, change and answer a run of `stream_control`, and what is recorded of it."""

from __future__ import annotations

import asyncio
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from sluice.ledger.control_values import Person
from sluice_airflow.adapters.api_permissions import ControlPermission, Denial, MayControl
from sluice_airflow.adapters.control_routes import CHANGES, ControlForm, digest_in, judge_request, with_digest

RUNS = "/api/v2/dags/stream_control/dagRuns"
ANN = Person(person_id="7", name="ann")
DIGEST = "d" * 64


@dataclass
class FakeControlRecords:
    """Remembers what is recorded. is_silent: whether the ledger does not answer."""

    is_silent: bool = False
    requests: dict[str, tuple[Mapping[str, Any], Person]] = field(default_factory=dict)
    answers: list[tuple[str, Person, str | None]] = field(default_factory=list)

    async def stream_of_run(self, run_id: str) -> str | None:
        """The stream that the id names."""
        return {"about-flights": "flights", "about-weather": "weather"}.get(run_id)

    async def shown_digest(self, run_id: str, task: str, *, map_index: int) -> str | None:
        """What the task `approve` shows."""
        return DIGEST if (task, map_index) == ("approve", -1) else None

    async def record_request(self, run_id: str, conf: Mapping[str, Any], *, by: Person) -> bool | None:
        """Remember a request."""
        if self.is_silent:
            return None
        return self.requests.setdefault(run_id, (conf, by))[0] is conf

    async def record_answer(self, run_id: str, *, by: Person, approved_digest: str | None) -> bool | None:
        """Remember an answer."""
        if self.is_silent:
            return None
        self.answers.append((run_id, by, approved_digest))
        return True


async def _ann_may_edit_flights(_: Any, stream: str) -> Denial | Person | None:
    return ANN if stream in ("flights", "stream_control") else Denial(403, f"not {stream}")


async def _nobody(_: Any, stream: str) -> Denial | Person | None:
    del stream
    return None


def answered(
    method: str,
    path: str,
    body: object,
    *,
    records: FakeControlRecords | None = None,
    status: int = 200,
    may_control: MayControl = _ann_may_edit_flights,
) -> tuple[int, Any]:
    """Status and body of the answer to a request that comes in two parts. status: of the rest of the API server, which
    answers with the body that reaches it."""

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": message.get("body", b"")})

    app = ControlPermission(echo, may_control=may_control, records=records or FakeControlRecords())
    whole = body if isinstance(body, bytes) else json.dumps(body).encode()
    parts = [
        {"type": "http.request", "body": whole[:5], "more_body": True},
        {"type": "http.request", "body": whole[5:], "more_body": False},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return parts.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app({"type": "http", "method": method, "path": path, "headers": []}, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"] or b"null")


def conf_of(stream: str, **more: Any) -> dict[str, Any]:
    """What a trigger says about a stream."""
    return {"stream": stream, "verb": "stop", "dry_run": False, **more}


def test_a_person_controls_the_streams_whose_dags_they_may_edit() -> None:
    records = FakeControlRecords()
    sent = {"logical_date": None, "conf": conf_of("flights")}

    status, reached = answered("POST", RUNS, sent, records=records)

    assert status == 200
    assert reached == {**sent, "dag_run_id": reached["dag_run_id"]}, "the rest of the body reaches Airflow whole"
    assert records.requests == {reached["dag_run_id"]: (sent["conf"], ANN)}
    refused = answered("POST", RUNS, {"conf": conf_of("weather")}, records=records)
    assert refused == (403, {"detail": "not weather"})
    assert len(records.requests) == 1


def test_a_dry_run_changes_nothing_and_is_not_recorded() -> None:
    records = FakeControlRecords()
    for dry_run in ({"dry_run": True}, {}):
        body = {"conf": {"stream": "flights", "verb": "stop", **dry_run}}
        assert answered("POST", RUNS, body, records=records) == (200, body)
    assert records.requests == {}


def test_the_id_of_a_run_is_good_once() -> None:
    records, body = FakeControlRecords(), {"dag_run_id": "mine", "conf": conf_of("flights")}
    assert answered("POST", RUNS, body, records=records)[0] == 200
    status, said = answered("POST", RUNS, body, records=records)
    assert (status, "already" in said["detail"]) == (409, True)


def test_nothing_is_triggered_while_the_ledger_is_silent() -> None:
    status, said = answered("POST", RUNS, {"conf": conf_of("flights")}, records=FakeControlRecords(is_silent=True))
    assert (status, "Nothing was triggered" in said["detail"]) == (503, True)


OF_RUN = [
    ("PATCH", f"{RUNS}/about-weather", {"state": "queued"}),
    ("DELETE", f"{RUNS}/about-weather", {}),
    ("POST", f"{RUNS}/about-weather/clear", {}),
    ("PATCH", f"/airflow{RUNS}/about-weather/taskInstances/approve", {"new_state": "success"}),
    ("PATCH", f"{RUNS}/about-weather/taskInstances/approve/-1/dry_run", {"new_state": "success"}),
    ("DELETE", f"{RUNS}/about-weather/taskInstances/approve", {}),
    ("POST", "/api/v2/dags/stream_control/clearTaskInstances", {"dag_run_id": "about-weather"}),
    ("PATCH", f"{RUNS}/about-weather/taskInstances/approve/-1/hitlDetails", {"chosen_options": ["Approve"]}),
]


@pytest.mark.parametrize(("method", "path", "body"), OF_RUN)
def test_what_repeats_or_answers_a_run_needs_the_same_permission(method: str, path: str, body: object) -> None:
    assert answered(method, path, body)[0] == 403
    of_flights = json.loads(json.dumps(body).replace("about-weather", "about-flights"))
    assert answered(method, path.replace("about-weather", "about-flights"), of_flights)[0] == 200
    of_none = json.loads(json.dumps(body).replace("about-weather", "unknown"))
    assert answered(method, path.replace("about-weather", "unknown"), of_none)[0] == 404


@pytest.mark.parametrize("run", ["about-weather", "unknown"])
def test_who_is_not_logged_in_learns_from_airflow_alone_that_they_must_be(run: str) -> None:
    """The middleware says of no run whether there is one."""
    assert answered("DELETE", f"{RUNS}/{run}", {}, status=401, may_control=_nobody)[0] == 401


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("DELETE", f"{RUNS}/about\0flights", {}),
        ("POST", RUNS, {"conf": conf_of("fli\0ghts")}),
        ("POST", RUNS, {"dag_run_id": "\0", "conf": conf_of("flights")}),
        ("POST", "/api/v2/dags/stream_control/clearTaskInstances", {"dag_run_id": "about\0flights"}),
    ],
)
def test_a_name_with_nul_reaches_no_database(method: str, path: str, body: object) -> None:
    """PostgreSQL takes no NUL, and an error of the middleware would be one of the server."""
    assert answered(method, path, body)[0] == 403


ANSWER = f"{RUNS}/about-flights/taskInstances/approve/-1/hitlDetails"


@pytest.mark.parametrize(
    ("chosen", "approved"), [(["Approve"], DIGEST), (["Reject"], None), (["Approve", "Reject"], None)]
)
def test_an_answer_is_recorded_with_the_person_and_the_plan_that_was_shown(
    chosen: list[str], approved: str | None
) -> None:
    records = FakeControlRecords()
    assert answered("PATCH", ANSWER, {"chosen_options": chosen}, records=records)[0] == 200
    assert records.answers == [("about-flights", ANN, approved)]


def test_a_text_that_names_two_plans_shows_none() -> None:
    shown = with_digest("1. Reset it.", DIGEST)
    assert digest_in(shown) == DIGEST
    assert digest_in(f"{shown}\n\nPlan `{'e' * 64}`") is None


def test_an_answer_that_airflow_refuses_is_none() -> None:
    records = FakeControlRecords()
    assert answered("PATCH", ANSWER, {"chosen_options": ["Approve"]}, records=records, status=409)[0] == 409
    assert records.answers == []


def test_an_answer_that_was_not_recorded_is_not_confirmed() -> None:
    records = FakeControlRecords(is_silent=True)
    assert answered("PATCH", ANSWER, {"chosen_options": ["Approve"]}, records=records)[0] == 503


SEVERAL = [
    ("PATCH", "dags/~/dagRuns/list", {}),
    ("PATCH", "dags/stream_control/dagRuns/~/taskInstances/list", {}),
    ("POST", "dags/stream_control/clearDagRuns", {"dag_runs": [{"dag_run_id": "about-flights"}]}),
    ("POST", "dags/stream_control/clearPartitions", {"partition_keys": ["x"]}),
    ("POST", "dags/~/clearDagRuns", {"dag_runs": [{"dag_id": "stream_control", "dag_run_id": "about-flights"}]}),
    ("POST", "dags/~/clearDagRuns", {"dag_runs": [{"dag_run_id": "about-flights"}]}),
    ("POST", "dags/~/clearDagRuns", {"only_failed": True}),
    ("PATCH", "dags/~/dagRuns", {"actions": [{"entities": [{"dag_id": "stream_control", "dag_run_id": "x"}]}]}),
    ("PATCH", "dags/~/dagRuns", {"actions": [{"entities": [{"dag_id": "x", "dag_run_id": "x"}, {"dag_run_id": "x"}]}]}),
    ("PATCH", "dags/~/dagRuns/~/taskInstances", {"actions": [{"entities": [{"dag_id": "~", "task_id": "x"}]}]}),
    ("PATCH", "dags/stream_control/dagRuns/~/taskInstances", {"actions": []}),
    ("PATCH", "dags/stream_control/dagRuns/about-flights/taskInstances", {"actions": []}),
    ("PATCH", "dags/flights/dagRuns/x/taskInstances", {"actions": [{"entities": [{"dag_id": "stream_control"}]}]}),
    ("PATCH", "dags/flights/dagRuns/x/taskInstances", {"actions": [{"entities": [{"dag_id": "Stream_Control "}]}]}),
    ("PATCH", "dags/stream_control/dagRuns/~", {"state": "success"}),
    ("POST", "dags/stream_control/clearTaskInstances", {"task_ids": ["carry_out"]}),
    ("POST", "dags/stream_control/clearTaskInstances", {"dag_run_id": "about-flights", "include_future": True}),
    ("POST", "dags/stream_control/dagRuns/about-flights/taskInstances/approve/xcomEntries", {"key": "return_value"}),
    ("PATCH", "dags/stream_control/dagRuns/about-flights/taskInstances/plan/xcomEntries/digest", {"value": "x"}),
    ("PATCH", "dags/stream_control/dagRuns/about-flights/taskGroupInstances/group", {"new_state": "success"}),
    ("PUT", "dags/stream_control/dagRuns/about-flights/taskInstances/plan/state-store/key", {}),
    ("POST", "backfills", {"dag_id": "stream_control"}),
    ("POST", "something/new", {"of": ["stream_control"]}),
    ("POST", "dags/STREAM_CONTROL/clearDagRuns", {}),
    ("POST", "dags/stream_control/clearDagRuns/", {}),
    ("POST", "dags/flights/clearDagRuns", b'{"a":' * 200_000),
]


@pytest.mark.parametrize(("method", "path", "body"), SEVERAL, ids=[f"{one[0]} {one[1]}" for one in SEVERAL])
def test_what_may_be_about_several_runs_or_another_stream_is_refused(method: str, path: str, body: object) -> None:
    status, said = answered(method, f"/api/v2/{path}", body)
    assert (status, "name one run" in said["detail"]) == (403, True)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "dags/stream_control/dagRuns", {}),
        ("POST", "dags/weather/dagRuns", {}),
        ("POST", "pools", {"name": "stream_control"}),
        ("PATCH", "dags/stream_control", {"is_paused": True}),
        ("POST", "dags/stream_control/favorite", {}),
        ("POST", "dags/~/dagRuns/list", {}),
        ("POST", "dags/stream_control/dagRuns/~/taskInstances/list", {}),
        ("PATCH", "dags/~/dagRuns", {"actions": [{"entities": [{"dag_id": "x", "dag_run_id": "y"}]}]}),
        ("PATCH", "dags/flights/dagRuns/x/taskInstances", {"actions": [{"entities": [{"task_id": "x"}]}]}),
    ],
)
def test_other_requests_pass(method: str, path: str, body: object) -> None:
    assert answered(method, f"/api/v2/{path}", body) == (200, body)


REACHING = {
    "dags/{dag_id}/dagRuns": ControlForm.TRIGGER,
    "dags/{dag_id}/dagRuns/{dag_run_id}/clear": ControlForm.OF_RUN,
    "dags/{dag_id}/dagRuns/{dag_run_id}": ControlForm.OF_RUN,
    "dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}": ControlForm.OF_RUN,
    "dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/dry_run": ControlForm.OF_RUN,
    "dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}": ControlForm.OF_RUN,
    "dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}/dry_run": ControlForm.OF_RUN,
    "dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/{task_id}/{map_index}/hitlDetails": ControlForm.ANSWER,
    "dags/{dag_id}/clearTaskInstances": ControlForm.OF_RUN,
}
"""The addresses that may be about a run of `stream_control`, and as what they are judged; `PATCH dagRuns` is bulk."""

PASSING = {
    "PATCH dags",  # pauses DAGs
    "PATCH dags/{dag_id}",
    "DELETE dags/{dag_id}",
    "DELETE dags/{dag_id}/assets/queuedEvents",
    "DELETE dags/{dag_id}/assets/{asset_id}/queuedEvents",
    "POST dags/{dag_id}/favorite",
    "POST dags/{dag_id}/unfavorite",
    "POST dags/{dag_id}/dagRuns/list",
    "POST dags/{dag_id}/dagRuns/{dag_run_id}/taskInstances/list",
    "PUT backfills/{backfill_id}/cancel",  # there is none of this DAG, because POST is refused
    "PUT backfills/{backfill_id}/pause",
    "PUT backfills/{backfill_id}/unpause",
    "POST assets/events",
    "POST assets/{asset_id}/materialize",
    "DELETE assets/{asset_id}/queuedEvents",
    "DELETE assets/{asset_id}/state-store",
    "DELETE assets/{asset_id}/state-store/{key:path}",
    "PUT assets/{asset_id}/state-store/{key:path}",
    "PATCH connections",
    "POST connections",
    "POST connections/defaults",
    "POST connections/enqueue-test",
    "POST connections/test",
    "DELETE connections/{connection_id}",
    "PATCH connections/{connection_id}",
    "PUT parseDagFile/{file_token}",
    "PATCH pools",
    "POST pools",
    "DELETE pools/{pool_name:path}",
    "PATCH pools/{pool_name:path}",
    "PATCH variables",
    "POST variables",
    "DELETE variables/{variable_key:path}",
    "PATCH variables/{variable_key:path}",
}
"""What reaches no run of `stream_control`, or only reads."""

OUTSIDE = ("/auth/", "/ui/auth/", "/execution/")
"""Logging in, and what running tasks ask with a token of their own."""


def mutating_routes() -> Iterator[tuple[str, str]]:
    """Method and path of each route of the installed Airflow that may change something."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from airflow.api_fastapi.app import create_app

        app = create_app(apps="core")

    def walk(routes: Any, prefix: str) -> Iterator[tuple[str, str]]:
        for route in routes:
            path = prefix + getattr(route, "path", "")
            if getattr(route, "methods", None):
                yield from ((method, path) for method in route.methods & CHANGES)
            elif getattr(route, "routes", None):
                yield from walk(route.routes, path)

    yield from walk(app.routes, "")


def test_every_route_of_the_installed_airflow_is_judged() -> None:
    """An Airflow with a new address fails here: it is to be refused, or written into the list of what passes."""
    routes = sorted((method, path) for method, path in mutating_routes() if not path.startswith(OUTSIDE))
    wrong = []
    for method, whole in routes:
        path = whole.removeprefix("/api/v2/")
        if f"{method} {path}" in PASSING:
            continue
        for dag, body in (
            ("stream_control", {"dag_run_id": "x"}),
            ("~", {"dag_id": "stream_control", "dag_run_id": "x"}),
            ("~", {}),
            ("another", {"dag_id": "stream_control", "dag_run_id": "x"}),
        ):
            named = path.replace("{dag_id}", dag).replace("{map_index}", "-1")
            judged = judge_request(method, "/api/v2/" + re.sub(r"\{[^}]*\}", "x", named), body)
            form = None if judged is None else judged.form
            allowed = {ControlForm.REFUSED} | (
                {REACHING[path]} if dag == "stream_control" and path in REACHING else set()
            )
            first = path.split("/")[0]
            is_of_none = first == "backfills" and "dag_id" not in body
            if first not in ("dags", "backfills") or (form not in allowed and not is_of_none):
                wrong.append((method, whole, dag, form))
    assert len(routes) > 40
    assert wrong == []
    assert {f"{method} {path.removeprefix('/api/v2/')}" for method, path in routes} >= PASSING, (
        "a list of what there is"
    )
