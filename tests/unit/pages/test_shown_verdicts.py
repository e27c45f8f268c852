"""What a page shows of a stream's health: its own look, and the reconciler's where a page cannot see."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from sluice.ledger.stream_troubles import StreamTrouble
from sluice.pages.page_figures import ShownTone
from sluice.pages.stream_lines import tone_of
from sluice.supervision.stream_verdict import StreamState, StreamVerdict, with_trouble

NOON = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)


def seen(state: StreamState, *, is_healthy: bool = True) -> StreamVerdict:
    """What the page sees itself."""
    return StreamVerdict(state=state, is_healthy=is_healthy, explanation="as the page sees it")


def found(reason: str) -> StreamTrouble:
    """What the reconciler found a moment ago."""
    since = NOON - timedelta(minutes=9)
    return StreamTrouble(stream="clicks", reason=reason, explanation="as it was found", since=since, observed_at=NOON)


@pytest.mark.parametrize(
    ("own", "trouble", "shown"),
    [
        (seen(StreamState.RUNNING), found("late"), StreamState.LATE),
        (seen(StreamState.IDLE), found("stalled"), StreamState.STALLED),
        (seen(StreamState.RUNNING), found("sources unobserved"), StreamState.SOURCES_UNOBSERVED),
        (seen(StreamState.STARTING), found("queued"), StreamState.QUEUED),
        (seen(StreamState.UNKNOWN, is_healthy=False), found("stalled"), StreamState.STALLED),
        (seen(StreamState.SILENT, is_healthy=False), found("driver gone"), StreamState.DRIVER_GONE),
        (seen(StreamState.RUNNING), found("queued"), StreamState.RUNNING),
        (seen(StreamState.UNKNOWN, is_healthy=False), found("idle"), StreamState.UNKNOWN),
        (seen(StreamState.RUNNING), found("given up"), StreamState.RUNNING),
        (seen(StreamState.RUNNING), found("silent"), StreamState.RUNNING),
        (seen(StreamState.STOPPED), found("late"), StreamState.STOPPED),
        (seen(StreamState.GIVEN_UP, is_healthy=False), found("late"), StreamState.GIVEN_UP),
        (seen(StreamState.UNKNOWN, is_healthy=False), found("a word of a newer program"), StreamState.UNKNOWN),
    ],
)
def test_the_newer_look_counts_where_it_can_see(own: StreamVerdict, trouble: StreamTrouble, shown: StreamState) -> None:
    verdict = with_trouble(own, trouble)

    assert verdict.state is shown
    assert (verdict.explanation == "as it was found") == (verdict != own)
    assert verdict.is_healthy == (verdict == own and own.is_healthy)


def test_a_stop_that_the_reconciler_doubts_is_unverdicty() -> None:
    verdict = with_trouble(seen(StreamState.STOPPED), found("stopped"))

    assert (verdict.state, verdict.is_healthy, verdict.explanation) == (StreamState.STOPPED, False, "as it was found")


def test_without_a_trouble_the_look_of_the_page_stays() -> None:
    assert with_trouble(seen(StreamState.RUNNING), None) == seen(StreamState.RUNNING)


@pytest.mark.parametrize("state", StreamState)
def test_every_state_has_a_tone_and_an_unverdicty_one_is_never_calm(state: StreamState) -> None:
    assert tone_of(seen(state, is_healthy=False)) in (ShownTone.BAD, ShownTone.ODD)
    assert tone_of(seen(state)) in (ShownTone.GOOD, ShownTone.CALM)
