"""Jobs that a person confirms on a page: Airflow runs them as that person, and only what was shown."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

import httpx
import pyarrow as pa
import pytest
from pyiceberg.table import Table
from tests.fixtures.airflow import RunningAirflow
from tests.fixtures.publication import CatalogPlace, open_catalog_at
from tests.orchestration.pages.test_page_access import BACKFILL, FOREIGN, MAINTAIN, UNPAUSE

from sluice.backfill.intervals import declarations_digest, parse_interval
from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.events import EventSubject, recent_events
from sluice.publication.chain import MarkPosition
from sluice.publication.marks import Mark
from sluice.publication.staged_batch import StagedOutput
from sluice_airflow.pages.page_guard import PlanTokens, ShownPlan

COLUMNS = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("at", pa.timestamp("us", tz="UTC"))])
SAME_SITE = {"Sec-Fetch-Site": "same-origin"}
INTERVAL = {"start": "2012-01-05", "end": "2012-01-07"}


def shown_by(client: httpx.Client, address: str, **parameters: str) -> dict[str, str]:
    """The form of a plan that a page shows."""
    page = client.get(address, params=parameters)
    found = re.search(r'name="token" value="([^"]+)"', page.text)
    assert found is not None, page.text
    return {"token": found[1]}


def table_of(airflow: RunningAirflow, name: str) -> Table:
    """A table in the catalog of the ring, made when it is not there."""
    catalog = open_catalog_at(CatalogPlace(environment=airflow.environment))
    catalog.create_namespace_if_not_exists(name.partition(".")[0])
    return catalog.create_table_if_not_exists(name, COLUMNS)


def check_out_of_date(client: httpx.Client, address: str, shown: dict[str, str]) -> None:
    """What was confirmed is not carried out, because another plan was shown."""
    refused = client.post(address, data=shown, headers=SAME_SITE)
    assert refused.status_code == 409, refused.text
    assert "is another one than was shown" in refused.text


def shown_to_admin(airflow: RunningAirflow, *, subject: str, verb: str, **more: Any) -> dict[str, str]:
    """The form of a plan that was shown to the administrator, signed as the server signs it."""
    tokens = PlanTokens(airflow.environment["AIRFLOW__API__SECRET_KEY"])
    return {"token": tokens.token_of(ShownPlan(user="admin", subject=subject, verb=verb, **more))}


def digest_in(
    airflow: RunningAirflow, shown: dict[str, str], *, subject: str = "asked_back", verb: str = "backfill"
) -> str:
    """The digest that the token of a plan binds."""
    tokens = PlanTokens(airflow.environment["AIRFLOW__API__SECRET_KEY"])
    plan = tokens.plan_of(shown["token"], user="admin", subject=subject, verb=verb)
    assert plan is not None
    return plan.digest


def mark_as_published(airflow: RunningAirflow, stream: str) -> Table:
    """The table of a stream as its first batch left it, whose offsets nothing knows any more."""
    table = table_of(airflow, f"silver.{stream}")
    table.append(pa.Table.from_pylist([{"id": 0, "at": None}], COLUMNS))
    first = table.snapshots()[0]
    position = MarkPosition(generation=1, batch=0, token=1, end_offsets_digest="0" * 64)
    mark = Mark.set_to(position, snapshot_id=first.snapshot_id, sequence_number=first.sequence_number or 0)
    output = StagedOutput(stream=stream, output="main", target=f"silver.{stream}")
    with table.transaction() as change:
        change.set_properties({output.mark_property: mark.text()})
    return table


@pytest.mark.full  # every run refuses one that is declared otherwise
def test_maintenance_is_run_by_its_dag_for_the_person_and_the_one_table(
    as_admin: httpx.Client, airflow: RunningAirflow
) -> None:
    table_of(airflow, "silver.acted_on")
    airflow.wait(lambda: airflow.client.get("/api/v2/dags/table_maintenance").is_success, within_seconds=180)
    assert "/plan/maintain" in as_admin.get("/sluice/tables/silver.acted_on").text
    shown = shown_by(as_admin, MAINTAIN.replace("/do/", "/plan/"))
    before = len(airflow.runs("table_maintenance"))
    for headers in FOREIGN:
        assert as_admin.post(MAINTAIN, data=shown, headers=headers).status_code == 403
    for digest in ("", "d" * 64):
        of_another = shown_to_admin(airflow, subject="silver.acted_on", verb="maintain", digest=digest)
        check_out_of_date(as_admin, MAINTAIN, of_another)
    of_the_earlier = shown_by(as_admin, MAINTAIN.replace("/do/", "/plan/"))
    open_catalog_at(CatalogPlace(environment=airflow.environment)).drop_table("silver.acted_on")
    table_of(airflow, "silver.acted_on")
    check_out_of_date(as_admin, MAINTAIN, of_the_earlier)
    shown = shown_by(as_admin, MAINTAIN.replace("/do/", "/plan/"))
    assert len(airflow.runs("table_maintenance")) == before

    done = as_admin.post(MAINTAIN, data=shown, headers=SAME_SITE)

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
    for headers in FOREIGN:
        assert as_admin.post(UNPAUSE, data=shown, headers=headers).status_code == 403
    for data in ({"token": "made up"}, of_another, {**shown, "here": "//evil.example"}):
        assert as_admin.post(UNPAUSE, data=data, headers=SAME_SITE).status_code in (403, 422)
    elsewhere = shown_to_admin(airflow, subject="acted_on", verb="unpause")
    refused = as_admin.post("/sluice/dags/acted_on/do/unpause", data=elsewhere, headers=SAME_SITE)
    assert refused.status_code == 403, "a stream is started by its own page"
    assert airflow.get("dags/ledger_upkeep")["is_paused"] is True

    done = as_admin.post(UNPAUSE, data=shown, headers=SAME_SITE)

    assert (done.status_code, done.url.path) == (200, "/sluice/tables"), done.text
    assert airflow.get("dags/ledger_upkeep")["is_paused"] is False
    assert as_admin.post(UNPAUSE, data=shown, headers=SAME_SITE).status_code == 403, "used"


def test_a_backfill_becomes_runs_of_its_dag_for_the_person(as_admin: httpx.Client, airflow: RunningAirflow) -> None:
    dag, plan = "asked_back__backfill", BACKFILL.replace("/do/", "/plan/")
    mark_as_published(airflow, "asked_back")
    airflow.wait(lambda: airflow.client.get(f"/api/v2/dags/{dag}").is_success, within_seconds=180)
    assert "/backfill" in as_admin.get("/sluice/streams/asked_back").text
    assert as_admin.get("/sluice/streams/asked_back/backfill").status_code == 200
    shown, another = shown_by(as_admin, plan, **INTERVAL), shown_by(as_admin, plan, **INTERVAL)
    for headers in FOREIGN:
        assert as_admin.post(BACKFILL, data=shown, headers=headers).status_code == 403
    assert airflow.get("backfills", dag_id=dag)["backfills"] == []

    done = as_admin.post(BACKFILL, data=shown, headers=SAME_SITE)

    assert done.status_code == 200, done.text
    (made,) = airflow.get("backfills", dag_id=dag)["backfills"]
    assert (made["from_date"][:10], made["to_date"][:10]) == ("2012-01-05", "2012-01-06")
    declarations = load_declarations(airflow.pipelines)
    agreed = declarations_digest(declarations, declarations.stream("asked_back"), parse_interval(*INTERVAL.values()))
    assert made["dag_run_conf"] == {"agreed": agreed}
    assert as_admin.post(BACKFILL, data=shown, headers=SAME_SITE).status_code == 403, "used"
    again = as_admin.post(BACKFILL, data=another, headers=SAME_SITE)
    assert again.status_code == 409, "Airflow runs one backfill of a DAG at a time"
    assert "Airflow refuses it" in again.text
    airflow.client.put(f"/api/v2/backfills/{made['id']}/cancel").raise_for_status()
    events = recent_events(airflow.ledger, EventSubject.STREAM, "asked_back", limit=5)
    assert ("backfill", "airflow: pages, admin") in [(event.action, event.actor.name) for event in events]


def test_maintenance_that_is_declared_otherwise_needs_another_approval(
    as_admin: httpx.Client, airflow: RunningAirflow
) -> None:
    plan, declared = MAINTAIN.replace("/do/", "/plan/"), airflow.pipelines / "silver.acted_on.table.yaml"
    table_of(airflow, "silver.acted_on")
    shown, written = shown_by(as_admin, plan), declared.read_text()
    of = partial(digest_in, airflow, subject="silver.acted_on", verb="maintain")
    try:
        declared.write_text(written.replace("expiry: null", "expiry: null, content_check_bytes: 1MiB"))
        airflow.wait(lambda: of(shown_by(as_admin, plan)) != of(shown), within_seconds=30)
        check_out_of_date(as_admin, MAINTAIN, shown)
    finally:
        declared.write_text(written)
    airflow.wait(lambda: of(shown_by(as_admin, plan)) == of(shown), within_seconds=30)


@pytest.mark.full  # every run: maintenance that is declared otherwise
def test_a_backfill_of_rows_that_are_computed_otherwise_needs_another_approval(
    as_admin: httpx.Client, airflow: RunningAirflow
) -> None:
    plan, declared = BACKFILL.replace("/do/", "/plan/"), airflow.pipelines / "asked_back.stream.yaml"
    table = mark_as_published(airflow, "asked_back")
    asked = airflow.get("backfills", dag_id="asked_back__backfill")["backfills"]
    shown, written = shown_by(as_admin, plan, **INTERVAL), declared.read_text()

    def is_another() -> bool:
        return digest_in(airflow, shown_by(as_admin, plan, **INTERVAL)) != digest_in(airflow, shown)

    try:
        declared.write_text(written.replace("at_once: 2", "at_once: 2, margin: 1 hour"))
        airflow.wait(is_another, within_seconds=30)
        check_out_of_date(as_admin, BACKFILL, shown)
        assert airflow.get("backfills", dag_id="asked_back__backfill")["backfills"] == asked
    finally:
        declared.write_text(written)
    table.append(pa.Table.from_pylist([{"id": 1, "at": None}], COLUMNS))
    airflow.wait(lambda: not is_another(), within_seconds=30)  # whatever the stream has published meanwhile


@pytest.mark.parametrize(
    ("verb", "said", "action"),
    [
        ("reject-batch", "rejection", "reject_batch"),
        ("release-batch", "release", "release_batch"),
        ("separate-batch", "release without the failing rows", "release_batch"),
    ],
)
def test_a_decision_about_a_batch_becomes_a_run_for_the_person_with_the_plan_they_saw(
    as_admin: httpx.Client, airflow: RunningAirflow, verb: str, said: str, action: str
) -> None:
    address = f"/sluice/streams/acted_on/do/{verb}"
    airflow.wait(lambda: airflow.client.get("/api/v2/dags/stream_control").is_success, within_seconds=180)
    shown = shown_to_admin(airflow, subject="acted_on", verb=verb, number=7, digest="d" * 64)
    before = len(airflow.runs("stream_control"))
    for headers in FOREIGN:
        assert as_admin.post(address, data=shown, headers=headers).status_code == 403
    of_no_batch = shown_to_admin(airflow, subject="acted_on", verb=verb)
    of_another = shown_to_admin(airflow, subject="asked_back", verb=verb, number=7, digest="d" * 64)
    of_a_reset = shown_to_admin(airflow, subject="acted_on", verb="reset", number=7)
    for data in ({"token": "made up"}, of_no_batch, of_another, of_a_reset):
        assert as_admin.post(address, data=data, headers=SAME_SITE).status_code == 403
    assert len(airflow.runs("stream_control")) == before

    done = as_admin.post(address, data=shown, headers=SAME_SITE)

    assert done.status_code == 200, done.text
    assert f"Airflow has queued the {said}" in done.text
    again = as_admin.post(address, data=shown, headers=SAME_SITE)
    assert (again.status_code, "confirmed before" in again.text) == (403, True)
    assert len(airflow.runs("stream_control")) == before + 1
    run = airflow.runs("stream_control")[-1]
    asked = {"stream": "acted_on", "verb": verb, "dry_run": False, "batch": 7, "plan_digest": "d" * 64}
    assert (run["conf"], run["triggering_user_name"]) == (asked, "admin")
    (event,) = recent_events(airflow.ledger, EventSubject.STREAM, "acted_on", limit=1)
    assert (event.action, event.actor.name) == (action, "airflow: pages, admin")
