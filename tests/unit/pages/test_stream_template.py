"""The page of a stream as HTML: its buttons, and that hostile words stay words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.pages.test_line_selection import LINES, NOON
from tests.unit.pages.test_page_templates import HOSTILE

from sluice.pages.page_actions import MEANINGS, PageVerb
from sluice.pages.page_templates import render
from sluice.pages.page_words import DONE_SENTENCES, DoneWord
from sluice.pages.stream_page import LogTail, StreamPage
from sluice.supervision.stream_verdict import StreamState

LINE = replace(LINES[0], stream="clicks", state=StreamState.STOPPED, has_live_run=False, since=NOON)
PAGE = StreamPage(
    hours=1,
    charts=(),
    runs=(),
    batches=(),
    events=(),
    generation=None,
    checkpoint_check=None,
    declaration=HOSTILE,
    file="clicks.stream.yaml",
    graph=None,
    log=LogTail(text=HOSTILE),
)


def page_of(**changed: Any) -> str:
    """The page of a stopped stream for a person who may act on it."""
    values = {
        "base": "/sluice",
        "airflow": "/",
        "line": LINE,
        "page": PAGE,
        "windows": (1, 6, 24),
        "done": None,
        "verbs": (PageVerb.START, PageVerb.RESET),
        "may_backfill": True,
        "may_reject": True,
        "has_quarantine": True,
        "may_see_samples": True,
        "samples_hidden": "hidden from you",
        "resets_need_another": False,
        "meanings": MEANINGS,
        "lines": {},
        "tables": frozenset(),
        "has_ui": False,
        "dag_run_links": {},
    }
    return render("stream", values | changed)


def test_a_person_who_may_act_finds_the_buttons() -> None:
    page = page_of(done=DONE_SENTENCES[DoneWord.BACKFILL])

    assert "/streams/clicks/plan/start" in page
    assert "/streams/clicks/plan/reset" in page
    assert 'href="/sluice/streams/clicks/backfill"' in page
    assert 'href="/sluice/streams/clicks/plan/reject-batch"' in page
    assert "Airflow has queued the runs of the backfill." in page
    assert "Another person must approve" not in page


def test_where_another_person_must_approve_a_reset_the_page_says_how() -> None:
    page = page_of(verbs=(PageVerb.START,), resets_need_another=True)

    assert "/plan/reset" not in page
    assert "Another person must approve a reset" in page
    assert 'href="/dags/stream_control"' in page


def test_spark_s_ui_is_offered_where_a_driver_may_serve_it() -> None:
    assert 'href="/sluice/streams/clicks/spark"' in page_of(has_ui=True)
    assert "/spark" not in page_of()


def test_who_may_not_act_finds_neither_buttons_nor_what_they_would_need() -> None:
    page = page_of(verbs=(), may_backfill=False, may_reject=False, resets_need_another=True)

    assert "/plan/" not in page
    assert "/backfill" not in page
    assert "Another person" not in page


def test_the_records_of_a_quarantine_are_a_link_or_the_reason_why_they_are_hidden() -> None:
    link = 'href="/sluice/streams/clicks/quarantine"'

    assert link in page_of()
    hidden = page_of(may_see_samples=False)
    assert link not in hidden
    assert "hidden from you" in hidden
    without = page_of(has_quarantine=False, may_see_samples=False)
    assert "hidden from you" not in without
    assert "<h2>Quarantine</h2>" not in without


def test_hostile_words_stay_words() -> None:
    page = page_of(line=replace(LINE, stream=HOSTILE, owner=HOSTILE, tags=(HOSTILE,), explanation=HOSTILE))

    assert "<img" not in page
    assert " style=" not in page
