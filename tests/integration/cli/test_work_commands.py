"""Commands whose work the queue does, and `sluice work`: what they print, how they end, and what they leave.

Ledger, launcher, attendant and logs are real; the application behind `spark-submit` answers without Spark.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml
from tests.fixtures.answered_work import Answer, SayAnswer
from tests.fixtures.stream_commands import Sluice, document

from sluice.backfill.interval_gaps import Gap, GapKind, GapReport
from sluice.backfill.intervals import Interval, publication_key
from sluice.launching.job_output import FAILURE_MARK, json_value
from sluice.ledger.applications import recent_applications
from sluice.ledger.connection import Ledger
from sluice.ledger.work_items import find_items
from sluice.ledger.work_values import ApplicationState, WorkState
from sluice.processes.deadline import wait_until

STREAM = "daily"
DAYS = tuple(
    Interval(start=datetime(2013, 1, day, tzinfo=UTC), end=datetime(2013, 1, day + 1, tzinfo=UTC)) for day in (5, 6)
)
ROWS = {"published": 3, "replaced": 0, "quarantined": 1, "duplicate": 0, "moved": 0}
GAPS = ("stream", "gaps", STREAM)
BACKFILL = ("backfill", STREAM, "--from", "2013-01-05", "--to", "2013-01-07", "--yes")
REPLACED = Answer(
    result={
        "key": str(publication_key(STREAM, DAYS[0], identity="a1", attempt=1)),
        "state": "published",
        "snapshot_id": 77,
        "rows": ROWS,
        "followers": [],
    }
)


def failed(error: str) -> Answer:
    """An item whose last lines name an error."""
    return Answer(failure=f"sluice: reason: unknown\n{FAILURE_MARK}{error}: one sum differs.")


@pytest.fixture(autouse=True)
def declared(sluice: Sluice, tmp_path: Path) -> None:
    """A stream that can be backfilled by day."""
    folder = tmp_path / "pipelines"
    stream = {
        "stream": STREAM,
        "description": "rows by day",
        "owner": "team",
        "mode": "incremental",
        "schedule": {"cron": "0 0 * * *"},
        "inputs": {"records": {"stream": {"iceberg": {"table": "bronze.flights"}}}},
        "transformation": {"sql": "daily.sql"},
        "outputs": {"copies": {"iceberg": {"table": "silver.daily"}}},
        "backfill": {"column": "at"},
    }
    columns = [{"name": "origin", "type": "string"}, {"name": "at", "type": "timestamptz"}]
    table = {"table": "silver.daily", "description": "rows by day", "owner": "team", "columns": columns}
    (folder / f"{STREAM}.stream.yaml").write_text(yaml.safe_dump(stream))
    (folder / "silver.daily.table.yaml").write_text(yaml.safe_dump(table))
    (folder / "daily.sql").write_text("SELECT origin, current_timestamp() AS at FROM records\n")


def test_a_backfill_prints_each_interval_and_shares_an_application(
    sluice: Sluice, ledger: Ledger, say_answer: SayAnswer
) -> None:
    say_answer(STREAM, REPLACED)

    exit_code, output, errors = sluice(*BACKFILL, "--newest-first")

    what = "3 rows published in place of 0, in snapshot 77; 1 rejected, 0 duplicate."
    assert (exit_code, output.splitlines()) == (0, [f"daily, {DAYS[0].spoken}: {what}"] * 2), errors
    asked = [(item.payload["start"], state) for item, state in find_items(ledger, limit=9)]
    assert asked == [(day.start.isoformat(), WorkState.DONE) for day in DAYS], "the oldest was asked for last"
    (application,) = recent_applications(ledger, limit=9)
    assert (application.state, application.reason) == (ApplicationState.ENDED, "no further work came")


@pytest.mark.full
def test_programs_read_a_line_of_json_for_each_interval(sluice: Sluice, say_answer: SayAnswer) -> None:
    say_answer(STREAM, REPLACED)

    exit_code, output, _ = sluice(*BACKFILL, "--json")

    assert exit_code == 0
    assert [json.loads(line) for line in output.splitlines()] == [REPLACED.result] * 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        pytest.param("VerificationError", 1, marks=pytest.mark.full),
        ("DeclarationError", 2),
        pytest.param("OfAnotherKind", 1, marks=pytest.mark.full),
    ],
)
def test_what_fails_ends_the_command_with_its_lines_and_the_code_of_its_error(
    sluice: Sluice, ledger: Ledger, say_answer: SayAnswer, error: str, code: int
) -> None:
    say_answer(STREAM, failed(error))

    exit_code, output, errors = sluice(*BACKFILL)

    assert (exit_code, output) == (code, "")
    assert f"{FAILURE_MARK}{error}: one sum differs." in errors
    states = {item.payload["start"][:10]: state for item, state in find_items(ledger, limit=9)}
    assert states["2013-01-05"] is WorkState.FAILED
    assert states["2013-01-06"] in (WorkState.WITHDRAWN, WorkState.FAILED), "it is not waited for any more"


@pytest.mark.full  # every run: `sluice work logs`
def test_the_log_of_the_item_alone_is_shown_meanwhile(sluice: Sluice, say_answer: SayAnswer) -> None:
    say_answer(STREAM, failed("UnhealthyError"))

    _, _, errors = sluice(*GAPS)

    assert "find_gaps of daily, asked by " in errors
    assert "a line of its neighbour" not in errors


@pytest.mark.full  # every run prints what a backfill and a failure say
def test_gaps_are_printed_and_end_with_one(sluice: Sluice, say_answer: SayAnswer) -> None:
    gap = Gap(interval=DAYS[0], kind=GapKind.MISSING, expected_rows=5, held_rows=0)
    searched = Interval(start=DAYS[0].start, end=DAYS[1].end)
    report = GapReport(
        stream=STREAM, table="silver.daily", searched=searched, compared=2, has_published=True, gaps=(gap,)
    )
    say_answer(STREAM, Answer(result=json_value(report)))

    exit_code, output, errors = sluice(*GAPS, "--json")

    assert (exit_code, json.loads(output)) == (1, json_value(report)), errors
    assert "1 of 2 intervals of silver.daily differ from the sources." in sluice(*GAPS)[1]


@pytest.mark.full  # every run asks for a backfill
def test_a_refresh_is_asked_for_with_its_days(sluice: Sluice, ledger: Ledger, say_answer: SayAnswer) -> None:
    say_answer(STREAM, failed("UsageError"))

    assert sluice("stream", "refresh", STREAM, "--keep-days", "3", "--allow-fewer", "--yes")[0] == 2

    ((item, _),) = find_items(ledger, limit=9)
    assert (item.kind, item.payload) == ("refresh", {"stream": STREAM, "keep_days": "3.0", "allow_fewer": "yes"})


def test_an_application_that_cannot_be_started_ends_the_command(
    sluice: Sluice, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = {"conn_type": "spark", "host": "local[2]", "extra": {"spark-binary": "/nowhere/spark3-submit"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(nowhere))

    exit_code, _, errors = sluice(*GAPS)

    assert (exit_code, "spark3-submit is not found" in errors) == (1, True), errors
    ((_, state),) = find_items(ledger, limit=9)
    (application,) = recent_applications(ledger, limit=9)
    assert (state, application.state) == (WorkState.WITHDRAWN, ApplicationState.ENDED)


@pytest.mark.full  # every run: a task (`test_work_operator.py`)
def test_an_interrupted_command_withdraws_what_it_has_asked_for(
    ledger: Ledger, say_answer: SayAnswer, tmp_path: Path
) -> None:
    say_answer(STREAM, Answer(waits=True))
    with (tmp_path / "command.log").open("wb") as log:
        command = subprocess.Popen(  # noqa: S603  # our own interpreter and words
            [sys.executable, "-m", "sluice.cli.app", *BACKFILL], stdout=log, stderr=log, env={**os.environ}
        )
    try:
        wait_until(
            lambda: [state for _, state in find_items(ledger, limit=9)],
            lambda states: WorkState.CLAIMED in states,
            seconds=60,
        )
        command.send_signal(signal.SIGINT)
        assert command.wait(30) == 130
    finally:
        command.kill()

    assert {state for _, state in find_items(ledger, limit=9)} == {WorkState.WITHDRAWN}
    ended = wait_until(
        lambda: recent_applications(ledger, limit=9)[0],
        lambda application: application.state is ApplicationState.ENDED,
        seconds=30,
    )
    assert ended.reason == "no further work came"


def test_the_queue_is_shown(sluice: Sluice, ledger: Ledger, say_answer: SayAnswer) -> None:
    assert sluice("work", "list")[:2] == (0, "Nothing was asked for yet.\n")
    say_answer(STREAM, failed("UnhealthyError"))
    sluice(*GAPS)
    ((item, _),) = find_items(ledger, limit=9)

    (shown,) = document(sluice("work", "list", "--json"))["items"]
    assert (shown["item"], shown["kind"], shown["state"]) == (item.item, "find_gaps", "failed")
    (application,) = document(sluice("work", "applications", "--json"))["applications"]
    assert (application["state"], application["pool"]["name"][:14]) == ("ended", "spark_default-")
    words = " ".join(sluice("work", "list")[1].split())
    assert f"{item.item[:8]} find_gaps daily failed" in words
    assert application["application"][:8] in sluice("work", "applications")[1]


def test_the_log_of_an_item_has_no_line_of_its_neighbours(
    sluice: Sluice, ledger: Ledger, say_answer: SayAnswer
) -> None:
    say_answer(STREAM, failed("UnhealthyError"))
    sluice(*GAPS)
    ((item, _),) = find_items(ledger, limit=9)

    exit_code, output, _ = sluice("work", "logs", item.item[:8])

    assert exit_code == 0
    assert len(output.splitlines()) == 3
    assert all(f"[{item.item[:8]}]" in line for line in output.splitlines())
    assert sluice("work", "logs", item.item, "-n", "1")[1] == output.splitlines(keepends=True)[-1]


def test_the_log_of_an_unknown_item_is_a_wrong_usage(sluice: Sluice) -> None:
    exit_code, _, errors = sluice("work", "logs", "0123")

    assert (exit_code, errors.splitlines()) == (
        2,
        ["sluice: No work item begins with 0123.", "See them with `sluice work list`."],
    )
