"""A plan is waited for without the turn, which the stream needs to publish the batch that is waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from tests.unit.backfill.test_backfill_plan import SEEN
from tests.unit.backfill.test_source_bounds import table_of

from sluice.backfill.backfill_plan import plan_backfill
from sluice.backfill.observe_backfill import PlannedOn, settled_plan
from sluice.backfill.read_bounds import TableBound
from sluice.errors import UnpublishableError

CORRECTED = {"sources": (TableBound(input="records", table="bronze.flights", problem="it was corrected."),)}
SHARED = {"other_writers": ("corrections",)}
TABLE = table_of("append")


def looks(story: list[str], *changes: dict[str, Any]) -> Callable[[], PlannedOn]:
    """Observations in a row; the last one lasts."""
    left = list(changes)

    def look() -> PlannedOn:
        story.append("look")
        change = left.pop(0) if len(left) > 1 else left[0]
        return PlannedOn(plan=plan_backfill(replace(SEEN, **change)), target=TABLE)

    return look


@contextmanager
def turn_in(story: list[str]) -> Iterator[None]:
    """A turn that is written down."""
    story.append("turn")
    yield
    story.append("end of turn")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ([{}], ["look", "turn", "look", "work", "end of turn"]),
        ([CORRECTED, {}], ["look", "pause", "look", "turn", "look", "work", "end of turn"]),
        (
            [{}, CORRECTED, {}],
            ["look", "turn", "look", "end of turn", "look", "turn", "look", "work", "end of turn"],
        ),
    ],
    ids=["at once", "after a batch", "another correction before its turn"],
)
def test_a_batch_is_waited_for_outside_of_the_turn(changes: list[dict[str, Any]], expected: list[str]) -> None:
    story: list[str] = []

    with settled_plan(
        looks(story, *changes),
        turn=lambda: turn_in(story),
        patience_seconds=60,
        pause=lambda _: story.append("pause"),
    ) as planned:
        story.append("work")

    assert not planned.plan.is_refused
    assert story == expected


def test_without_a_turn_one_look_is_enough() -> None:
    story: list[str] = []

    with settled_plan(
        looks(story, CORRECTED, {}), turn=None, patience_seconds=60, pause=lambda _: story.append("pause")
    ):
        story.append("work")

    assert story == ["look", "pause", "look", "work"]


@pytest.mark.parametrize(
    ("change", "patience_seconds", "reason"),
    [
        (CORRECTED, 0.0, "it was corrected"),
        (SHARED, 60.0, "also holds rows"),
        (SHARED | CORRECTED, 60.0, "it was corrected"),
    ],
    ids=["no batch came", "rows of another stream", "both"],
)
def test_what_a_batch_cannot_change_is_refused_at_once(
    change: dict[str, Any], patience_seconds: float, reason: str
) -> None:
    story: list[str] = []

    with (
        pytest.raises(UnpublishableError, match=reason),
        settled_plan(looks(story, change), turn=lambda: turn_in(story), patience_seconds=patience_seconds),
    ):
        pass

    assert story == ["look"]
