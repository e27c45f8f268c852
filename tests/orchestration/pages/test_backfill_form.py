"""Airflow's own form for backfills, used in a real browser: it ends in the DAG of a stream's backfills."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Locator, Page, expect
from tests.fixtures.airflow import RunningAirflow
from tests.fixtures.browser import screenshot, with_cookie

DAG = "chosen_days__backfill"
PATIENCE = 60_000


def choose_day(page: Page, field: Locator, day: str) -> None:
    """Open the calendar of a field, write a day, and close it."""
    field.click()
    written = page.get_by_placeholder("YYYY/MM/DD")
    written.fill(day)
    field.click()
    expect(written).to_have_count(0)


@pytest.mark.full  # every run: the same three runs by Airflow's API (`test_backfill_runs.py`)
def test_three_days_that_a_person_chooses_in_the_form_are_three_runs(airflow: RunningAirflow, browser: Browser) -> None:
    airflow.wait(lambda: airflow.client.get(f"/api/v2/dags/{DAG}").is_success, within_seconds=180)
    page = with_cookie(airflow, browser, "admin")
    page.goto(f"/dags/{DAG}")
    page.get_by_role("button", name="Trigger Dag", exact=True).click(timeout=PATIENCE)
    form = page.get_by_role("dialog").filter(has_text="Run this Dag for a range of dates")
    form.get_by_text("Run this Dag for a range of dates").click(timeout=PATIENCE)
    choose_day(page, form.get_by_test_id("datetime-input").first, "2013/01/05")
    choose_day(page, form.get_by_test_id("datetime-input").last, "2013/01/07")
    expect(form).to_contain_text("3 runs will be triggered.", timeout=PATIENCE)
    screenshot(page, "backfill-form")
    assert airflow.runs(DAG) == [], "what the form counts is a look, and creates nothing"

    form.get_by_role("button", name="Run Backfill").click()

    expect(page.get_by_text("Backfill jobs have been successfully triggered.")).to_be_visible(timeout=PATIENCE)
    (backfill,) = airflow.get("backfills", dag_id=DAG)["backfills"]
    runs = airflow.runs(DAG)
    assert {(run["run_type"], run["triggering_user_name"]) for run in runs} == {("backfill", "admin")}
    assert sorted((run["data_interval_start"][:16], run["data_interval_end"][:16]) for run in runs) == [
        (f"2013-01-{day:02}T00:00", f"2013-01-{day + 1:02}T00:00") for day in (5, 6, 7)
    ]
    assert (backfill["from_date"][:10], backfill["to_date"][:10]) == ("2013-01-05", "2013-01-07")
    airflow.client.put(f"/api/v2/backfills/{backfill['id']}/cancel").raise_for_status()
    page.context.close()
