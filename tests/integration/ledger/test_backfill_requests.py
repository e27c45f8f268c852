"""Runs ask for intervals; one application takes their requests, and when it dies one run starts another."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest
from sluice.ledger.backfill_requests import (
    add_request,
    application_lock,
    end_request,
    is_requested,
    leave_to_start,
    look_at_request,
    observe_request,
    request_of,
    take_own_request,
    take_request,
    withdraw_request,
)
from sluice.ledger.records.backfill_request import IntervalRequest, RequestObservation, RequestState
from sqlalchemy import Connection

from sluice.errors import LedgerError
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.trigger_queries import query_row

DIGEST = "as declared"


def asked(day: int, *, stream: str = "flights", digest: str = DIGEST) -> IntervalRequest:
    """The request of the run of a day."""
    start = datetime(2013, 1, day, tzinfo=UTC)
    return IntervalRequest(
        stream=stream,
        interval_start=start,
        interval_end=start + timedelta(days=1),
        launched_by=f"run of day {day}",
        digest=digest,
    )


def stop_waiting(ledger: Ledger, number: int) -> None:
    """Let the last look of a run be long ago, as after its end without a word."""
    with ledger.transaction() as connection:
        past = "UPDATE sluice.backfill_requests SET waits_until = now() - interval '1 s' WHERE number = "
        connection.exec_driver_sql(f"{past}{number}")


@pytest.fixture
def days(ledger: Ledger) -> list[int]:
    """The numbers of three requests."""
    return [add_request(ledger, asked(day)) for day in (5, 6, 7)]


@pytest.fixture
def other_process(ledger_url: str) -> Iterator[Ledger]:
    """The ledger as another process has it open."""
    with open_ledger(ledger_url) as ledger:
        yield ledger


def test_one_run_of_many_starts_the_application(ledger: Ledger, days: list[int]) -> None:
    add_request(ledger, asked(1, stream="weather"))
    seen = [observe_request(ledger, number) for number in days]
    assert [one.needs_application for one in seen] == [True, False, False]
    assert {(one.state, one.failure, one.has_application) for one in seen} == {(RequestState.WAITING, None, False)}


def test_of_runs_that_ask_at_the_same_moment_one_starts_the_application(
    ledger: Ledger, other_process: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one has its number, and takes its time to commit."""
    has_number, committed = threading.Event(), threading.Event()
    really_add = Ledger.transaction

    @contextmanager
    def slow_to_commit(opened: Ledger) -> Iterator[Connection]:
        with really_add(opened) as connection:
            yield connection
            if opened is other_process and not has_number.is_set():
                has_number.set()
                committed.wait(0.5)

    monkeypatch.setattr(Ledger, "transaction", slow_to_commit)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(add_request, other_process, asked(5))
        assert has_number.wait(10)
        second = observe_request(ledger, add_request(ledger, asked(6)))
        committed.set()

    assert first.result() < second.number
    assert not second.needs_application
    assert observe_request(ledger, first.result()).needs_application


def test_beside_an_application_everybody_waits(ledger: Ledger, days: list[int], other_process: Ledger) -> None:
    with application_lock(other_process, "flights") as is_mine, application_lock(ledger, "flights") as is_second:
        assert (is_mine, is_second) == (True, False)
        assert observe_request(ledger, days[0]).has_application
        assert not observe_request(ledger, days[0]).needs_application
        assert not observe_request(ledger, add_request(ledger, asked(1, stream="weather"))).has_application
    assert observe_request(ledger, days[0]).needs_application


def test_requests_are_taken_in_their_order_and_end_once(ledger: Ledger, days: list[int]) -> None:
    taken = [take_request(ledger, "flights", digest=DIGEST) for _ in range(4)]
    assert [one and one.number for one in taken] == [*days, None]
    assert taken[1] is not None
    assert taken[1].request == asked(6)
    assert observe_request(ledger, days[0]).state is RequestState.TAKEN

    end_request(ledger, days[0], RequestState.FAILED, failure="sluice: failed: LedgerError: no")
    end_request(ledger, days[0], RequestState.DONE)

    seen = observe_request(ledger, days[0])
    assert (seen.state, seen.failure) == (RequestState.FAILED, "sluice: failed: LedgerError: no")
    assert (seen.is_open, seen.needs_application) == (False, False)
    assert observe_request(ledger, days[1]).needs_application


def test_what_a_dead_application_had_taken_waits_for_the_next(
    ledger: Ledger, days: list[int], other_process: Ledger
) -> None:
    with application_lock(other_process, "flights"):
        take_request(other_process, "flights", digest=DIGEST)
    seen = observe_request(ledger, days[0])
    assert (seen.state, seen.needs_application) == (RequestState.TAKEN, True)
    assert not observe_request(ledger, days[1]).needs_application

    with application_lock(ledger, "flights"):
        assert observe_request(ledger, days[0]).state is RequestState.WAITING
        again = take_own_request(ledger, asked(5))
        assert again is not None
        assert again.number == days[0]


def test_an_interval_that_no_run_waits_for_is_not_taken(ledger: Ledger, days: list[int]) -> None:
    for number in days[:2]:
        stop_waiting(ledger, number)
    assert observe_request(ledger, days[2]).needs_application
    taken = take_request(ledger, "flights", digest=DIGEST)
    assert taken is not None
    assert taken.number == days[2]
    assert take_request(ledger, "flights", digest=DIGEST) is None
    assert observe_request(ledger, days[1]).is_open  # by this look its run waits again
    later = take_request(ledger, "flights", digest=DIGEST)
    assert later is not None
    assert later.number == days[1]


def test_the_one_that_starts_the_application_is_left_to_it(ledger: Ledger, days: list[int]) -> None:
    stop_waiting(ledger, days[0])
    leave_to_start(ledger, days[0])
    assert not observe_request(ledger, days[1]).needs_application


def test_an_application_takes_no_request_for_other_declarations(ledger: Ledger) -> None:
    edited = add_request(ledger, asked(5, digest="edited"))
    add_request(ledger, asked(6))
    assert take_request(ledger, "flights", digest=DIGEST) is None
    taken = take_request(ledger, "flights", digest="edited")
    assert taken is not None
    assert taken.number == edited


def test_a_run_that_asks_again_withdraws_its_earlier_request(ledger: Ledger, days: list[int]) -> None:
    again = add_request(ledger, asked(5, digest="edited"))
    assert again > days[2]
    assert observe_request(ledger, days[0]).state is RequestState.WITHDRAWN
    assert is_requested(ledger, asked(5))
    assert not is_requested(ledger, asked(8))
    end_request(ledger, days[0], RequestState.DONE)
    assert observe_request(ledger, days[0]).state is RequestState.WITHDRAWN


def test_a_trigger_looks_and_withdraws_by_the_same_statements(ledger: Ledger, ledger_url: str, days: list[int]) -> None:
    async def look_and_withdraw() -> RequestObservation:
        seen = request_of(days[0], await query_row(ledger_url, look_at_request(days[0])))
        await query_row(ledger_url, withdraw_request(days[0]))
        await query_row(ledger_url, withdraw_request(days[0]))
        return seen

    stop_waiting(ledger, days[0])
    assert asyncio.run(look_and_withdraw()).is_open
    assert observe_request(ledger, days[0]).state is RequestState.WITHDRAWN
    assert observe_request(ledger, days[1]).needs_application


def test_an_unknown_request_is_an_error(ledger: Ledger) -> None:
    with pytest.raises(LedgerError, match="no request 7"):
        observe_request(ledger, 7)
