"""The page of a stream as HTML: its buttons, and that hostile words stay words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.unit.pages.test_line_selection import LINES, NOON
from tests.unit.pages.test_page_templates import HOSTILE

from sluice.ledger.batches import BatchObservation, PublicationKey
from sluice.ledger.source_schemas import FieldChange, SourceSchema
from sluice.operations import OperationVerb
from sluice.pages.job_plans import BATCH_WORDS
from sluice.pages.page_actions import MEANINGS, PageVerb, batches_to_go_back_to, verbs_for
from sluice.pages.page_figures import DONE_SENTENCES, DoneWord, without_long_ids
from sluice.pages.page_templates import render
from sluice.pages.stream_page import LogTail, StreamPage
from sluice.publication.held_decisions import BATCH_VERBS
from sluice.supervision.stream_verdict import StreamState

LINE = replace(LINES[0], stream="clicks", state=StreamState.STOPPED, has_live_run=False, since=NOON)
PAGE = StreamPage(
    hours=1,
    charts=(),
    runs=(),
    batches=(),
    events=(),
    generation=None,
    schemas=(),
    patches={},
    checkpoint_check=None,
    declaration=HOSTILE,
    file="clicks.stream.yaml",
    graph=None,
    log=LogTail(text=HOSTILE),
)


BATCHES = ((2, 7), (2, 6), (2, 5), (1, 5))
"""Generation and number of the recorded ones."""


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
        "back_to": frozenset(),
        "may_backfill": True,
        "batch_verbs": (OperationVerb.REJECT_BATCH,),
        "batch_words": BATCH_WORDS,
        "has_quarantine": True,
        "may_see_samples": True,
        "samples_hidden": "hidden from you",
        "resets_need_another": False,
        "paused": (),
        "outlook": None,
        "clears": "",
        "meanings": MEANINGS,
        "lines": {},
        "tables": frozenset(),
        "failed": {},
        "has_ui": False,
        "dag_run_links": {},
    }
    return render("stream", values | changed)


def test_each_batch_that_a_stream_can_go_back_to_has_a_button() -> None:
    keys = [PublicationKey(stream="clicks", generation=generation, batch=batch) for generation, batch in BATCHES]
    batches = tuple(
        BatchObservation(
            key=key, run_id="r", started_at=NOON, recorded_at=NOON, duration_ms=1, input_rows=1, published_rows={}
        )
        for key in keys
    )
    back_to = batches_to_go_back_to(LINE, batches, rewinds_need_another=False)
    page = page_of(page=replace(PAGE, batches=batches), back_to=back_to)

    assert back_to == {6, 5}
    assert page.count("Back to it…") == 2
    assert 'href="/sluice/streams/clicks/plan/rewind?batch=5"' in page
    runs = replace(LINE, state=StreamState.RUNNING, has_live_run=True)
    assert not batches_to_go_back_to(runs, batches, rewinds_need_another=False)
    assert not batches_to_go_back_to(LINE, batches, rewinds_need_another=True)
    assert not batches_to_go_back_to(LINE, (), rewinds_need_another=False)


def test_a_person_who_may_act_finds_the_buttons() -> None:
    page = page_of(done=DONE_SENTENCES[DoneWord.BACKFILL])

    assert "/streams/clicks/plan/start" in page
    assert "/streams/clicks/plan/reset" in page
    assert 'href="/sluice/streams/clicks/backfill"' in page
    assert 'href="/sluice/streams/clicks/plan/reject-batch"' in page
    assert "Airflow has queued the runs of the backfill." in page
    assert "Another person must approve" not in page


def test_a_held_batch_is_released_or_rejected_from_the_page() -> None:
    page = page_of(batch_verbs=BATCH_VERBS)

    labels = ("Release batch…", "Release batch without failing rows…", "Reject batch…")
    for verb, label in zip(("release-batch", "separate-batch", "reject-batch"), labels, strict=True):
        assert f'href="/sluice/streams/clicks/plan/{verb}"' in page
        assert f">{label}</a>" in page


def test_where_another_person_must_approve_a_reset_the_page_says_how() -> None:
    page = page_of(verbs=(PageVerb.START,), resets_need_another=True)

    assert "/plan/reset" not in page
    assert "Another person must approve a reset or a repair" in page
    assert 'href="/dags/stream_control"' in page


def test_the_description_comes_first_and_a_failed_increment_offers_what_its_text_demands() -> None:
    line = replace(LINE, mode="incremental", state=StreamState.FAILED, description="Sums of an hour.")
    page = page_of(line=line, verbs=verbs_for(line, resets_need_another=False), clears="dags/clicks/runs/r1")

    assert page.index("Sums of an hour.") < page.index('class="banner')
    assert '<a class="button" href="/dags/clicks/runs/r1" data-airflow' in page
    assert "Clear its task in Airflow" in page
    assert "/plan/start" not in page, "its schedule starts it"
    assert "/plan/reset-breaker" not in page


def test_ids_of_runs_are_cut_as_in_every_list() -> None:
    text = "Run 1b4e28ba-2fa1-41d2-883f-0016d3cca427 was heard 3 s ago."

    assert without_long_ids(text) == "Run 1b4e28ba was heard 3 s ago."
    assert "0016d3cca427" not in page_of(line=replace(LINE, explanation=text))
    assert without_long_ids("snapshot 4611686018427387904") == "snapshot 4611686018427387904"


def test_an_increment_in_order_says_what_it_waits_for() -> None:
    line = replace(
        LINE, mode="incremental", state=StreamState.FINISHED, is_healthy=True, waits_for="its time (@hourly)"
    )

    assert "waiting for its time (@hourly)" in page_of(line=line)


def test_spark_s_ui_is_offered_where_a_driver_may_serve_it() -> None:
    assert 'href="/sluice/streams/clicks/spark"' in page_of(has_ui=True)
    assert "/spark" not in page_of()


def test_who_may_not_act_finds_neither_buttons_nor_what_they_would_need() -> None:
    page = page_of(verbs=(), may_backfill=False, batch_verbs=(), resets_need_another=True)

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


def test_the_schema_that_was_seen_last_is_shown_with_what_changed() -> None:
    schema = SourceSchema(
        stream="clicks",
        input="orders",
        source="table bronze.orders",
        fields={"n": "optional long, id 3"},
        answer="The run plans again before its next batch.",
        seen_at=NOON,
        changes=(FieldChange(field="n", was="required int, id 3", now="optional long, id 3"),),
    )

    unchanged = replace(schema, input="rates", changes=())
    page = page_of(page=replace(PAGE, schemas=(schema, unchanged), patches={"orders": "inputs: <b>"}))

    assert "table bronze.orders" in page
    assert page.count("patch of the declaration") == 1
    assert "<pre>inputs: &lt;b&gt;</pre>" in page
    assert "was required int, id 3 and is optional long, id 3" in page
    assert "The run plans again before its next batch." in page
    assert "Schemas of the inputs" not in page_of()
