"""The pages as people use them, in a real browser: an on-call, a viewer, a page of another site."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Literal
from urllib.parse import quote

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect
from tests.fakes.behaviour import Behaviour, tell_drivers
from tests.fixtures.airflow import RunningAirflow
from tests.fixtures.browser import logged_in, screenshot, with_cookie
from tests.fixtures.supervised_streams import await_running, kill_driver, started

from sluice.ledger.batches import PublicationKey
from sluice.ledger.held_batches import HeldBatch, hold_batch, let_go
from sluice.ledger.recorded_checks import (
    ExpectationObservation,
    QualityObservation,
    QualityVerdict,
    record_quality,
)
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import newest_run, recent_runs

SECONDS = 1000
LOOKS: tuple[Literal["light", "dark"], ...] = ("light", "dark")
PAGES = (
    "streams",
    "streams/paged",
    "streams/paged/plan/stop",
    "streams/no_such_stream",
    "tables",
    "tables/silver.paged",
    "tables/gold.third",
    "tables/gold.third/quality",
    "quality",
    "streams/asked_back/backfill",
    "streams/refusing",
    "streams/refusing/quarantine",
    "lineage",
    "lineage?of=bronze.flights",
)
FRAMED = (
    *("streams", "streams/paged", "streams/paged/plan/stop", "streams/asked_back/backfill", "streams/refusing"),
    "streams/refusing/quarantine",
    *("tables", "tables/silver.paged", "tables/gold.third", "tables/gold.third/quality", "quality", "lineage"),
)
PATIENCE = 90 * SECONDS

_CUT_OFF = "all => all.filter(one => one.scrollWidth > one.clientWidth + 1).map(one => one.className || one.tagName)"
_WIDER_THAN_THE_PAGE = "() => [document.documentElement.scrollWidth].filter(width => width > innerWidth)"
"""On a phone a wide table may be moved sideways, but the page may not."""


@pytest.fixture(scope="module")
def killed(airflow: RunningAirflow) -> RunObservation:
    """The second run of the stream `paged`; both of its drivers were killed, and the next start is far away."""
    first, _ = started(airflow, "paged")
    kill_driver(first)
    second = await_running(airflow, "paged", after=first)
    kill_driver(second)

    def has_ended() -> bool:
        run = newest_run(airflow.ledger, "paged")
        return run is not None and run.run_id == second.run_id and not run.is_live

    airflow.wait(has_ended, within_seconds=90)
    assert [one.run_id for one in recent_runs(airflow.ledger, "paged", limit=9)] == [second.run_id, first.run_id]
    assert len(airflow.runs("paged")) == 1, "the same task has started both"
    return second


@pytest.fixture(scope="module")
def checked(airflow: RunningAirflow) -> None:
    """A day of checks of the table `gold.third`, of which the newest two found three rows."""
    for ago in reversed(range(4)):
        at = datetime.now(UTC) - ago * timedelta(hours=6)
        broken = 3 if ago < 2 else 0
        found = ExpectationObservation(
            expectation="expect_column_values_to_not_be_null",
            arguments={"column": "id"},
            success=not broken,
            observed={"element_count": 40, **({"samples": ["sample-7"]} if broken else {})},
            unexpected_rows=broken,
        )
        check = QualityObservation(
            table="gold.third",
            checked_at=at,
            launched_by="airflow: data_quality, scheduled__7",
            verdict=QualityVerdict.FAILED if broken else QualityVerdict.PASSED,
            snapshot_id=7,
            snapshot_committed_at=at - timedelta(minutes=4),
            rows=40,
            expectations=1,
            failed_expectations=(found.expectation,) if broken else (),
            report=None,
            details=(found,),
        )
        record_quality(airflow.ledger, check, sentence="id is not null: 3 of 40 rows break it.")


def problems_of(page: Page) -> list[str]:
    """What axe-core finds."""
    return [f"{found['id']}: {found['help']}" for found in Axe().run(page).response["violations"]]


def test_the_on_call_finds_the_killed_stream_reads_why_starts_it_and_sees_it_recover(
    airflow: RunningAirflow, browser: Browser, killed: RunObservation
) -> None:
    page = logged_in(airflow, browser, "admin")
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda said: errors.append(said.text) if "Content Security Policy" in said.text else None)
    expect(page.locator("#sluice-tile")).to_contain_text("unhealthy", timeout=PATIENCE)
    screenshot(page, "home")
    page.locator("#sluice-tile").get_by_role("link", name="unhealthy").click()
    page.wait_for_url("**/plugin/streams/sluice/streams?show=unhealthy", timeout=PATIENCE, wait_until="commit")
    frame = page.frame_locator("iframe")
    row = frame.locator("table.streams tbody tr", has=page.get_by_role("link", name="paged", exact=True))
    expect(row).to_contain_text("restarting", timeout=PATIENCE)
    expect(row).to_contain_text("killed by SIGKILL")
    screenshot(page, "streams-in-airflow")
    frame.get_by_role("searchbox").fill("SIGKILL")
    expect(frame.locator("table.streams tbody tr")).to_have_count(1, timeout=PATIENCE)

    row.get_by_role("link", name="paged", exact=True).click()
    expect(frame.get_by_role("heading", name="paged", exact=True)).to_be_visible(timeout=PATIENCE)
    expect(frame.locator("#live")).to_contain_text("driver_killed")
    page.wait_for_url("**/plugin/streams/sluice/streams/paged", timeout=PATIENCE)
    screenshot(page, "stream-killed")
    frame.get_by_role("link", name="Start…").click()
    expect(frame.get_by_role("heading", name="Start paged?")).to_be_visible(timeout=PATIENCE)
    expect(frame.get_by_role("list")).to_contain_text("Ask that paged runs; this resets its failure count.")
    screenshot(page, "plan")
    frame.get_by_role("button", name="Start paged").click()

    expect(frame.locator("#live")).to_contain_text("Start is in the ledger", timeout=PATIENCE)
    expect(frame.locator("#live .banner .state")).to_contain_text(re.compile("running|idle"), timeout=PATIENCE)
    assert await_running(airflow, "paged", after=killed).is_live
    expect(frame.locator("#live")).to_contain_text("airflow: pages, admin")
    screenshot(page, "stream-recovered")
    frame.get_by_role("link", name="DAG", exact=True).click()
    page.wait_for_url("**/dags/paged", timeout=PATIENCE, wait_until="commit")
    assert errors == []
    page.context.close()


@pytest.mark.full  # every run opens the pages of the on-call and the analyst in this browser
def test_the_pages_can_be_read_by_everybody(airflow: RunningAirflow, browser: Browser, checked: None) -> None:
    page = with_cookie(airflow, browser, "admin")
    for name in PAGES:
        page.goto(f"/sluice/{name}")
        for look in LOOKS:
            page.emulate_media(color_scheme=look)
            screenshot(page, f"{look}-{name.replace('/', '-')}")
            assert problems_of(page) == [], f"{name}, {look}"
    page.set_viewport_size({"width": 390, "height": 800})
    for name in ("streams", "streams/paged", "tables", "tables/silver.paged", "lineage?of=paged"):
        page.goto(f"/sluice/{name}")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), name
        screenshot(page, f"narrow-{name.replace('/', '-')}")
    page.context.close()


@pytest.mark.full  # every run: each page alone, and some on a phone
@pytest.mark.parametrize("width", [1400, 500])
def test_nothing_is_cut_off_inside_airflow(
    airflow: RunningAirflow, browser: Browser, checked: None, width: int
) -> None:
    page = with_cookie(airflow, browser, "admin")
    page.set_viewport_size({"width": width, "height": 1500})
    cut: list[str] = []
    for name in FRAMED:
        page.goto(f"/plugin/streams/sluice/{name}")
        frame = page.frame_locator("iframe")
        expect(frame.locator("h1")).to_be_visible(timeout=PATIENCE)
        for look in LOOKS:
            page.evaluate(f"document.documentElement.className = '{look}'")
            expect(frame.locator(f":root[data-theme={look}]")).to_be_attached()
            screenshot(page, f"framed-{width}-{look}-{name.replace('/', '-')}")
        wide = frame.locator("main, .wide").evaluate_all(_CUT_OFF if width > 1000 else _WIDER_THAN_THE_PAGE)
        cut += [f"{name}: {one}" for one in wide]
    page.context.close()

    assert cut == []


def test_a_person_finds_in_the_lineage_what_a_stream_feeds_and_opens_it_by_keyboard(
    airflow: RunningAirflow, browser: Browser
) -> None:
    page = with_cookie(airflow, browser, "viewer")
    page.goto("/sluice/lineage")
    box = page.locator(".graph a", has_text="silver.paged")
    expect(box).to_be_visible(timeout=PATIENCE)
    expect(page.locator(".graph .node:not(.near)")).to_have_count(0)
    page.get_by_label("Highlight").fill("paged")

    expect(page.locator("#live")).to_contain_text("Leads to paged", timeout=PATIENCE)
    expect(page.locator(".graph .self")).to_contain_text("paged")
    assert page.locator(".graph .node.near").count() == 3
    assert page.locator(".graph .node:not(.near)").count() > 3
    page.get_by_label("only what is connected with it").check()
    expect(page.locator(".graph .node")).to_have_count(3, timeout=PATIENCE)
    page.wait_for_url("**/lineage?of=paged&only=1")
    page.locator(".graph .self").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="silver.paged", exact=True)).to_be_visible(timeout=PATIENCE)
    page.context.close()


def test_an_analyst_sees_what_the_catalog_has_and_copies_a_query(airflow: RunningAirflow, browser: Browser) -> None:
    page = with_cookie(airflow, browser, "viewer")
    page.goto("/plugin/streams/sluice/tables/bronze.flights")
    frame = page.frame_locator("iframe")
    expect(frame.get_by_role("heading", name="bronze.flights", exact=True)).to_be_visible(timeout=PATIENCE)

    expect(frame.locator("#live")).to_contain_text("no rows yet")
    expect(frame.get_by_role("row", name="at timestamptz")).to_be_visible()
    expect(frame.get_by_role("row", name="not checked id is not null")).to_be_visible()
    copy = frame.locator("button[data-copy]").first
    copy.click()
    expect(copy).to_have_text("Copied")
    page.context.close()


@pytest.mark.full
def test_a_paused_dag_is_said_where_its_result_is_missed_and_unpaused_there(
    airflow: RunningAirflow, browser: Browser
) -> None:
    airflow.unpause("data_quality")
    page = with_cookie(airflow, browser, "admin")
    banner = page.frame_locator("iframe").get_by_text("the DAG data_quality is paused")
    places = ("tables", "tables/bronze.flights", "streams")
    try:
        for is_paused in (False, True):
            airflow.patch("dags/data_quality", {"is_paused": is_paused})
            for place in places:
                page.goto(f"/plugin/streams/sluice/{place}")
                expect(page.frame_locator("iframe").locator("h1")).to_be_visible(timeout=PATIENCE)
                expect(banner).to_have_count(int(is_paused))
        screenshot(page, "paused-dag")
        page.goto("/plugin/streams/sluice/tables/bronze.flights")
        page.frame_locator("iframe").get_by_role("button", name="Unpause data_quality").click()
        expect(page.frame_locator("iframe").get_by_text("The DAG is unpaused")).to_be_visible(timeout=PATIENCE)
        expect(banner).to_have_count(0)
        assert airflow.get("dags/data_quality")["is_paused"] is False
        airflow.patch("dags/data_quality", {"is_paused": True})
        page.goto("/")
        tile = page.locator("#sluice-tile").get_by_role("link", name="1 DAG of the platform paused")
        expect(tile).to_be_visible(timeout=PATIENCE)
        screenshot(page, "home-with-paused-dag")
        tile.click()
        page.wait_for_url("**/dags/data_quality", timeout=PATIENCE, wait_until="commit")
    finally:
        airflow.unpause("data_quality")
    page.context.close()


@pytest.fixture(scope="module")
def red_task(airflow: RunningAirflow, checked: None) -> str:
    """The page of a task that has checked `gold.third` and failed."""
    tell_drivers(airflow.behaviours, "gold.third", Behaviour(fails_with="UnhealthyError: id is not null: 3 rows"))
    airflow.unpause("data_quality")
    run = airflow.trigger("data_quality", tables=["gold.third"])
    airflow.wait(lambda: airflow.task("data_quality", "gold.third", run)["state"] == "failed", within_seconds=200)
    return f"/dags/data_quality/runs/{quote(run)}/tasks/gold.third"


def test_from_the_red_task_three_clicks_lead_to_the_release_of_a_held_batch(
    airflow: RunningAirflow, browser: Browser, red_task: str
) -> None:
    held = HeldBatch(
        key=PublicationKey(stream="by_stream", generation=1, batch=4),
        reason="has_id by 3 of 40 rows",
        rows={"main": 40},
        failed={"main": {"has_id": 3}},
        samples={"main": {"has_id": '["{\\"id\\":null}"]'}},
    )
    hold_batch(airflow.ledger, held)
    page = with_cookie(airflow, browser, "admin")
    page.goto(red_task)
    page.get_by_role("link", name="Details").click(timeout=PATIENCE)
    page.get_by_role("link", name="Quality report").click(timeout=PATIENCE)
    frame = page.frame_locator("iframe")
    banner = frame.locator(".banner", has_text="Batch 1:4 waits for a person")
    expect(banner).to_contain_text("it breaks has_id by 3 of 40 rows", timeout=PATIENCE)
    expect(banner).to_contain_text('{"id":null}')
    screenshot(page, "held-batch")
    banner.get_by_role("link", name="Release batch…", exact=True).click()

    expect(frame.get_by_role("button", name=re.compile("^Release batch"))).to_be_visible(timeout=PATIENCE)
    expect(frame.locator("body")).to_contain_text('{"id":null}')
    screenshot(page, "held-batch-plan")
    page.context.close()
    page = with_cookie(airflow, browser, "viewer")
    page.goto("/sluice/tables/gold.third/quality")
    banner = page.locator(".banner", has_text="it breaks has_id by 3 of 40 rows")
    expect(banner).to_be_visible(timeout=PATIENCE)
    expect(banner).not_to_contain_text("null")
    expect(banner.get_by_role("group")).to_have_count(0)
    page.context.close()
    let_go(airflow.ledger, held.key)


@pytest.mark.full  # every run: three clicks to a held batch
def test_from_the_red_task_two_clicks_lead_to_the_broken_rule_and_its_values(
    airflow: RunningAirflow, browser: Browser, red_task: str
) -> None:
    page = with_cookie(airflow, browser, "viewer")
    page.goto(red_task)
    page.get_by_role("link", name="Details").click(timeout=PATIENCE)
    page.get_by_role("link", name="Quality report").click(timeout=PATIENCE)

    frame = page.frame_locator("iframe")
    rule = frame.get_by_role("row", name="id is not null")
    expect(rule).to_contain_text("broken", timeout=PATIENCE)
    expect(rule).to_contain_text("3")
    expect(rule).to_contain_text("in 2 of 4 checks")
    expect(rule.get_by_text("sample-7")).to_be_visible()
    screenshot(page, "quality-report")
    frame.get_by_role("link", name="← Quality").click()
    expect(frame.get_by_role("row", name="gold.third")).to_contain_text("id is not null: 3 of 40 rows break it")
    frame.get_by_role("link", name="Printable").click()
    page.wait_for_url("**/sluice/quality", timeout=PATIENCE)
    page.emulate_media(media="print")
    expect(page.get_by_role("searchbox")).to_be_hidden()
    screenshot(page, "quality-printed")
    page.context.close()


def test_a_viewer_sees_no_button(airflow: RunningAirflow, browser: Browser) -> None:
    page = with_cookie(airflow, browser, "viewer")
    page.goto("/sluice/streams/paged")
    expect(page.get_by_role("heading", name="paged", exact=True)).to_be_visible(timeout=PATIENCE)
    expect(page.get_by_role("group", name="Actions")).to_have_count(0)
    page.goto("/sluice/tables/silver.paged")
    expect(page.get_by_role("heading", name="silver.paged", exact=True)).to_be_visible()
    expect(page.get_by_role("group", name="Actions")).to_have_count(0)
    page.goto("/sluice/streams/paged/plan/stop")
    expect(page.get_by_role("heading", name="This is not allowed")).to_be_visible()
    page.context.close()


def test_a_page_of_another_site_can_not_act(airflow: RunningAirflow, browser: Browser) -> None:
    page = with_cookie(airflow, browser, "admin")
    page.goto("/sluice/streams/paged/plan/stop")
    token = page.locator("input[name=token]").get_attribute("value")
    before = newest_run(airflow.ledger, "paged")
    action = airflow.client.base_url.join("/sluice/streams/paged/do/stop")
    form = f'<form method=post action="{action}"><input name=token value="{token}"></form>'
    page.context.route("https://evil.example/**", lambda route: route.fulfill(body=form, content_type="text/html"))
    page.goto("https://evil.example/")
    with page.expect_navigation(url="**/do/stop"):
        page.evaluate("document.forms[0].submit()")

    expect(page.locator("body")).not_to_contain_text("is in the ledger")
    now = newest_run(airflow.ledger, "paged")
    assert now is not None
    assert before is not None
    assert now.desired_state == before.desired_state
    page.context.close()
