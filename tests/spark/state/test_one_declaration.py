"""One declaration gives the same table as a continuous stream, in increments, and in backfills of random intervals."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from tests.fixtures.backfills import COLUMNS, COUNT_DAYS, FIRST_DAY, backfill
from tests.fixtures.workshop import Workshop

from sluice.ledger.batches import BatchObservation

_DAYS = 8
_DELAY = timedelta(hours=6)

ONCE = """
    def transform(records):
        return records.dropDuplicates(["id", "at"])
"""

Parts = Sequence[Sequence[dict[str, Any]]]


def random_parts(chance: random.Random) -> Parts:
    """What arrives: rows nearly in the order of their times, some twice, and some far too late, in five parts."""
    minutes = _DAYS * 24 * 60
    rows = [
        {"id": number, "word": "a", "at": FIRST_DAY + timedelta(minutes=chance.randrange(minutes))}
        for number in range(150)
    ]
    rows += chance.sample(rows, 15)

    def arrival(one: dict[str, Any]) -> datetime:
        is_late, at = chance.random() < 0.1, datetime.fromisoformat(str(one["at"]))
        return at + timedelta(hours=chance.randrange(24, 96) if is_late else chance.randrange(6))

    rows.sort(key=arrival)
    cuts = [0, *sorted(chance.sample(range(1, len(rows)), 4)), len(rows)]
    # The watermark closes the last of the days with the batch after the one that has this row.
    after = {"id": -1, "word": "a", "at": FIRST_DAY + timedelta(days=_DAYS, hours=7)}
    return [*(rows[start:end] for start, end in pairwise(cuts)), [after], [after]]


def inputs_of(workshop: Workshop) -> dict[str, Any]:
    """The inputs of both declarations: the source, a file for each batch, with a watermark."""
    return {
        "records": {
            "stream": {"iceberg": {"table": workshop.table_name("source"), "max_files_per_batch": 1}},
            "watermark": {"column": "at", "delay": f"{_DELAY.total_seconds():.0f} seconds"},
        }
    }


def declare(workshop: Workshop, name: str, target: str, **how: Any) -> None:
    """Declare a stream that counts the rows of each day."""
    target = workshop.declare_table(target, {"at": "timestamptz", "rows": "long"})
    workshop.declare_stream(
        name,
        python=COUNT_DAYS,
        inputs=inputs_of(workshop),
        outputs={"days": {"iceberg": {"table": target, "mode": "merge", "keys": ["at"]}}},
        backfill={"column": "at", "reads": {"records": "at"}},
        **how,
    )


def declare_once(workshop: Workshop, name: str, target: str, **how: Any) -> None:
    """Declare a stream that appends each row once."""
    table = workshop.declare_table(target, COLUMNS, partitioning=[{"column": "at", "transform": "month"}])
    workshop.declare_stream(
        name,
        python=ONCE,
        inputs=inputs_of(workshop),
        outputs={"rows": {"iceberg": {"table": table}}},
        backfill={"column": "at", "reads": {"records": "at"}},
        **how,
    )


def counted(workshop: Workshop, table: str) -> dict[datetime, int]:
    """The rows of each day that a table holds."""
    return {row["at"]: row["rows"] for row in workshop.rows(table)}


def late_rows(batches: Sequence[BatchObservation]) -> int:
    """How many rows the batches dropped because their window was closed."""
    return sum(batch.late_rows for batch in batches)


def run_both(
    workshop: Workshop, parts: Parts, increments: str, continuous: str
) -> tuple[list[BatchObservation], list[BatchObservation]]:
    """Let the parts arrive in two turns, and run both streams after each; the batches of the two."""
    of_increments: list[BatchObservation] = []
    of_continuous: list[BatchObservation] = []
    for arriving in (parts[:2], parts[2:]):
        for part in arriving:
            workshop.append("source", part)
        batches = workshop.run(increments).batches
        of_increments += batches
        of_continuous += workshop.run(continuous, stop_after_batches=len(batches)).batches
    return of_increments, of_continuous


@pytest.mark.drill  # every test run has random windows in both modes (`test_event_time.py`, `test_differential.py`)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_windows_are_the_same_in_every_mode_but_for_late_rows(seed: int, workshop: Workshop) -> None:
    chance = random.Random(seed)  # noqa: S311  # no secret
    parts = random_parts(chance)
    increments, continuous = f"i{workshop.namespace}", f"c{workshop.namespace}"
    workshop.declare_table("source", COLUMNS)
    declare(workshop, increments, "by_increments")
    declare(workshop, continuous, "by_continuous", mode="continuous", trigger={"processing_time": "10 milliseconds"})
    of_increments, of_continuous = run_both(workshop, parts, increments, continuous)
    whole = Counter(row["at"].replace(hour=0, minute=0) for part in parts for row in part)

    by_increments = counted(workshop, "by_increments")
    assert by_increments == counted(workshop, "by_continuous")
    assert late_rows(of_increments) == late_rows(of_continuous) == whole.total() - sum(by_increments.values())
    assert late_rows(of_increments) > 0

    backfill_all_days(workshop, increments, chance)
    assert counted(workshop, "by_increments") == whole


@pytest.mark.full  # every run has random streams, random backfills, and a preview that decodes alike
def test_each_row_is_kept_once_in_every_mode_but_for_late_rows(workshop: Workshop) -> None:
    chance = random.Random(2)  # noqa: S311  # no secret
    parts = random_parts(chance)
    increments, continuous = f"i{workshop.namespace}", f"c{workshop.namespace}"
    workshop.declare_table("source", COLUMNS)
    declare_once(workshop, increments, "by_increments")
    declare_once(
        workshop, continuous, "by_continuous", mode="continuous", trigger={"processing_time": "10 milliseconds"}
    )
    of_increments, of_continuous = run_both(workshop, parts, increments, continuous)
    whole = [row for part in parts for row in part]
    ids = sorted({row["id"] for row in whole})

    kept = workshop.rows("by_increments")
    assert kept == workshop.rows("by_continuous")
    for every in (of_increments, of_continuous):
        assert late_rows(every) > 0
        assert len(whole) == len(kept) + late_rows(every) + sum(batch.duplicate_rows for batch in every)
    assert len({row["id"] for row in kept}) == len(kept) < len(ids)

    backfill_all_days(workshop, increments, chance)
    assert sorted(row["id"] for row in workshop.rows("by_increments")) == ids


def backfill_all_days(workshop: Workshop, stream: str, chance: random.Random) -> None:
    """Backfill all days, in intervals of random lengths and in random order."""
    days = list(range(_DAYS))
    chance.shuffle(days)
    while days:
        first = days.pop()
        last = first + 1
        while last in days and chance.random() < 0.7:
            days.remove(last)
            last += 1
        backfill(workshop, stream, start=_day(first), end=_day(last))


def _day(number: int) -> str:
    return (FIRST_DAY + timedelta(days=number)).astimezone(UTC).date().isoformat()
