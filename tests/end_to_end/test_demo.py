"""The demo as a person runs it: interrupted, gone on with, and caught when a row is wrong; in the drill repeated."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event
from typing import Any, Literal
from unittest.mock import patch

import pytest
from playwright.sync_api import Page, expect
from tests.fixtures.browser import log_in, running_browser, screenshot
from tests.fixtures.drivers import await_condition
from tests.fixtures.secret_search import (
    PRIVATE_FILES,
    command_lines_of,
    databases_of,
    files_of,
    generated_secrets,
    metadata_of_tables,
    places_with,
    readable_by_others,
    rows_of,
)
from tests.fixtures.stack import CommandResult, Stack
from tests.fixtures.supervised_streams import kill_driver
from tests.integration.stack.traces import assert_nothing_is_left, processes_of

from sluice.demo.airflow_api import CHECKPOINT_HEALTH, AirflowAccess, DagRuns, Standstill, open_airflow_api
from sluice.demo.flights_topic import FlightsTopic
from sluice.demo.lakehouse_copy import require_truth
from sluice.demo.proof import prove
from sluice.demo.report import GOLD, SILVER, DemoStep
from sluice.errors import DemonstrationError, VerificationError
from sluice.ledger.backfill_attempts import BackfillState, recent_attempts
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.driver_access import find_driver_ui
from sluice.ledger.runs import newest_run
from sluice.settings import KafkaConnection
from sluice.stack.credentials import AIRFLOW_USER, read_credentials
from sluice.tables.catalog import open_catalog

pytestmark = pytest.mark.timeout(
    2400
)  # up to three demos and starts of the whole platform, on a machine that may be busy

IS_REPEATED = bool(os.environ.get("SLUICE_TEST_REPEATED_DEMO"))
"""Whether the stack is stopped in between and another demo follows on the next days, as in `make drill`: it costs as
much as all the rest."""

SPANS = ("2013-01-01 to 2013-01-04", *(["2013-01-05 to 2013-01-06"] if IS_REPEATED else []))
"""What each complete demo replays."""

CORRUPTED = ("2013-01-01 to 2013-01-03", *(["2013-01-03 to 2013-01-05"] if IS_REPEATED else []))
"""The days that each complete demo corrupts and backfills."""

SENT = (3_688, *([1_603] if IS_REPEATED else []))
"""The records that each complete demo has sent, those of the interrupted one among them."""

of_each_demo = pytest.mark.parametrize("number", range(len(SPANS)))

_DEMO_SECONDS = 1200
_PAGE_MS = 300_000
"""How long a page may take to show what follows: the start of a driver, on a machine that may be busy."""

_PAGES = {
    "streams": "Streams",
    "streams/silver_flights": "silver_flights",
    "tables": "Tables",
    "tables/silver.flights": "silver.flights",
}
_LOOKS: tuple[Literal["light", "dark"], ...] = ("light", "dark")
_SOME_BUT_NOT_ALL_SENT = re.compile(r"Drivers start: [1-9]\d* of [\d,]+ records sent")


def _demo(stack: Stack, *words: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-m", "sluice.cli.app", "demo", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(argv, env=stack.shell(), stdout=pipe, stderr=pipe, text=True)  # noqa: S603  # our own


def _report(stack: Stack, *words: str) -> dict[str, Any]:
    with _demo(stack, *words, "--json") as process:
        try:
            output, errors = process.communicate(timeout=_DEMO_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()  # leaving the block waits for its end
            raise
    assert process.returncode == 0, errors
    report: dict[str, Any] = json.loads(output)
    return report


def _interrupt_while_sending(stack: Stack) -> CommandResult:
    """Begin a slow replay, and send SIGINT when a part of it has been sent."""
    with _demo(stack, "--days", "4", "--pace", "1") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        seen = []
        for line in process.stdout:
            seen.append(line)
            if _SOME_BUT_NOT_ALL_SENT.search(line):
                process.send_signal(signal.SIGINT)
        errors = process.stderr.read()
    return CommandResult(exit_code=process.returncode, output="".join(seen), errors=errors)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demos:
    """The reports of the demos on one stack, in the order in which they ran."""

    stack: Stack
    interrupted: CommandResult
    processes_after_interruption: int
    completed: tuple[dict[str, Any], ...]


@pytest.fixture(scope="module")
def demos(full_stack: Stack) -> Demos:
    """An interrupted demo and one that continues it, in the drill after a stop and with one of the next days."""
    interrupted = _interrupt_while_sending(full_stack)
    processes = len(processes_of(full_stack))
    if IS_REPEATED:
        assert full_stack.run("down").exit_code == 0
        assert_nothing_is_left(full_stack)
    completed = [_report(full_stack, "--days", "2", "--pace", "0")]
    if IS_REPEATED:
        completed.append(_report(full_stack, "--days", "2"))
    return Demos(
        stack=full_stack,
        interrupted=interrupted,
        processes_after_interruption=processes,
        completed=tuple(completed),
    )


def test_ctrl_c_leaves_the_stack_running_and_says_how_to_stop_it(demos: Demos) -> None:
    assert demos.interrupted.exit_code == 130, demos.interrupted.errors
    assert "Interrupted. The stack still runs: `sluice stack down` stops it" in demos.interrupted.output
    assert demos.processes_after_interruption > 0


@of_each_demo
def test_an_interrupted_replay_is_completed_and_the_next_days_follow_it(demos: Demos, number: int) -> None:
    """Its drivers go on, in the drill after a stop of the stack; nothing is lost and nothing is sent twice."""
    demo = demos.completed[number]
    assert demo["verified"] is True
    assert demo["days"] == SPANS[number]
    assert demo["sent_records"] == sum(SENT[: number + 1])
    assert [check["name"] for check in demo["checks"] if not check["is_true"]] == []


@of_each_demo
def test_the_rows_add_up(demos: Demos, number: int) -> None:
    demo = demos.completed[number]
    balance = demo["balance"]
    assert balance["bronze"] == demo["sent_records"]
    assert balance["bronze"] == sum(balance[part] for part in ("silver", "refused", "late", "duplicate"))
    assert all(balance[part] > 0 for part in balance)


@of_each_demo
def test_corrupted_days_are_backfilled_beside_the_streams_and_a_second_backfill_changes_nothing(
    demos: Demos, number: int
) -> None:
    demo = demos.completed[number]
    checks = {check["name"]: check for check in demo["checks"] if "backfill" in check["name"]}
    assert len(checks) == 4
    assert all(check["is_true"] and check["expected_rows"] > 100 for check in checks.values())
    assert all(f" {CORRUPTED[number]} " in check["statement"] for check in checks.values())
    assert [step["title"] for step in demo["steps"] if "backfilled" in step["title"]] == [DemoStep.BACKFILL]


@of_each_demo
def test_a_bad_file_is_held_by_a_rule_and_released_without_its_bad_readings(demos: Demos, number: int) -> None:
    """That of an interrupted demo, or of this one: each that writes weather brings one."""
    demo = demos.completed[number]
    assert "of bronze_weather breaks temperature_is_possible by 3 of " in demo["held"]
    (check,) = [one for one in demo["checks"] if one["name"] == "quarantine.bronze_weather"]
    assert (check["is_true"], check["expected_rows"]) == (True, 4 * (number + 1))


def test_the_first_backfill_replaced_a_day_and_the_second_left_it(demos: Demos) -> None:
    settings = demos.stack.settings()
    for stream in (SILVER, GOLD):
        with (
            patch.dict(os.environ, demos.stack.environment()),
            open_ledger(settings.ledger_url.get_secret_value()) as ledger,
        ):
            attempts = recent_attempts(ledger, stream, limit=100)
        assert {attempt.key.interval_start.day for attempt in attempts} >= {1, 2, 3}
        of_first_day = [attempt.state for attempt in reversed(attempts) if attempt.key.interval_start.day == 1]
        ended = [state for state in of_first_day if state is not BackfillState.CHANGED_MEANWHILE]
        assert ended == [BackfillState.PUBLISHED, BackfillState.UNCHANGED], stream


@of_each_demo
def test_maintenance_and_quality_ran_through_airflow(demos: Demos, number: int) -> None:
    demo = demos.completed[number]
    tables = {table["table"]: table for table in demo["tables"]}
    assert tables["bronze.flights"]["files_after"] <= tables["bronze.flights"]["files_before"]
    assert tables["silver.flights"]["quality"] == "passed"
    assert demo["where"]["airflow_url"].startswith("http://127.0.0.1:")


def _serves_ui(ledger: Ledger, stream: str) -> bool:
    """Whether the newest driver of a stream serves Spark's UI: it does so some seconds after its first heartbeat."""
    run, ui = newest_run(ledger, stream), find_driver_ui(ledger, stream)
    return run is not None and ui is not None and ui.run_id == run.run_id


@contextmanager
def _pages_of(stack: Stack) -> Iterator[Page]:
    """The pages of the demo's stack, in the browser of a person who has logged in."""
    password = read_credentials(stack.data / "credentials.json").airflow_admin_password
    with running_browser() as browser:
        yield log_in(browser, stack.environment()["AIRFLOW__API__BASE_URL"], user=AIRFLOW_USER, password=password)


@pytest.mark.full  # every run: `test_pages_in_browser.py` and `test_page_actions.py`, on fakes
def test_on_the_pages_a_person_reads_why_a_stream_was_killed_restarts_it_and_sees_it_recover(demos: Demos) -> None:
    ledger_url = demos.stack.settings().ledger_url.get_secret_value()
    with open_ledger(ledger_url) as ledger, _pages_of(demos.stack) as page:
        killed = newest_run(ledger, "silver_flights")
        assert killed is not None
        kill_driver(killed)
        page.goto("/sluice/streams?q=silver_flights")
        page.get_by_role("link", name="silver_flights", exact=True).click()
        banner = page.locator("#live .banner .state")
        expect(page.locator("#live")).to_contain_text("driver_killed", timeout=_PAGE_MS)
        expect(banner).to_contain_text("✓", timeout=_PAGE_MS)
        restarted = newest_run(ledger, "silver_flights")
        assert restarted is not None
        assert restarted.run_id != killed.run_id
        page.get_by_role("link", name="Restart…").click()
        page.get_by_role("button", name="Restart silver_flights").click()
        expect(page.locator("#live")).to_contain_text("Restart is in the ledger", timeout=_PAGE_MS)
        newest = page.locator("h2:text-is('Runs') + .wide tbody tr").first
        expect(newest).not_to_contain_text(restarted.run_id[:8], timeout=_PAGE_MS)
        expect(newest).to_contain_text("running", timeout=_PAGE_MS)
        expect(banner).to_contain_text("✓", timeout=_PAGE_MS)
        screenshot(page, "demo-recovered")


def test_a_person_reads_the_pages_of_the_demo_and_the_ui_of_its_driver_and_who_is_logged_out_reads_neither(
    demos: Demos,
) -> None:
    ledger_url = demos.stack.settings().ledger_url.get_secret_value()
    with open_ledger(ledger_url) as ledger, _pages_of(demos.stack) as page:
        for place, heading in _PAGES.items():
            page.goto(f"/sluice/{place}")
            expect(page.get_by_role("heading", name=heading, exact=True)).to_be_visible(timeout=_PAGE_MS)
            screenshot(page, f"demo-{place.replace('/', '-')}")
        page.goto("/sluice/streams/silver_flights")
        page.get_by_role("link", name="The newest quarantined records").click()
        expect(page.locator("table.samples tbody tr").first).to_contain_text("records", timeout=_PAGE_MS)
        for look in _LOOKS:
            page.emulate_media(color_scheme=look)
            screenshot(page, f"demo-quarantine-{look}")
        page.goto("/sluice/streams/silver_flights")
        await_condition(lambda: _serves_ui(ledger, "silver_flights"), within_seconds=_PAGE_MS / 1000)
        page.get_by_role("link", name="Spark UI").click()
        expect(page.get_by_role("heading", name="Spark Jobs")).to_be_visible(timeout=_PAGE_MS)
        screenshot(page, "demo-spark-jobs")
        page.get_by_role("link", name="Executors").click()
        expect(page.locator("#active-executors-table tbody tr")).to_contain_text("driver", timeout=_PAGE_MS)
        screenshot(page, "demo-spark-executors")
        inside = page.url
        page.context.clear_cookies()
        answer = page.goto("/sluice/streams")
        assert answer is not None
        assert answer.status == 401
        answer = page.goto(inside)
        assert answer is not None
        assert answer.status == 401


def test_the_secrets_of_the_stack_lie_in_a_few_private_files_alone(demos: Demos) -> None:
    """After drivers were started by Airflow, and watched by a person; in the full run killed and restarted, too."""
    stack = demos.stack
    rows = [row for database in databases_of(stack) for row in rows_of(database)]
    elsewhere = [*rows, *command_lines_of(stack), *metadata_of_tables(stack)]
    secrets = generated_secrets(stack)

    found = places_with(secrets, files_of(stack))

    assert places_with(secrets, elsewhere) == set()
    assert {name for _, name in found} == set(secrets), "the search finds every secret"
    assert {place for place, _ in found} == PRIVATE_FILES
    assert readable_by_others(stack, PRIVATE_FILES) == []


def test_a_damaged_table_fails_the_verification(demos: Demos) -> None:
    settings = demos.stack.settings()
    kafka = settings.connections["flights_kafka"]
    assert isinstance(kafka, KafkaConnection)
    with patch.dict(os.environ, demos.stack.environment()):
        open_catalog(settings).load_table("silver.flights").delete("carrier = 'HA'")
        with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
            proof = prove(settings=settings, ledger=ledger, topic=FlightsTopic(connection=kafka))
    with pytest.raises(VerificationError, match=r"silver\.flights: it is not true") as caught:
        require_truth(proof.checks)
    assert "carrier=HA" in str(caught.value)
    assert "balance: it is not true" in str(caught.value)


def test_failed_dag_run_is_reported_with_the_end_of_its_log(demos: Demos) -> None:
    (demos.stack.data / "checkpoints" / "bronze_weather" / "1" / "metadata").write_text('{"id":"another"}')
    environment = demos.stack.environment()
    access = AirflowAccess(
        url=environment["AIRFLOW__API__BASE_URL"],
        user=AIRFLOW_USER,
        password=read_credentials(demos.stack.data / "credentials.json").airflow_admin_password,
    )
    with open_airflow_api(access) as airflow:
        dag_runs = DagRuns(airflow=airflow, standstill=Standstill(lambda: None, stopped=Event()))
        run = airflow.trigger(CHECKPOINT_HEALTH, conf={})
        with pytest.raises(DemonstrationError, match="of the DAG checkpoint_health failed") as caught:
            dag_runs.await_success(run)
    assert "Failed tasks: check. The end of the log of check:" in str(caught.value)
    assert "bronze_weather" in str(caught.value)


def test_down_leaves_nothing_and_in_the_drill_neither_after_every_service_was_killed(demos: Demos) -> None:
    """Drivers run as well, and the scheduler has workers. Every run kills services without Airflow
    (`test_life_cycle.py`); what is stopped in order in the drill leaves nothing either (`demos`)."""
    if IS_REPEATED:
        for service in demos.stack.status().values():
            os.kill(service["pid"], signal.SIGKILL)

    result = demos.stack.run("down")

    assert result.exit_code == 0, result.errors
    assert_nothing_is_left(demos.stack)
