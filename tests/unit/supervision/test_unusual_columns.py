"""Whether columns are as usual: 60 synthetic days of 20 columns with nights, weekends, a holiday, growth and noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from tests.unit.supervision.column_traffic import BEGINS, BEGINS_AT, DAYS, FIRST_JUDGED, HOURS, Table, changed

from sluice.supervision.compared_weeks import SETTLED_HOURS
from sluice.supervision.unusual_columns import (
    ColumnKind,
    ColumnSign,
    ColumnsVerdict,
    HourlyColumn,
    UnusualColumn,
    judge_columns,
    open_nulls,
)

BEGIN = 50 * 24 + 10
"""When a fault begins, by day."""

AT = np.arange(FIRST_JUDGED, DAYS * 24)


def open_bounds(columns: list[HourlyColumn]) -> Any:
    """Where a bound is unusual, after four weeks. Each second hour is looked at: it is open for two."""
    found = np.zeros(len(AT), dtype=bool)
    for place in range(0, len(AT), 2):
        until = int(AT[place]) + 1
        none = np.zeros(until)
        cut = [
            replace(column, rows=none, nulls=none, lowest=column.lowest[:until], highest=column.highest[:until])
            for column in columns
        ]
        found[place : place + 2] = bool(judge_columns(cut).unusual)
    return found


def incidents(columns: list[HourlyColumn]) -> list[int]:
    """The hours at which an incident of the table begins, after four weeks, as the watch has them."""
    opened = np.any([open_nulls(column, AT) > 0 for column in columns], axis=0) | open_bounds(columns)
    found, calm = [], SETTLED_HOURS
    for hour, is_open in zip(AT, opened, strict=True):
        if is_open and calm >= SETTLED_HOURS:
            found.append(int(hour))
        calm = 0 if is_open else calm + 1
    return found


@pytest.mark.parametrize(
    ("table", "seeds"),
    [
        (Table(), [0]),
        (Table(peak=60.0, noise=0.2, tail=2.0), [1]),
        *(
            pytest.param(table, [2, 3, 4], marks=pytest.mark.full)
            for table in (
                Table(),
                Table(peak=60.0),
                Table(peak=8.0),
                Table(noise=0.2),
                Table(tail=2.0),
                Table(night=0.0, peak=300.0),
                Table(growth=0.03, noise=0.2, tail=1.5),
            )
        ),
    ],
    ids=str,
)
def test_a_table_of_twenty_columns_has_one_false_incident_a_month_at_most(table: Table, seeds: list[int]) -> None:
    for seed in seeds:
        found = incidents(table.drawn(seed))
        assert len(found) <= 1, f"seed {seed}: {[(hour // 24, hour % 24) for hour in found]}"


def as_judged_after(hours: int, *columns: HourlyColumn) -> ColumnsVerdict:
    return judge_columns([changed(column, hours) for column in columns])


def with_nulls(column: HourlyColumn, share: float, hours: slice) -> HourlyColumn:
    nulls, rows = np.array(column.nulls, dtype=float), np.asarray(column.rows)
    nulls[hours] = np.round(share * rows[hours])
    lowest, highest = (np.array(one, dtype=float) for one in (column.lowest, column.highest))
    if share == 1:
        lowest[hours] = highest[hours] = np.nan
    return changed(column, len(rows), nulls=nulls, lowest=lowest, highest=highest)


def with_values(column: HourlyColumn, hours: slice, **values: Any) -> HourlyColumn:
    """A column whose bounds in some hours are others."""
    own = {name: np.array(getattr(column, name), dtype=float) for name in values}
    for name, value in values.items():
        own[name][hours] = value[hours] if isinstance(value, np.ndarray) else value
    return changed(column, len(column.rows), **own)


def times_100(column: HourlyColumn, hours: slice) -> HourlyColumn:
    return with_values(column, hours, lowest=np.array(column.lowest) * 100, highest=np.array(column.highest) * 100)


FAULTS: Mapping[str, tuple[int, ColumnSign, Callable[[HourlyColumn, slice], HourlyColumn]]] = {
    "2 % to 30 % null": (2, ColumnSign.NULLS, lambda column, hours: with_nulls(column, 0.3, hours)),
    "never to always null": (0, ColumnSign.NULLS, lambda column, hours: with_nulls(column, 1.0, hours)),
    "a price times 100": (4, ColumnSign.ABOVE, times_100),
    "a price below zero": (4, ColumnSign.BELOW, lambda column, hours: with_values(column, hours, lowest=-500.0)),
    "the year 1970": (3, ColumnSign.BELOW, lambda column, hours: with_values(column, hours, lowest=0.0)),
    "the year 9999": (3, ColumnSign.ABOVE, lambda column, hours: with_values(column, hours, highest=2.534e11)),
}
"""Which column is changed, what is then unusual about it, and how."""


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("begin", [BEGIN, 51 * 24 + 14, 54 * 24 + 9], ids=["day", "afternoon", "weekend"])
def test_a_fault_is_found_within_three_hours(fault: str, begin: int) -> None:
    number, sign, change = FAULTS[fault]
    for seed in range(3):
        columns = Table().drawn(seed)
        assert as_judged_after(begin, *columns) == ColumnsVerdict()
        columns[number] = change(columns[number], slice(begin, begin + 8))

        (found,) = as_judged_after(begin + 3, *columns).unusual

        assert (found.column, found.sign) == (f"c{number}", sign), f"seed {seed}"
        assert found.since == BEGINS_AT + timedelta(hours=begin)


@pytest.mark.parametrize("tail", [0.5, 1.0, 1.5])
def test_prices_with_heavy_tails_that_are_a_hundred_times_as_large_are_found(tail: float) -> None:
    for seed in range(3):
        price = Table(tail=tail, columns=1).drawn(seed)[0]

        verdict = as_judged_after(BEGIN + 3, times_100(price, slice(BEGIN, None)))

        assert [one.sign for one in verdict.unusual] == [ColumnSign.ABOVE], f"seed {seed}"


def test_one_value_far_away_is_enough_and_it_is_over_when_values_are_usual() -> None:
    sent_at = with_values(Table().drawn(1)[3], slice(BEGIN, BEGIN + 1), lowest=0.0)

    seen = [as_judged_after(BEGIN + after, sent_at) for after in range(1, 12)]

    assert [bool(one.unusual) for one in seen] == [True, True] + [False] * 9
    assert [one.is_settled for one in seen] == [False] * 7 + [True] * 4
    (found,) = seen[0].unusual
    assert (found.seen, found.since) == (0.0, BEGINS_AT + timedelta(hours=BEGIN))


def test_it_is_unusual_until_rows_come_that_are_not() -> None:
    silent = {name: np.array(getattr(Table().drawn(1)[4], name)) for name in ("rows", "nulls", "lowest", "highest")}
    for name, values in silent.items():
        values[BEGIN + 1 :] = 0 if name in ("rows", "nulls") else np.nan
    silent["highest"][BEGIN] = 1e9
    column = changed(Table().drawn(1)[4], len(HOURS), **silent)

    assert [bool(as_judged_after(BEGIN + after, column).unusual) for after in (1, 50, 96, 97)] == [True] * 3 + [False]


def test_what_was_unusual_for_half_a_week_is_usual() -> None:
    columns = Table().drawn(0)
    columns[2] = with_nulls(columns[2], 0.3, slice(BEGIN, None))
    columns[4] = times_100(columns[4], slice(BEGIN, None))

    assert len(as_judged_after(BEGIN + 24, *columns).unusual) == 2
    assert as_judged_after(BEGIN + 8 * 24, *columns) == ColumnsVerdict()


def test_a_slow_drift_is_no_incident() -> None:
    rows = np.full(len(HOURS), 1_000.0)
    part = HOURS / len(HOURS)
    drifting = HourlyColumn(
        name="price",
        kind=ColumnKind.NUMBER,
        begins_at=BEGINS_AT,
        rows=rows,
        nulls=np.round(rows * (0.02 + 0.3 * part)),
        lowest=-1 - 5 * part,
        highest=100 * np.exp(2 * part),
    )
    later = replace(
        drifting, kind=ColumnKind.TIME, lowest=BEGINS - 86_400 * 30 * part, highest=np.array(BEGINS + 3_600)
    )

    assert incidents([drifting, later]) == []


def test_a_load_of_each_night_is_judged_by_its_last_loads() -> None:
    night = Table(columns=1).drawn(0)[0]
    rows = np.where(HOURS % 24 == 3, 5_000.0, 0.0)
    bounds = {name: np.where(rows > 0, getattr(night, name), np.nan) for name in ("lowest", "highest")}
    load = changed(night, len(HOURS), rows=rows, nulls=np.round(rows * 0.02), **bounds)
    assert incidents([load]) == []

    broken = times_100(times_100(with_nulls(load, 0.4, slice(BEGIN, None)), slice(BEGIN, None)), slice(BEGIN, None))

    found = as_judged_after(BEGIN + 24, broken).unusual
    assert [one.sign for one in found] == [ColumnSign.NULLS, ColumnSign.ABOVE]
    assert (found[0].hours, found[0].seen) == (6, 0.4)
    assert [(one.sign, one.hours) for one in as_judged_after(BEGIN + 35, broken).unusual] == [
        (ColumnSign.NULLS, 24),
        (ColumnSign.ABOVE, 1),
    ]


def test_what_is_said_of_nulls_and_of_a_bound() -> None:
    rows = np.full(40 * 24, 100.0)
    nulls, highest = 2 * np.ones_like(rows), 9 * np.ones_like(rows)
    nulls[-3:], highest[5], highest[-2:] = 30, 12, 1_500
    column = HourlyColumn(
        name="price",
        kind=ColumnKind.NUMBER,
        begins_at=BEGINS_AT,
        rows=rows,
        nulls=nulls,
        lowest=np.ones_like(rows),
        highest=highest,
    )

    of_nulls, of_values = judge_columns([column]).unusual

    ends_at = BEGINS_AT + timedelta(days=40)
    assert of_nulls.usual == pytest.approx(0.02)
    assert replace(of_nulls, usual=0.02) == UnusualColumn(
        column="price",
        kind=ColumnKind.NUMBER,
        sign=ColumnSign.NULLS,
        since=ends_at - timedelta(hours=3),
        until=ends_at,
        seen=0.3,
        usual=0.02,
        weeks=4,
        hours=1,
        rows=100,
    )
    assert (of_values.sign, of_values.since) == (ColumnSign.ABOVE, ends_at - timedelta(hours=2))
    assert (of_values.seen, of_values.usual, of_values.weeks) == (1_500.0, 12.0, 6)


@pytest.mark.parametrize(
    "column",
    [
        changed(Table(columns=3).drawn(0)[2], 28 * 24 - 1),
        changed(Table(columns=3).drawn(0)[2], 0),
        replace(times_100(Table(columns=1).drawn(0)[0], slice(-8, None)), kind=ColumnKind.NONE),
        with_values(times_100(Table(columns=1).drawn(0)[0], slice(-8, None)), slice(0, -27 * 24), highest=np.nan),
        with_nulls(Table(columns=7).drawn(0)[6], 0.0, slice(-8, None)),
    ],
    ids=["27 days", "none", "no bounds", "bounds of 27 days", "no nulls"],
)
def test_nothing_is_unusual(column: HourlyColumn) -> None:
    if len(column.rows) == 28 * 24 - 1:
        column = with_nulls(column, 1.0, slice(-8, None))

    assert judge_columns([column]) == ColumnsVerdict()


def test_an_incident_lasts_while_each_second_hour_is_unusual() -> None:
    """It ends by two usual hours in a row, whatever was looked at to find that nothing is unusual."""
    hours = 30 * 24
    nulls = np.zeros(hours)
    nulls[-20:-18] = 150
    nulls[-18::2] = 0
    nulls[-17::2] = 150
    rows, none = np.full(hours, 1_000), np.full(hours, np.nan)
    column = HourlyColumn(
        name="c",
        kind=ColumnKind.NONE,
        begins_at=BEGINS_AT,
        rows=rows.astype(float),
        nulls=nulls,
        lowest=none,
        highest=none,
    )
    assert open_nulls(column, np.arange(hours - 96, hours))[-1] == 1

    verdict = judge_columns([column])

    assert not verdict.is_settled, "its trouble would be cleared, and the next two unusual hours alerted again"
    assert [one.sign for one in verdict.unusual] == [ColumnSign.NULLS]
