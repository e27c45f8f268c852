"""A plan is a value: bounded disorder, counts that add up, a late set that is late, and the same for the same seed."""

from __future__ import annotations

import json
from collections import Counter
from datetime import date, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sluice.demo.flights_data import FIRST_DAY, Flight, Span, flights_of
from sluice.demo.replay_plan import (
    MALFORMED_KINDS,
    MAX_DISORDER,
    MAX_REPEAT_DELAY,
    MIN_LATENESS,
    PlannedRecord,
    RecordKind,
    ReplayPlan,
    parse_plan_name,
    plan_replay,
)
from sluice.errors import UsageError

SILVER_WATERMARK_DELAY = timedelta(hours=6)
FLUSHED_EVERY = timedelta(hours=1)

_week = flights_of(Span(first_day=FIRST_DAY, days=7))


def _plan(first: int, days: int, seed: int, *, every: int = 1) -> tuple[list[Flight], ReplayPlan]:
    span = Span(first_day=FIRST_DAY + timedelta(days=first), days=days)
    starts_at, ends_at = span.starts_at, span.ends_at
    flights = [flight for flight in _week[::every] if starts_at <= flight.departure < ends_at]
    return flights, plan_replay(flights, span=span, seed=seed)


plans = st.builds(_plan, st.integers(0, 4), st.integers(2, 3), st.integers(0, 2**32), every=st.integers(1, 30))
few = settings(max_examples=10, suppress_health_check=[HealthCheck.too_slow])


@few
@given(plans)
def test_every_flight_is_sent_once_as_itself_on_time_or_late(planned: tuple[list[Flight], ReplayPlan]) -> None:
    flights, plan = planned
    sent = Counter(
        record.flight.identity for record in plan.records if record.kind in (RecordKind.FLIGHT, RecordKind.LATE)
    )
    assert sent == Counter({flight.identity: 1 for flight in flights})


@few
@given(plans)
def test_counts_add_up_to_the_records(planned: tuple[list[Flight], ReplayPlan]) -> None:
    flights, plan = planned
    assert sum(plan.counts.values()) == len(plan.records)
    assert plan.counts[RecordKind.FLIGHT] + plan.counts[RecordKind.LATE] == len(flights)
    assert plan.counts[RecordKind.LATE] >= 1
    assert [record.sequence for record in plan.records] == list(range(len(plan.records)))


@few
@given(plans)
def test_the_clock_never_falls_and_disorder_stays_inside_the_watermark(
    planned: tuple[list[Flight], ReplayPlan],
) -> None:
    _, plan = planned
    newest = plan.records[0].flight.departure
    for before, record in zip(plan.on_time, plan.on_time[1:], strict=False):
        assert before.clock <= record.clock
        bound = MAX_DISORDER if record.kind is not RecordKind.DUPLICATE else MAX_DISORDER + MAX_REPEAT_DELAY
        assert timedelta(0) <= record.clock - record.flight.departure <= bound
        newest = max(newest, record.flight.departure)
        assert newest - record.flight.departure + FLUSHED_EVERY < SILVER_WATERMARK_DELAY


@few
@given(plans)
def test_the_late_set_is_more_than_a_day_late_and_comes_last(planned: tuple[list[Flight], ReplayPlan]) -> None:
    _, plan = planned
    newest = max(record.flight.departure for record in plan.on_time)
    assert plan.records == (*plan.on_time, *plan.late_set)
    assert all(newest - record.flight.departure > MIN_LATENESS for record in plan.late_set)


@few
@given(plans)
def test_a_duplicate_repeats_a_record_that_was_sent_before(planned: tuple[list[Flight], ReplayPlan]) -> None:
    _, plan = planned
    values: set[str] = set()
    for record in plan.on_time:
        if record.kind is RecordKind.DUPLICATE:
            assert record.value in values
        values.add(record.value)


@few
@given(plans)
def test_malformed_records_cannot_be_read_as_flights_and_all_others_can(
    planned: tuple[list[Flight], ReplayPlan],
) -> None:
    _, plan = planned
    for record in plan.records:
        assert _is_flight(record) == (record.kind not in MALFORMED_KINDS), record


@few
@given(plans)
def test_the_same_seed_and_span_make_the_same_plan(planned: tuple[list[Flight], ReplayPlan]) -> None:
    flights, plan = planned
    seed, span = parse_plan_name(plan.name)
    again = plan_replay(flights, span=span, seed=seed)
    assert again == plan
    assert [record.value for record in again.records] == [record.value for record in plan.records]


def test_another_seed_makes_another_plan() -> None:
    _, one = _plan(0, 2, 1)
    _, other = _plan(0, 2, 2)
    assert one.records != other.records


def test_a_week_holds_every_kind_of_record() -> None:
    _, plan = _plan(0, 7, 2013)
    assert all(count > 0 for count in plan.counts.values()), plan.counts


def test_the_value_is_the_row_of_the_csv_as_typed_json() -> None:
    _, plan = _plan(0, 2, 2013)
    first = next(record for record in plan.records if record.flight.identity == "2013-01-01T10Z/UA/1545")
    assert first.key == "UA-1545"
    assert json.loads(first.value) == {
        "year": 2013,
        "month": 1,
        "day": 1,
        "dep_time": 517,
        "sched_dep_time": 515,
        "dep_delay": 2,
        "arr_time": 830,
        "sched_arr_time": 819,
        "arr_delay": 11,
        "carrier": "UA",
        "flight": 1545,
        "tailnum": "N14228",
        "origin": "EWR",
        "dest": "IAH",
        "air_time": 227,
        "distance": 1400,
        "hour": 5,
        "minute": 15,
        "time_hour": "2013-01-01T10:00:00Z",
    }


def test_single_day_is_too_short() -> None:
    span = Span(first_day=date(2013, 1, 1), days=1)
    with pytest.raises(UsageError, match="too short"):
        plan_replay(_week, span=span, seed=1)


def _is_flight(record: PlannedRecord) -> bool:
    try:
        fields = json.loads(record.value)
    except json.JSONDecodeError:
        return False
    return (
        isinstance(fields.get("time_hour"), str)
        and isinstance(fields.get("carrier"), str)
        and isinstance(fields.get("flight"), int)
        and isinstance(fields.get("dep_delay", 0), int | None)
    )
