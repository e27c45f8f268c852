"""`sluice backfill` beside an application that works already: it waits, prints what was replaced, and why not.

The lock of an application and the ends of requests are real; what Spark does is not part of it.
"""

from __future__ import annotations

import getpass
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml
from tests.fixtures.stream_commands import Sluice

from sluice.backfill.waiting_requests import waiting_for
from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.backfill_attempts import BackfillState, begin_attempt, end_attempt
from sluice.ledger.backfill_requests import add_request, application_lock, end_request, observe_request, take_request
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.records.backfill_request import IntervalRequest, RequestState, TakenRequest
from sluice.processes.deadline import wait_until

STREAM = "daily"
ROWS = {"published": 3, "replaced": 0, "quarantined": 1, "duplicate": 0}
WORDS = ("backfill", STREAM, "--from", "2013-01-05", "--to", "2013-01-07")


@pytest.fixture
def digest(sluice: Sluice, tmp_path: Path) -> str:
    """The digest of the declarations, with a stream that can be backfilled by day."""
    folder = tmp_path / "pipelines"
    declared = {
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
    (folder / f"{STREAM}.stream.yaml").write_text(yaml.safe_dump(declared))
    (folder / "silver.daily.table.yaml").write_text(yaml.safe_dump(table))
    (folder / "daily.sql").write_text("SELECT origin, current_timestamp() AS at FROM records\n")
    return load_declarations(folder).digest


@contextmanager
def working_application(ledger_url: str, digest: str, end: Callable[[Ledger, TakenRequest], object]) -> Iterator[None]:
    """An application of another run, which ends each request that it takes in its own way."""
    is_over = threading.Event()

    def work() -> None:
        with open_ledger(ledger_url) as ledger, application_lock(ledger, STREAM) as takes:
            assert takes
            begun.set()
            while not is_over.wait(0.05):
                if (taken := take_request(ledger, STREAM, digest=digest)) is not None:
                    end(ledger, taken)

    begun = threading.Event()
    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert begun.wait(10)
        yield
    finally:
        is_over.set()
        thread.join()


def replace(ledger: Ledger, taken: TakenRequest) -> None:
    """Record the attempt and the end of a request, as an application does when it has replaced the interval."""
    asked = taken.request
    start, end = asked.interval_start, asked.interval_end
    key = begin_attempt(ledger, asked.stream, start=start, end=end, launched_by=asked.launched_by)
    end_attempt(ledger, key, BackfillState.PUBLISHED, rows=ROWS, snapshot_id=77)
    end_request(ledger, taken.number, RequestState.DONE)


def test_intervals_that_another_application_replaces_are_printed(sluice: Sluice, ledger_url: str, digest: str) -> None:
    with working_application(ledger_url, digest, replace):
        exit_code, output, errors = sluice(*WORDS)

    assert (exit_code, errors) == (0, "")
    what = "3 rows published in place of 0, in snapshot 77; 1 rejected, 0 duplicate."
    assert output.splitlines() == [
        f"daily, 2013-01-05 00:00 to 2013-01-06 00:00 UTC: {what}",
        f"daily, 2013-01-06 00:00 to 2013-01-07 00:00 UTC: {what}",
    ]


def test_programs_read_a_line_of_json_for_each(sluice: Sluice, ledger_url: str, digest: str) -> None:
    with working_application(ledger_url, digest, replace):
        exit_code, output, _ = sluice(*WORDS, "--newest-first", "--json")

    assert exit_code == 0
    results = [json.loads(line) for line in output.splitlines()]
    assert [one["key"] for one in results] == [
        "daily/backfill/20130106T0000-20130107T0000/1",
        "daily/backfill/20130105T0000-20130106T0000/1",
    ]
    assert [(one["state"], one["snapshot_id"], one["rows"]) for one in results] == [("published", 77, ROWS)] * 2


def test_a_request_that_the_same_user_repeats_elsewhere_is_explained(
    sluice: Sluice, ledger_url: str, digest: str
) -> None:
    """The second command of the user withdraws the request of the first."""

    def ask_again(ledger: Ledger, taken: TakenRequest) -> None:
        assert taken.request.launched_by == f"sluice backfill, {getpass.getuser()}"
        if not repeated:
            repeated.append(add_request(ledger, taken.request))

    repeated: list[int] = []
    with working_application(ledger_url, digest, ask_again):
        exit_code, output, errors = sluice(*WORDS)

    assert (exit_code, output) == (1, "")
    assert errors.splitlines() == [
        "sluice: 2013-01-05 00:00 to 2013-01-06 00:00 UTC of daily was not replaced for this command: the same user "
        "has asked for the same interval again meanwhile, or a person has withdrawn the request.",
        "Wait for the other command; if there is none, run this one again. `sluice stream events daily` lists every "
        "attempt.",
    ]


def test_an_interval_that_fails_ends_the_command_with_the_jobs_lines(
    sluice: Sluice, ledger: Ledger, ledger_url: str, digest: str
) -> None:
    def fail(ledger: Ledger, taken: TakenRequest) -> None:
        end_request(ledger, taken.number, RequestState.FAILED, failure="sluice: failed: VerificationError: a sum.")

    with working_application(ledger_url, digest, fail):
        exit_code, output, errors = sluice(*WORDS)

    assert (exit_code, output, errors) == (1, "", "sluice: failed: VerificationError: a sum.\n")


def asked(day: int) -> IntervalRequest:
    """A request of a command."""
    start = datetime(2013, 1, day, tzinfo=UTC)
    return IntervalRequest(
        stream=STREAM,
        interval_start=start,
        interval_end=start + timedelta(days=1),
        launched_by="a command",
        digest="as declared",
    )


def stop_waiting(ledger: Ledger, number: int) -> None:
    """Let the last look of a command be long ago."""
    with ledger.transaction() as connection:
        past = "UPDATE sluice.backfill_requests SET waits_until = now() - interval '1 s' WHERE number = "
        connection.exec_driver_sql(f"{past}{number}")


def test_a_command_looks_at_all_its_requests_while_it_waits(ledger: Ledger, ledger_url: str) -> None:
    numbers = [add_request(ledger, asked(day)) for day in (5, 6)]
    for number in numbers:
        stop_waiting(ledger, number)

    with open_ledger(ledger_url) as other, waiting_for(other, numbers, look_seconds=0.05):
        taken = [
            wait_until(
                lambda: take_request(ledger, STREAM, digest="as declared"), lambda one: one is not None, seconds=10
            )
            for _ in numbers
        ]

    assert {one.number for one in taken if one is not None} == set(numbers)


@pytest.mark.parametrize("fails", [False, True])
def test_a_command_that_ends_withdraws_what_is_open(fails: bool, ledger: Ledger) -> None:
    numbers = [add_request(ledger, asked(day)) for day in (5, 6, 7)]

    def end_within() -> None:
        with waiting_for(ledger, numbers):
            end_request(ledger, numbers[0], RequestState.DONE)
            if fails:
                raise KeyboardInterrupt

    if fails:
        with pytest.raises(KeyboardInterrupt):
            end_within()
    else:
        end_within()

    states = [observe_request(ledger, number).state for number in numbers]
    assert states == [RequestState.DONE, RequestState.WITHDRAWN, RequestState.WITHDRAWN]
