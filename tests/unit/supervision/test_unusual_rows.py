"""Whether a table gets as many rows as usual: 60 synthetic days with nights, weekends, a holiday, growth and noise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from sluice.supervision.compared_weeks import SETTLED_HOURS
from sluice.supervision.unusual_rows import (
    HourlyRows,
    RowsVerdict,
    UnusualKind,
    judge_rows,
    open_hours,
)

BEGINS_AT = datetime(2026, 9, 7, tzinfo=UTC)
DAYS, FIRST_JUDGED = 60, 28 * 24
HOLIDAYS = (20, 45)


def traffic(
    seed: int,
    *,
    peak: float = 3_000,
    night: float = 0.1,
    weekend: float = 0.4,
    holiday: float = 0.35,
    growth: float = 0.01,
    noise: float = 0.1,
) -> tuple[Any, Any]:
    """The rows of each hour, and those that are rejected: one in a hundred. growth: a day. noise: of each hour."""
    drawn = np.random.default_rng(seed)
    hours = np.arange(DAYS * 24)
    of_day = night + (1 - night) * np.clip(np.sin((hours % 24 - 6) / 14 * np.pi), 0, 1) * (hours % 24 >= 6)
    of_week = np.where(hours // 24 % 7 >= 5, weekend, 1.0) * np.where(np.isin(hours // 24, HOLIDAYS), holiday, 1.0)
    expected = peak * of_day * of_week * np.exp(growth * hours / 24 + noise * drawn.normal(size=len(hours)))
    rows = drawn.poisson(expected)
    return rows, drawn.binomial(rows, 0.01)


def incidents(rows: Any, rejected: Any) -> list[int]:
    """The hours at which an incident begins, after four weeks, as the watch has them."""
    at = np.arange(FIRST_JUDGED, len(rows))
    opened = open_hours(HourlyRows(begins_at=BEGINS_AT, rows=rows, rejected=rejected), at)
    found, calm = [], SETTLED_HOURS
    for hour, is_open in zip(at, np.any([kind > 0 for kind in opened.values()], axis=0), strict=True):
        if is_open and calm >= SETTLED_HOURS:
            found.append(int(hour))
        calm = 0 if is_open else calm + 1
    return found


@pytest.mark.parametrize(
    "table",
    [
        {},
        {"peak": 60.0},
        {"peak": 1e6, "noise": 0.05},
        {"night": 0.0},
        {"night": 1.0, "weekend": 1.0},
        {"growth": 0.03, "noise": 0.2},
        {"growth": -0.03},
        {"weekend": 0.02},
    ],
    ids=str,
)
def test_a_month_has_one_false_incident_at_most_and_that_is_the_holiday(table: dict[str, float]) -> None:
    for seed in range(2):
        found = incidents(*traffic(seed, **table))
        assert len(found) <= 1, f"seed {seed}: {[(hour // 24, hour % 24) for hour in found]}"
        assert all(hour // 24 == HOLIDAYS[1] for hour in found)


def drop(rows: Any, rejected: Any, hours: slice) -> None:
    rows[hours] = rows[hours] * 0.4


def double(rows: Any, rejected: Any, hours: slice) -> None:
    rows[hours] *= 2


def fall_silent(rows: Any, rejected: Any, hours: slice) -> None:
    rows[hours] = rejected[hours] = 0


def reject(rows: Any, rejected: Any, hours: slice) -> None:
    rejected[hours] *= 10


FAULTS = {
    UnusualKind.FEW: drop,
    UnusualKind.MANY: double,
    UnusualKind.NONE: fall_silent,
    UnusualKind.REJECTED: reject,
}


def as_judged_after(hours: int, rows: Any, rejected: Any) -> RowsVerdict:
    return judge_rows(HourlyRows(begins_at=BEGINS_AT, rows=rows[:hours], rejected=rejected[:hours]))


@pytest.mark.parametrize("kind", FAULTS, ids=str)
@pytest.mark.parametrize("begin", [50 * 24 + 10, 51 * 24 + 14, 54 * 24 + 9], ids=["day", "afternoon", "weekend"])
def test_a_fault_is_found_within_three_hours(kind: UnusualKind, begin: int) -> None:
    for seed in range(3):
        rows, rejected = traffic(seed)
        assert as_judged_after(begin, rows, rejected) == RowsVerdict()
        FAULTS[kind](rows, rejected, slice(begin, begin + 8))

        (found,) = as_judged_after(begin + 3, rows, rejected).unusual

        assert found.kind is kind, f"seed {seed}"
        assert found.since - BEGINS_AT in (timedelta(hours=begin), timedelta(hours=begin + 1))


def test_it_is_over_some_hours_after_the_last_unusual_one() -> None:
    rows, rejected = traffic(1)
    begin = 50 * 24 + 10
    fall_silent(rows, rejected, slice(begin, begin + 4))

    seen = [as_judged_after(begin + after, rows, rejected) for after in range(2, 20)]

    assert [bool(one.unusual) for one in seen[:3]] == [True] * 3
    assert not seen[0].is_settled
    last = max(place for place, one in enumerate(seen) if one.unusual)
    assert [one.is_settled for one in seen[last:]] == [False] * SETTLED_HOURS + [True] * (
        len(seen) - last - SETTLED_HOURS
    )


def test_what_is_said_of_a_silence() -> None:
    rows = np.full(40 * 24, 100)
    rows[-3:] = 0

    (found,) = as_judged_after(40 * 24, rows, np.zeros_like(rows)).unusual

    ends_at = BEGINS_AT + timedelta(days=40)
    assert (found.kind, found.since, found.until) == (UnusualKind.NONE, ends_at - timedelta(hours=3), ends_at)
    assert (found.hours, found.seen, found.usual, found.weeks) == (3, 0, 300, 4)


def test_a_single_row_where_thousands_are_usual_is_too_few_and_no_silence() -> None:
    rows, rejected = traffic(0)
    begin = 50 * 24 + 10
    rows[begin : begin + 2] = 1

    (found,) = as_judged_after(begin + 2, rows, rejected).unusual

    assert (found.kind, found.hours, found.seen) == (UnusualKind.FEW, 1, 1)


def test_a_table_that_sometimes_pauses_is_silent_when_it_pauses_longer() -> None:
    for seed in range(2):
        drawn = np.random.default_rng(seed)
        rows = np.where(drawn.random(DAYS * 24) < 0.02, 0, 1_000)
        nothing = np.zeros_like(rows)

        assert len(incidents(rows, nothing)) <= 1

        rows[-4:] = 0
        assert [one.kind for one in as_judged_after(len(rows), rows, nothing).unusual] == [UnusualKind.NONE]


def test_the_load_of_each_night_is_missed() -> None:
    rows = np.where(np.arange(DAYS * 24) % 24 == 3, 5_000, 0)
    nothing = np.zeros_like(rows)
    assert incidents(rows, nothing) == []

    rows[55 * 24 + 3] = 0

    found = incidents(rows, nothing)
    assert len(found) == 1
    assert found[0] - (55 * 24 + 3) <= 24


def _unchanged(history: HourlyRows) -> HourlyRows:
    return history


@pytest.mark.parametrize(
    "changed",
    [
        lambda history: replace(history, rows=history.rows[: 28 * 24 - 1], rejected=history.rejected[: 28 * 24 - 1]),
        lambda history: replace(history, rows=(), rejected=()),
        lambda history: replace(history, rows=[0] * len(history.rows), rejected=[0] * len(history.rows)),
        _unchanged,
    ],
    ids=["27 days", "none", "never a row", "usual"],
)
def test_nothing_is_unusual(changed: Callable[[HourlyRows], HourlyRows]) -> None:
    rows, rejected = traffic(2)
    assert judge_rows(changed(HourlyRows(begins_at=BEGINS_AT, rows=rows, rejected=rejected))) == RowsVerdict()
