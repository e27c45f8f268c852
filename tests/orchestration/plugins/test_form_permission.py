"""What a person may choose in the forms of the platform's DAGs."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from sluice_airflow.adapters.api_permissions import Denial, FormPermission, names_chosen

MAINTENANCE = "/api/v2/dags/table_maintenance/dagRuns"
CHECKPOINTS = "/api/v2/dags/checkpoint_health/dagRuns"


@pytest.mark.parametrize(
    ("path", "body", "chosen"),
    [
        (MAINTENANCE, {"conf": {"tables": ["a.x", "a.y"]}}, {"a.x", "a.y"}),
        (CHECKPOINTS, {"logical_date": None, "conf": {"streams": ["x"]}}, {"x"}),
        ("/airflow/api/v2/dags/data_quality/dagRuns/", {"conf": {"tables": ["a.x"]}}, {"a.x"}),
        ("/api/v2/dags/Table_Maintenance /dagRuns", {"conf": {"tables": ["a.x"]}}, {"a.x"}),
        ("/api/v2/dags/~/dagRuns", {"conf": {"tables": ["a.x"]}}, {"a.x"}),
        ("/api/v2/backfills", {"dag_id": "table_maintenance", "dag_run_conf": {"tables": ["a.x"]}}, {"a.x"}),
        ("/api/v2/backfills", {"dag_id": "Data_Quality ", "dag_run_conf": {"tables": ["a.x"]}}, {"a.x"}),
        ("/api/v2/new", [{"runs": [{"dag": "checkpoint_health", "with": {"streams": "x"}}]}], {"x"}),
        (MAINTENANCE, {"conf": {"tables": {"of": ["a.x"]}}}, {"a.x"}),
        (MAINTENANCE, {"conf": {"tables": []}}, set()),
        (MAINTENANCE, {"conf": {}}, set()),
        (MAINTENANCE, None, set()),
        ("/api/v2/dags/another/dagRuns", {"conf": {"tables": ["a.x"]}}, set()),
        ("/api/v2/backfills", {"dag_id": "another", "dag_run_conf": {"tables": ["a.x"]}}, set()),
    ],
)
def test_what_a_request_chooses_is_found_wherever_it_has_it(path: str, body: object, chosen: set[str]) -> None:
    assert names_chosen(path, body) == chosen


def answered(method: str, path: str, body: object) -> tuple[int, Any]:
    """Status and body of the answer, where a person may not choose `a.hidden`."""

    async def may_choose(scope: Any, chosen: frozenset[str]) -> Denial | None:
        del scope
        return Denial(403, "not a.hidden") if "a.hidden" in chosen else None

    async def echo(scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": message.get("body", b"")})

    parts = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]
    sent: list[Any] = []

    async def receive() -> Any:
        return parts.pop(0)

    async def send(message: Any) -> None:
        sent.append(message)

    app = FormPermission(echo, may_choose=may_choose)
    asyncio.run(app({"type": "http", "method": method, "path": path, "headers": []}, receive, send))
    return sent[0]["status"], json.loads(sent[1]["body"])


def test_a_choice_that_a_person_may_not_make_triggers_nothing() -> None:
    hidden, shown = {"conf": {"tables": ["a.x", "a.hidden"]}}, {"conf": {"tables": ["a.x"]}}
    assert answered("POST", MAINTENANCE, hidden) == (403, {"detail": "not a.hidden"})
    assert answered("POST", MAINTENANCE, shown) == (200, shown), "the body reaches Airflow whole"
    assert answered("GET", MAINTENANCE, hidden) == (200, hidden)
