"""Who may see the pages and act on them: every address, asked by a stranger, a viewer and an administrator."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.fixtures.airflow import RunningAirflow

from sluice.ledger.desired_states import find_desired_state
from sluice.ledger.events import ActorKind, EventSubject, recent_events
from sluice.ledger.quality_checks import QualityObservation, QualityVerdict, record_quality
from sluice.ledger.run_values import DesiredState
from sluice.quality.quality_pages import QualityPages
from sluice_airflow.pages.page_guard import PlanTokens, ShownPlan

READ = (
    "/sluice/",
    "/sluice/streams",
    "/sluice/streams/acted_on",
    "/sluice/streams/acted_on?hours=24",
    "/sluice/tables",
    "/sluice/tables/silver.acted_on",
    "/sluice/tables/silver.acted_on/quality",
    "/sluice/quality",
    "/sluice/quality?show=failed&q=acted",
    "/sluice/lineage",
    "/sluice/lineage?of=acted_on&only=1",
    "/sluice/api/streams",
    "/sluice/api/unhealthy",
    "/sluice/static/pages.css",
    "/sluice/static/pages.js",
    "/sluice/static/tile.js",
)
PLANS = tuple(f"/sluice/streams/acted_on/plan/{verb}" for verb in ("start", "stop", "restart", "reset-breaker"))
JOB_PLANS = (
    "/sluice/streams/acted_on/plan/reset",
    "/sluice/streams/acted_on/plan/reject-batch",
    "/sluice/streams/asked_back/backfill",
    "/sluice/streams/asked_back/plan/backfill?start=2012-01-05&end=2012-01-07",
    "/sluice/tables/silver.acted_on/plan/maintain",
)
STOP = "/sluice/streams/acted_on/do/stop"
SAMPLES = "/sluice/streams/refusing/quarantine"
MAINTAIN = "/sluice/tables/silver.acted_on/do/maintain"
BACKFILL = "/sluice/streams/asked_back/do/backfill"
REJECT = "/sluice/streams/acted_on/do/reject-batch"
UNPAUSE = "/sluice/dags/ledger_upkeep/do/unpause"
JOBS = (UNPAUSE, MAINTAIN, BACKFILL, REJECT, "/sluice/streams/acted_on/do/reset")
FOREIGN: tuple[dict[str, str], ...] = (
    {},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "none"},
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Sec-Fetch-Site": "same-origin", "Origin": "https://evil.example"},
)
"""What other sites can make a browser send, and what a program without a browser sends."""

NOT_THERE = ("/sluice/docs", "/sluice/redoc", "/sluice/openapi.json", "/sluice/static/..%2fframe.html.j2")


def token_of(client: httpx.Client, verb: str = "stop") -> str:
    """The token in the plan that is shown to a person."""
    answer = client.get(f"/sluice/streams/acted_on/plan/{verb}")
    found = re.search(r'name="token" value="([^"]+)"', answer.text)
    assert found is not None, answer.text
    return found[1]


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "POST"])
@pytest.mark.parametrize("address", [*READ, *PLANS, *JOB_PLANS, SAMPLES, STOP, *JOBS, *NOT_THERE])
def test_a_stranger_sees_nothing(as_stranger: httpx.Client, address: str, method: str) -> None:
    answer = as_stranger.request(method, address, headers={"Sec-Fetch-Site": "same-origin"})

    assert answer.status_code in (401, 404, 405)
    assert "stream-owner" not in answer.text
    if method == "GET" and address not in (STOP, *JOBS, *NOT_THERE):
        assert answer.status_code == 401


@pytest.mark.parametrize("address", READ)
def test_a_viewer_sees_the_pages_and_every_answer_has_the_headers(as_viewer: httpx.Client, address: str) -> None:
    answer = as_viewer.get(address)

    assert answer.status_code == 200, answer.text
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert ("no-store" in answer.headers["Cache-Control"]) == ("static" not in address)


@pytest.mark.parametrize("address", NOT_THERE)
def test_the_application_has_no_documentation_and_no_other_files(as_viewer: httpx.Client, address: str) -> None:
    assert as_viewer.get(address).status_code == 404


def test_a_viewer_finds_no_button_and_his_request_is_refused(as_viewer: httpx.Client, airflow: RunningAirflow) -> None:
    assert "/plan/" not in as_viewer.get("/sluice/streams").text
    assert "/plan/" not in as_viewer.get("/sluice/streams/acted_on").text
    assert "/plan/" not in as_viewer.get("/sluice/tables/silver.acted_on").text
    assert "/backfill" not in as_viewer.get("/sluice/streams/asked_back").text
    for address in (*PLANS, *JOB_PLANS):
        assert as_viewer.get(address).status_code == 403, address
    headers = {"Sec-Fetch-Site": "same-origin"}
    for address in JOBS:
        assert as_viewer.post(address, data={"token": "made up"}, headers=headers).status_code == 403, address
    refused = as_viewer.post(STOP, data={"token": "made up"}, headers=headers)

    assert refused.status_code == 403
    assert "may not edit the DAG acted_on" in refused.text
    assert find_desired_state(airflow.ledger, "acted_on").desired_state is DesiredState.RUNNING


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_a_request_from_another_site_is_refused_also_with_the_token(
    as_admin: httpx.Client, airflow: RunningAirflow, headers: dict[str, str]
) -> None:
    refused = as_admin.post(STOP, data={"token": token_of(as_admin)}, headers=headers)

    assert refused.status_code == 403
    assert "did not come from a page of this Airflow" in refused.text
    assert find_desired_state(airflow.ledger, "acted_on").desired_state is DesiredState.RUNNING


def test_only_a_plan_that_was_shown_is_carried_out(as_admin: httpx.Client, airflow: RunningAirflow) -> None:
    headers = {"Sec-Fetch-Site": "same-origin"}
    for data in ({}, {"token": ""}, {"token": "made up"}, {"token": token_of(as_admin, "start")}):
        assert as_admin.post(STOP, data=data, headers=headers).status_code in (403, 422)
    assert find_desired_state(airflow.ledger, "acted_on").desired_state is DesiredState.RUNNING


def test_a_confirmed_plan_is_in_the_ledger_with_the_person(as_admin: httpx.Client, airflow: RunningAirflow) -> None:
    before = recent_events(airflow.ledger, EventSubject.STREAM, "acted_on", limit=5)
    shown = as_admin.get("/sluice/streams/acted_on/plan/stop").text
    assert "it stays stopped until it is started again" in shown
    assert recent_events(airflow.ledger, EventSubject.STREAM, "acted_on", limit=5) == before, "a plan changes nothing"

    origin = str(airflow.client.base_url).rstrip("/")
    headers = {"Sec-Fetch-Site": "same-origin", "Origin": origin}
    done = as_admin.post(STOP, data={"token": token_of(as_admin)}, headers=headers)

    assert done.status_code == 200, done.text
    assert find_desired_state(airflow.ledger, "acted_on").desired_state is DesiredState.STOPPED
    (event,) = recent_events(airflow.ledger, EventSubject.STREAM, "acted_on", limit=1)
    assert (event.action, event.actor.kind, event.actor.name) == ("stop", ActorKind.PERSON, "airflow: pages, admin")


def shown_to_admin(airflow: RunningAirflow, *, subject: str, verb: str, **more: Any) -> dict[str, str]:
    """The form of a plan that was shown to the administrator, signed as the server signs it."""
    tokens = PlanTokens(airflow.environment["AIRFLOW__API__SECRET_KEY"])
    return {"token": tokens.token_of(ShownPlan(user="admin", subject=subject, verb=verb, **more))}


def test_maintenance_is_run_by_its_dag_for_the_person_and_the_one_table(
    as_admin: httpx.Client, airflow: RunningAirflow
) -> None:
    airflow.wait(lambda: airflow.client.get("/api/v2/dags/table_maintenance").is_success, within_seconds=180)
    assert "/plan/maintain" in as_admin.get("/sluice/tables/silver.acted_on").text
    shown = shown_to_admin(airflow, subject="silver.acted_on", verb="maintain")
    before = len(airflow.runs("table_maintenance"))
    for headers in FOREIGN:
        assert as_admin.post(MAINTAIN, data=shown, headers=headers).status_code == 403
    assert len(airflow.runs("table_maintenance")) == before

    done = as_admin.post(MAINTAIN, data=shown, headers={"Sec-Fetch-Site": "same-origin"})

    assert done.status_code == 200, done.text
    assert "Airflow has queued the maintenance run" in done.text
    run = airflow.runs("table_maintenance")[-1]
    assert (run["conf"], run["triggering_user_name"]) == ({"tables": ["silver.acted_on"]}, "admin")
    (event,) = recent_events(airflow.ledger, EventSubject.TABLE, "silver.acted_on", limit=1)
    assert (event.action, event.actor.name) == ("maintain_table", "airflow: pages, admin")


def test_a_paused_dag_of_the_platform_is_unpaused_as_the_person(
    as_admin: httpx.Client, airflow: RunningAirflow
) -> None:
    airflow.wait(lambda: airflow.client.get("/api/v2/dags/ledger_upkeep").is_success, within_seconds=180)
    airflow.patch("dags/ledger_upkeep", {"is_paused": True})
    shown = {**shown_to_admin(airflow, subject="ledger_upkeep", verb="unpause"), "here": "tables"}
    of_another = shown_to_admin(airflow, subject="data_quality", verb="unpause")
    same_site = {"Sec-Fetch-Site": "same-origin"}
    for headers in FOREIGN:
        assert as_admin.post(UNPAUSE, data=shown, headers=headers).status_code == 403
    for data in ({"token": "made up"}, of_another, {**shown, "here": "//evil.example"}):
        assert as_admin.post(UNPAUSE, data=data, headers=same_site).status_code in (403, 422)
    elsewhere = shown_to_admin(airflow, subject="acted_on", verb="unpause")
    refused = as_admin.post("/sluice/dags/acted_on/do/unpause", data=elsewhere, headers=same_site)
    assert refused.status_code == 403, "a stream is started by its own page"
    assert airflow.get("dags/ledger_upkeep")["is_paused"] is True

    done = as_admin.post(UNPAUSE, data=shown, headers=same_site)

    assert (done.status_code, done.url.path) == (200, "/sluice/tables"), done.text
    assert airflow.get("dags/ledger_upkeep")["is_paused"] is False
    assert as_admin.post(UNPAUSE, data=shown, headers=same_site).status_code == 403, "used"


def test_a_backfill_becomes_runs_of_its_dag_for_the_person(as_admin: httpx.Client, airflow: RunningAirflow) -> None:
    dag = "asked_back__backfill"
    airflow.wait(lambda: airflow.client.get(f"/api/v2/dags/{dag}").is_success, within_seconds=180)
    assert "/backfill" in as_admin.get("/sluice/streams/asked_back").text
    assert as_admin.get("/sluice/streams/asked_back/backfill").status_code == 200
    shown = shown_to_admin(airflow, subject="asked_back", verb="backfill", interval="2012-01-05/2012-01-07")
    for headers in FOREIGN:
        assert as_admin.post(BACKFILL, data=shown, headers=headers).status_code == 403
    assert airflow.get("backfills", dag_id=dag)["backfills"] == []

    done = as_admin.post(BACKFILL, data=shown, headers={"Sec-Fetch-Site": "same-origin"})

    assert done.status_code == 200, done.text
    (made,) = airflow.get("backfills", dag_id=dag)["backfills"]
    assert (made["from_date"][:10], made["to_date"][:10]) == ("2012-01-05", "2012-01-06")
    assert as_admin.post(BACKFILL, data=shown, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 403, "used"
    another = shown_to_admin(airflow, subject="asked_back", verb="backfill", interval="2012-01-05/2012-01-07")
    again = as_admin.post(BACKFILL, data=another, headers={"Sec-Fetch-Site": "same-origin"})
    assert again.status_code == 409, "Airflow runs one backfill of a DAG at a time"
    assert "Airflow refuses it" in again.text
    airflow.client.put(f"/api/v2/backfills/{made['id']}/cancel").raise_for_status()
    events = recent_events(airflow.ledger, EventSubject.STREAM, "asked_back", limit=5)
    assert ("backfill", "airflow: pages, admin") in [(event.action, event.actor.name) for event in events]


def test_a_rejection_becomes_a_run_of_stream_control_for_the_person_with_the_plan_they_saw(
    as_admin: httpx.Client, airflow: RunningAirflow
) -> None:
    airflow.wait(lambda: airflow.client.get("/api/v2/dags/stream_control").is_success, within_seconds=180)
    shown = shown_to_admin(airflow, subject="acted_on", verb="reject-batch", number=7, digest="d" * 64)
    same_site = {"Sec-Fetch-Site": "same-origin"}
    before = len(airflow.runs("stream_control"))
    for headers in FOREIGN:
        assert as_admin.post(REJECT, data=shown, headers=headers).status_code == 403
    of_no_batch = shown_to_admin(airflow, subject="acted_on", verb="reject-batch")
    of_another = shown_to_admin(airflow, subject="asked_back", verb="reject-batch", number=7, digest="d" * 64)
    of_a_reset = shown_to_admin(airflow, subject="acted_on", verb="reset", number=7)
    for data in ({"token": "made up"}, of_no_batch, of_another, of_a_reset):
        assert as_admin.post(REJECT, data=data, headers=same_site).status_code == 403
    assert len(airflow.runs("stream_control")) == before

    done = as_admin.post(REJECT, data=shown, headers=same_site)

    assert done.status_code == 200, done.text
    assert "Airflow has queued the rejection" in done.text
    again = as_admin.post(REJECT, data=shown, headers=same_site)
    assert (again.status_code, "confirmed before" in again.text) == (403, True)
    assert len(airflow.runs("stream_control")) == before + 1
    run = airflow.runs("stream_control")[-1]
    asked = {"stream": "acted_on", "verb": "reject-batch", "dry_run": False, "batch": 7, "plan_digest": "d" * 64}
    assert (run["conf"], run["triggering_user_name"]) == (asked, "admin")
    (event,) = recent_events(airflow.ledger, EventSubject.STREAM, "acted_on", limit=1)
    assert (event.action, event.actor.name) == ("reject_batch", "airflow: pages, admin")


def test_an_unknown_stream_is_not_found(as_admin: httpx.Client) -> None:
    assert as_admin.get("/sluice/streams/no_such_stream").status_code == 404
    assert as_admin.get("/sluice/streams/no_such_stream/plan/stop").status_code == 404
    assert as_admin.get("/sluice/streams/acted_on/plan/explode").status_code == 422


def test_records_in_quarantine_need_a_permission_of_their_own(as_viewer: httpx.Client, as_admin: httpx.Client) -> None:
    page = as_viewer.get("/sluice/streams/refusing")
    assert page.status_code == 200, "a viewer sees the stream"
    assert SAMPLES not in page.text
    assert "Samples of quarantined records are data." in page.text
    refused = as_viewer.get(SAMPLES)
    assert refused.status_code == 403
    assert "Sluice Quarantine Samples" in refused.text

    assert SAMPLES in as_admin.get("/sluice/streams/refusing").text
    asked = as_admin.get(SAMPLES)

    assert asked.status_code == 200
    assert "The table does not exist yet." in asked.text, "the catalog of these tests holds no table"
    assert as_viewer.get("/sluice/streams/acted_on/quarantine").status_code == 403
    assert as_admin.get("/sluice/streams/acted_on/quarantine").status_code == 404, "it has no quarantine"
    assert as_admin.get("/sluice/streams/no_such_stream/quarantine").status_code == 404
    assert "<h2>Quarantine</h2>" not in as_admin.get("/sluice/streams/acted_on").text


REPORT = "<script>document.title = 'ran'</script><h1>A report</h1>"


@pytest.fixture(scope="module")
def report(airflow: RunningAirflow) -> str:
    """The address of the folder of a report of Great Expectations."""
    checked_at = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
    folder = QualityPages(root=Path(airflow.environment["SLUICE_REPORTS"])).data_docs("silver.acted_on", checked_at)
    folder.mkdir(parents=True)
    result = folder / "validations" / "silver.acted_on" / "result.html"
    result.parent.mkdir(parents=True)
    result.write_text(REPORT)
    (folder / "index.html").write_text("a list that a script would have to write")
    (folder.parent / "index.html").write_text("the page of the table")
    record_quality(
        airflow.ledger,
        QualityObservation(
            table="silver.acted_on",
            checked_at=checked_at,
            launched_by="a test",
            verdict=QualityVerdict.FAILED,
            snapshot_id=7,
            snapshot_committed_at=checked_at,
            rows=10,
            expectations=2,
            failed_expectations=("expect_column_values_to_not_be_null",),
            report=str(folder / "index.html"),
        ),
        sentence="1 of 2 expectations do not hold: id is not null: 3 rows break it.",
    )
    return f"/sluice/tables/silver.acted_on/reports/{folder.name}"


def test_a_report_is_behind_the_login_and_none_of_its_scripts_runs(
    as_stranger: httpx.Client, as_viewer: httpx.Client, report: str
) -> None:
    result = f"{report}/validations/silver.acted_on/result.html"
    assert as_stranger.get(result).status_code == 401
    assert f'href="{result}"' in as_viewer.get("/sluice/tables/silver.acted_on/quality").text, "and not a list"
    shown = as_viewer.get(result)

    assert (shown.status_code, shown.text) == (200, REPORT)
    policy = shown.headers["Content-Security-Policy"]
    assert policy.startswith("sandbox; default-src 'none'")
    assert "script-src" not in policy
    assert "allow-" not in policy


@pytest.mark.parametrize("path", ["../index.html", "..%2findex.html", "%2e%2e/index.html", "/etc/passwd", "", "x.py"])
def test_only_files_of_a_report_are_served(as_viewer: httpx.Client, report: str, path: str) -> None:
    address = httpx.URL(str(as_viewer.base_url)).copy_with(raw_path=f"{report}/{path}".encode())

    answer = as_viewer.get(address)

    assert "the page of the table" not in answer.text
    assert answer.status_code in (404, 401)
    assert as_viewer.get(f"{report.replace('2026', '2025')}/index.html").status_code == 404
