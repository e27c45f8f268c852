"""Who may trigger, change and answer a run of `stream_control`."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sluice_airflow.adapters.control_permission import ControlPermission, Denial

RUNS = "/api/v2/dags/stream_control/dagRuns"


async def _echo(scope: Any, receive: Any, send: Any) -> None:
    """The rest of the API server: it answers with the body that reaches it."""
    message = await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": message.get("body", b"")})


async def _ann_may_edit_flights(_: Any, stream: str) -> Denial | None:
    return None if stream == "flights" else Denial(403, f"not {stream}")


async def _stream_of(run_id: str) -> str | None:
    return {"about-flights": "flights", "about-weather": "weather"}.get(run_id)


def answered(method: str, path: str, body: object) -> tuple[int, Any]:
    """Status and body of the answer to a request that comes in two parts."""
    app = ControlPermission(_echo, may_control=_ann_may_edit_flights, stream_of_run=_stream_of)
    whole = json.dumps(body).encode()
    parts = [
        {"type": "http.request", "body": whole[:5], "more_body": True},
        {"type": "http.request", "body": whole[5:], "more_body": False},
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return parts.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(app({"type": "http", "method": method, "path": path}, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"] or b"null")


def test_a_person_controls_the_streams_whose_dags_they_may_edit() -> None:
    allowed = {"conf": {"stream": "flights", "verb": "stop"}}
    assert answered("POST", RUNS, allowed) == (200, allowed), "the body reaches Airflow whole"
    refused = answered("POST", RUNS, {"conf": {"stream": "weather", "verb": "stop"}})
    assert refused == (403, {"detail": "not weather"})


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PATCH", f"{RUNS}/about-weather", {"state": "queued"}),
        ("POST", f"{RUNS}/about-weather/clear", {}),
        ("PATCH", f"{RUNS}/about-weather/taskInstances/approve/-1/hitlDetails", {"chosen_options": ["Approve"]}),
        ("PATCH", f"/airflow{RUNS}/about-weather/taskInstances/approve", {"new_state": "success"}),
        ("POST", "/api/v2/dags/stream_control/clearTaskInstances", {"dag_run_id": "about-weather"}),
    ],
)
def test_what_repeats_or_answers_a_run_needs_the_same_permission(method: str, path: str, body: object) -> None:
    assert answered(method, path, body)[0] == 403
    of_flights = json.loads(json.dumps(body).replace("about-weather", "about-flights"))
    assert answered(method, path.replace("about-weather", "about-flights"), of_flights)[0] == 200


def test_a_change_of_many_runs_at_once_is_refused() -> None:
    assert answered("POST", f"{RUNS}/clear", {"dag_runs": [{"dag_run_id": "about-flights"}]})[0] == 403
    status, answer = answered("POST", "/api/v2/dags/stream_control/clearTaskInstances", {"task_ids": ["carry_out"]})
    assert (status, "Name one DAG run" in answer["detail"]) == (403, True)


@pytest.mark.parametrize(
    ("method", "path"), [("GET", RUNS), ("POST", "/api/v2/dags/weather/dagRuns"), ("POST", "/api/v2/pools")]
)
def test_other_requests_pass(method: str, path: str) -> None:
    app = ControlPermission(_echo, may_control=_ann_may_edit_flights, stream_of_run=_stream_of)
    passed: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"x", "more_body": False}

    async def send(message: Any) -> None:
        passed.append(message)

    asyncio.run(app({"type": "http", "method": method, "path": path}, receive, send))
    assert passed[0]["status"] == 200
