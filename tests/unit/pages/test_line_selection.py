"""Search, filter and sorting of the streams page."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sluice.pages.line_selection import LineCounts, LineSelection
from sluice.pages.page_figures import ShownTone
from sluice.pages.stream_lines import StreamLine
from sluice.supervision.stream_verdict import StreamState

NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


def a_line(stream: str, tone: ShownTone = ShownTone.GOOD, *, lag: int | None = None, owner: str = "shop") -> StreamLine:
    """A line of a page."""
    return StreamLine(
        stream=stream,
        state=StreamState.LATE if tone is ShownTone.ODD else StreamState.RUNNING,
        tone=tone,
        is_healthy=tone in (ShownTone.GOOD, ShownTone.CALM),
        explanation="killed by SIGKILL" if tone is ShownTone.BAD else "",
        mode="continuous",
        now=NOON,
        owner=owner,
        tags=("silver",),
        lag_rows=lag,
        behind=None if lag is None else timedelta(seconds=lag),
    )


LINES = (
    a_line("carts", lag=5),
    a_line("orders", ShownTone.BAD, lag=None),
    a_line("clicks", ShownTone.ODD, lag=900, owner="web"),
    a_line("archive", ShownTone.CALM),
)


def shown(**query: str) -> list[str]:
    """The names of the lines that an address shows."""
    return [line.stream for line in LineSelection.of(query).select(LINES)]


def test_the_worst_come_first_and_then_the_alphabet() -> None:
    assert shown() == ["orders", "clicks", "archive", "carts"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("web", ["clicks"]),
        ("SIGKILL", ["orders"]),
        ("silver shop", ["orders", "archive", "carts"]),
        ("late", ["clicks"]),
        ("nothing like it", []),
    ],
)
def test_all_words_are_looked_for_in_names_owners_tags_and_reasons(words: str, expected: list[str]) -> None:
    assert shown(q=words) == expected


def test_a_filter_shows_one_kind() -> None:
    assert {show: shown(show=show, sort="stream") for show in LineSelection.kinds} == {
        "all": ["archive", "carts", "clicks", "orders"],
        "unhealthy": ["clicks", "orders"],
        "running": ["carts"],
        "waiting": [],
        "stopped": ["archive"],
    }


def test_lines_are_sorted_by_any_column_in_both_directions() -> None:
    assert shown(sort="lag", desc="1") == ["clicks", "carts", "archive", "orders"]
    for key in LineSelection.keys:
        assert sorted(shown(sort=key)) == sorted(shown(sort=key, desc="1")) == ["archive", "carts", "clicks", "orders"]


def test_an_address_with_unknown_words_shows_the_default() -> None:
    assert LineSelection.of({"sort": "__class__", "show": "<script>", "desc": "x"}) == LineSelection()
    assert len(LineSelection.of({"q": "x" * 10_000}).words) == 200


def test_counts_add_up() -> None:
    counts = LineCounts.of(LINES)

    assert (counts.bad, counts.odd, counts.running, counts.stopped, counts.total) == (1, 1, 1, 1, 4)


def test_an_increment_in_order_waits_for_its_schedule_and_is_not_stopped() -> None:
    waiting = replace(
        a_line("sums", ShownTone.CALM), state=StreamState.FINISHED, mode="incremental", waits_for="its time (@hourly)"
    )
    stopped = replace(waiting, stream="asked_to_stop", state=StreamState.STOPPED)
    lines = (*LINES, waiting, stopped)

    assert [line.stream for line in LineSelection.of({"show": "waiting"}).select(lines)] == ["sums"]
    assert [line.stream for line in LineSelection.of({"show": "stopped"}).select(lines)] == ["archive", "asked_to_stop"]
    counts = LineCounts.of(lines)
    assert (counts.waiting, counts.stopped, counts.total) == (1, 2, 6)
