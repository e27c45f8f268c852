"""Who may see the pages and act on them: every address, asked by a stranger, a viewer and an administrator."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest
from tests.fixtures.airflow import RunningAirflow

from sluice.ledger.desired_states import find_desired_state
from sluice.ledger.events import ActorKind, EventSubject, recent_events
from sluice.ledger.recorded_checks import QualityObservation, QualityVerdict, record_quality
from sluice.ledger.run_values import DesiredState
from sluice.quality.check_results import QualityPages

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
    "/sluice/streams/acted_on/plan/rewind?batch=0",
    *(f"/sluice/streams/acted_on/plan/{verb}" for verb in ("reject-batch", "release-batch", "separate-batch")),
    "/sluice/streams/asked_back/backfill",
    "/sluice/streams/asked_back/plan/backfill?start=2012-01-05&end=2012-01-07",
    "/sluice/tables/silver.acted_on/plan/maintain",
)
STOP = "/sluice/streams/acted_on/do/stop"
SAMPLES = "/sluice/streams/refusing/quarantine"
MAINTAIN = "/sluice/tables/silver.acted_on/do/maintain"
BACKFILL = "/sluice/streams/asked_back/do/backfill"
REJECT = "/sluice/streams/acted_on/do/reject-batch"
RELEASES = tuple(f"/sluice/streams/acted_on/do/{verb}" for verb in ("release-batch", "separate-batch"))
UNPAUSE = "/sluice/dags/ledger_upkeep/do/unpause"
JOBS = (
    UNPAUSE,
    MAINTAIN,
    BACKFILL,
    REJECT,
    *RELEASES,
    "/sluice/streams/acted_on/do/reset",
    "/sluice/streams/acted_on/do/rewind",
)
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


def test_a_rewind_is_planned_for_the_batch_that_was_chosen(as_admin: httpx.Client) -> None:
    shown = as_admin.get("/sluice/streams/acted_on/plan/rewind?batch=0")

    assert "acted_on has published no batch into a table: there is nothing to go back to." in shown.text
    assert as_admin.get("/sluice/streams/acted_on/plan/rewind").status_code == 422


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
