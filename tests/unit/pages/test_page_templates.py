"""The pages as HTML: whatever a declaration, a log or an error says is text and never markup."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.unit.pages.test_line_selection import LINES, NOON

from sluice.ledger.stream_troubles import StreamTrouble
from sluice.pages.line_selection import LineCounts, LineSelection
from sluice.pages.page_templates import STATIC, render
from sluice.pages.stream_lines import StreamLine
from sluice.supervision.stream_verdict import StreamState

HOSTILE = "<img src=x onerror=alert(1)>\"'`{{7*7}}</script>"


def streams_page(**changed: Any) -> str:
    """The page of lines, each of which has hostile words in every field."""
    lines = tuple(
        replace(
            line,
            stream=HOSTILE,
            owner=HOSTILE,
            tags=(HOSTILE,),
            explanation=HOSTILE,
            lag_history=(1, None, 3),
            since=NOON,
            published_at=NOON,
        )
        for line in LINES
    )
    values = {
        "base": "/sluice",
        "lines": lines,
        "counts": LineCounts.of(lines),
        "selection": LineSelection(words=HOSTILE),
        "problems": (HOSTILE,),
        "may_act": frozenset({HOSTILE}),
        "history_hours": 6,
        "airflow": "/",
        "outlooks": {},
        "paused": (),
        "failed_checks": (),
        "link_to_sort": lambda key: f"sort={key}",
        "link_to_show": lambda show: f"show={show}",
    }
    return render("streams", values | changed)


def test_everything_is_escaped() -> None:
    page = streams_page()

    assert "<img" not in page
    assert "</script>\"'" not in page
    assert "49" not in page.replace("&#39;", "")
    assert "&lt;img src=x onerror=alert(1)&gt;" in page


def test_nothing_needs_an_exception_from_the_content_security_policy() -> None:
    page = streams_page()

    assert " style=" not in page
    assert "<style" not in page
    assert " onclick" not in page
    assert "http://" not in page
    assert "https://" not in page
    assert page.count("<script") == 1


def test_a_page_without_lines_says_what_to_do() -> None:
    assert "No stream matches" in streams_page(lines=())
    empty = streams_page(lines=(), counts=LineCounts.of(()))
    assert "No stream is declared, or you may read the DAG of none" in empty


def test_who_may_not_act_gets_no_link_to_an_action() -> None:
    assert "/plan/" in streams_page()
    assert "/plan/" not in streams_page(may_act=frozenset())


@pytest.mark.parametrize("name", ["pages.css", "pages.js", "tile.js"])
def test_files_load_nothing_from_elsewhere(name: str) -> None:
    text = (STATIC / name).read_text()

    assert "http://" not in text
    assert "https://" not in text
    assert "@import" not in text
    assert "innerHTML = " not in text


def test_what_an_increment_waits_for_is_said_with_the_time_of_its_next_run() -> None:
    line = replace(LINES[3], state=StreamState.FINISHED, waits_for="its time (@hourly)")
    due = NOON + timedelta(minutes=12)

    assert "waits for its time (@hourly), <time" in streams_with(line, DagOutlook(next_run_at=due))
    assert "in 12 min" in streams_with(line, DagOutlook(next_run_at=due))
    paused = streams_with(line, DagOutlook(is_paused=True))
    assert 'its DAG is <a href="/dags/archive" data-airflow>paused</a>' in paused


@dataclass(frozen=True)
class DagOutlook:
    """A DAG as Airflow has it."""

    is_paused: bool = False
    next_run_at: datetime | None = None


def streams_with(line: StreamLine, outlook: DagOutlook) -> str:
    """The page of one stream whose DAG is like this."""
    return streams_page(lines=(line,), outlooks={line.stream: outlook})


def test_failed_checks_are_on_the_page_of_streams() -> None:
    trouble = StreamTrouble(
        stream="silver.quakes",
        reason="check failed",
        explanation="strongest is at most 5: 3 rows break it",
        since=NOON - timedelta(hours=2),
        observed_at=NOON,
    )

    page = streams_page(failed_checks=(trouble,))

    assert '● check failed: <a href="/sluice/tables/silver.quakes">silver.quakes</a>' in page
    assert "for 2 h" in page
    assert "3 rows break it" in page


def test_a_long_reason_is_folded_and_a_short_one_is_not() -> None:
    long = "So it is. " * 40

    page = streams_page(lines=(replace(LINES[1], explanation=long), replace(LINES[2], explanation="Short.")))

    assert f'<details class="clamp" id="why-orders"><summary><span>{long}</span></summary></details>' in page
    assert page.count("<details") == 1
