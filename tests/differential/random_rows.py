"""Random rows: few values, many nulls, rows that are late, and rows that are equal but for their number."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

from tests.differential.case import Row, source_kinds
from tests.differential.column_kinds import KINDS

BASE = datetime(2026, 10, 25, 1, 0, tzinfo=UTC)
"""Event times lie around it: in Berlin the hour between 2 and 3 o'clock is over for the second time."""

_TIME_OF_TURN_SECONDS = 15
_NULLS = 0.15


def random_turns(luck: random.Random, *, key: str, turns: int) -> tuple[tuple[Row, ...], ...]:
    """The rows of each turn, at least one."""
    numbers = iter(range(1, 10_000))
    return tuple(
        tuple(_row(luck, key, next(numbers), turn) for _ in range(luck.choice((1, 3, 6, 10)))) for turn in range(turns)
    )


def _row(luck: random.Random, key: str, number: int, turn: int) -> Row:
    row = {name: _value(luck, kind) for name, kind in source_kinds(key).items()}
    ahead = turn * _TIME_OF_TURN_SECONDS + luck.randint(-50, _TIME_OF_TURN_SECONDS)
    at = BASE + timedelta(seconds=ahead, microseconds=luck.choice((0, 0, 0, 1, 999_999)))
    return row | {
        "n": number,
        "k2": luck.choice(("x", "x", "y", "z", None)),
        "v": luck.choice((0, 1, 2, 3, None)),
        "moment": at if luck.random() > _NULLS / 2 else None,
        "op": luck.choice(("c", "r", "u", "u", "d")),
    }


def _value(luck: random.Random, kind: str) -> object:
    return None if luck.random() < _NULLS else luck.choice(KINDS[kind].values)


def random_lookup(luck: random.Random) -> tuple[Row, ...]:
    """The rows of the table that is looked up: some keys have none, one may have two."""
    rows = [{"k2": key, "label": label} for key, label in (("x", "ex"), ("y", None), ("q", "queue"), (None, "null"))]
    chosen = [row for row in rows if luck.random() < 0.8]
    return tuple([*chosen, {"k2": "x", "label": "another"}] if luck.random() < 0.15 else chosen)
