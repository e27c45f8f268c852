"""Synthetic columns of a table: 60 days with nights, weekends, a holiday, growth and noise."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from statistics import NormalDist
from typing import Any

import numpy as np

from sluice.supervision.unusual_columns import ColumnKind, HourlyColumn

BEGINS_AT = datetime(2026, 9, 7, tzinfo=UTC)
DAYS, FIRST_JUDGED = 60, 28 * 24
HOLIDAYS = (20, 45)
HOURS = np.arange(DAYS * 24)
BEGINS = BEGINS_AT.timestamp() + 3600.0 * HOURS
"""When each hour begins, in seconds since 1970."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """How a table is drawn.

    peak: rows of a busy hour. night: of it at night. growth: a day. noise: of each hour, of rows and of shares.
    tail: the standard deviation of the logarithm of amounts. columns: how many.
    """

    peak: float = 1_000
    night: float = 0.1
    growth: float = 0.01
    noise: float = 0.1
    tail: float = 1.0
    columns: int = 20

    def drawn(self, seed: int) -> list[HourlyColumn]:
        """Its columns: shares of nulls from none to most, each with its own day and night; amounts; times; ids."""
        return list(_drawn(self, seed))

    def made_by(self, draw: Any) -> tuple[HourlyColumn, ...]:
        """Its columns as a generator of random numbers makes them."""
        rows = self._rows(draw)
        return tuple(self._column(draw, number, rows) for number in range(self.columns))

    def _rows(self, draw: Any) -> Any:
        of_day = self.night + (1 - self.night) * np.clip(np.sin((HOURS % 24 - 6) / 14 * np.pi), 0, 1)
        days = HOURS // 24
        of_week = np.where(days % 7 >= 5, 0.4, 1.0) * np.where(np.isin(days, HOLIDAYS), 0.35, 1.0)
        expected = self.peak * of_day * of_week * np.exp(self.growth * HOURS / 24)
        return draw.poisson(expected * np.exp(self.noise * draw.normal(size=len(HOURS))))

    def _column(self, draw: Any, number: int, rows: Any) -> HourlyColumn:
        usual = (0.0, 0.0, 0.02, 0.1, 0.3, 0.5, 0.8)[number % 7]
        is_other = ((HOURS % 24 < 6) | (HOURS // 24 % 7 >= 5)) & (number % 2 == 0)
        share = np.where(is_other, 1.3, 1.0) * usual * np.exp(self.noise * draw.normal(size=len(HOURS)))
        nulls = draw.binomial(rows, np.clip(share, 0, 1))
        filled = rows - nulls
        kind, low, high = self._bounds(draw, number % 4, np.fmax(filled, 1))
        return a_column(f"c{number}", kind, rows, nulls, *(np.where(filled > 0, one, np.nan) for one in (low, high)))

    def _bounds(self, draw: Any, shape: int, filled: Any) -> tuple[ColumnKind, Any, Any]:
        if shape == 0:  # amounts
            return ColumnKind.NUMBER, 1 / extreme(draw, filled, self.tail), extreme(draw, filled, self.tail)
        if shape == 1:  # measurements around zero, by the normal distribution
            scale = 0.3 / np.sqrt(2 * np.log(filled + 2))
            far = [np.sqrt(2 * np.log(filled + 2)) * (1 + scale * draw.normal(size=len(HOURS))) for _ in range(2)]
            return ColumnKind.NUMBER, -far[0], far[1]
        if shape == 2:  # ids that count up
            ids = np.cumsum(filled)
            return ColumnKind.NUMBER, ids - filled, ids
        late = 600 * extreme(draw, filled, self.tail)  # times, some of them late
        return ColumnKind.TIME, BEGINS - late, BEGINS + 3_500


@cache
def _drawn(table: Table, seed: int) -> tuple[HourlyColumn, ...]:
    return table.made_by(np.random.default_rng(seed))


def extreme(draw: Any, count: Any, tail: float) -> Any:
    """The largest of so many log-normal values whose median is 1."""
    uniform = np.clip(draw.random(len(count)) ** (1 / count), 1e-12, 1 - 1e-15)
    return np.exp(tail * np.array([NormalDist().inv_cdf(one) for one in uniform]))


def a_column(name: str, kind: ColumnKind, rows: Any, nulls: Any, lowest: Any, highest: Any) -> HourlyColumn:
    """A column from arrays."""
    return HourlyColumn(
        name=name,
        kind=kind,
        begins_at=BEGINS_AT,
        rows=rows.astype(float),
        nulls=nulls.astype(float),
        lowest=lowest.astype(float),
        highest=highest.astype(float),
    )


def changed(column: HourlyColumn, hours: int, **values: Any) -> HourlyColumn:
    """A column up to some hour. values: arrays that differ."""
    own = {name: np.array(getattr(column, name), dtype=float) for name in ("rows", "nulls", "lowest", "highest")}
    own |= values
    return a_column(column.name, column.kind, *(own[name][:hours] for name in ("rows", "nulls", "lowest", "highest")))
