"""The key `backfill`: what is refused, each with its line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder

S = "silver_flights.stream.yaml"
BACKFILL = "quarantine: true\nbackfill:\n  column: departure\n"


def problems(folder: Folder, *changes: tuple[str, str], backfill: str = BACKFILL) -> list[str]:
    """The problems of the valid stream with a backfill and some changes."""
    folder.write_valid()
    text = (folder.path / S).read_text().replace("quarantine: true\n", backfill)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    folder.write(S, text)
    return folder.problems()


def test_a_backfill_of_a_table_by_its_event_time_is_valid(folder: Folder) -> None:
    more = "  interval: month\n  reads: {flights: departure}\n  margin: 6 hours\n  at_once: 4\n  balance: rows\n"

    assert problems(folder, backfill=BACKFILL + more) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            [("column: departure\n", "column: departed\n")],
            f"{S}:21: `backfill.column`: silver.flights has no column departed; it has carrier, departure, legs. "
            "Did you mean `departure`?",
        ),
        (
            [("column: departure\n", "column: carrier\n")],
            f"{S}:21: `backfill.column`: an interval is one of date, timestamp, timestamptz, and carrier is a string.",
        ),
        (
            [("column: departure\n", "column: departure\n  reads: {airlines: carrier}\n")],
            f"{S}:22: `backfill.reads.airlines`: airlines is static, and a static input is read whole.",
        ),
        (
            [("column: departure\n", "column: departure\n  margin: 1 hour\n")],
            f"{S}:22: `backfill.margin`: belongs to `reads`: an input that is read whole needs no margin, got "
            "'1 hour'.",
        ),
        (
            [("mode: append", "mode: merge, keys: [carrier]")],
            f"{S}:21: `backfill.column`: a merged row belongs to one interval only when its key says which: departure "
            "is not one of the keys carrier.",
        ),
        (
            [("mode: append", "mode: merge, keys: [departure], ordering_column: carrier")],
            f"{S}:18: `outputs.main.iceberg.ordering_column`: `backfill` does not work with this yet: a backfill of "
            "ordered merges: which row of a key counts depends on the batches that brought them. Leave `backfill` out.",
        ),
        (
            [("mode: append", "mode: overwrite_partitions")],
            f"{S}:18: `outputs.main.iceberg.mode`: `backfill` does not work with this yet: a backfill of mode "
            "overwrite_partitions: the next batch of the stream may replace the interval again. Leave `backfill` out.",
        ),
        (
            [("iceberg: {table: bronze.flights}\n    watermark: {column: departure, delay: 6 hours}", "rate: {}")],
            f"{S}:9: `inputs.flights.stream.rate`: `backfill` does not work with this yet: a backfill reads Iceberg "
            "tables, not rate. Keep the records in a table of their own and backfill the stream that reads it.",
        ),
    ],
)
def test_what_cannot_be_exact_is_refused_with_its_line(
    folder: Folder, changes: list[tuple[str, str]], expected: str
) -> None:
    assert expected in problems(folder, *changes)
