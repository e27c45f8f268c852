"""What a backfill, a replay and a refresh refuse before they cost anything, and when they give up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from tests.fixtures.backfills import (
    COLUMNS,
    COUNT_DAYS,
    DAY_5,
    DAY_8,
    at_step,
    backfill,
    backfill_run,
    declare_read_stream,
    row,
)
from tests.fixtures.refreshes import ROWS as COPIED
from tests.fixtures.refreshes import refresh, run_wrong_copy, shadow_tables, wrong
from tests.fixtures.replays import divide, name_in, resolutions, run_of
from tests.fixtures.workshop import Workshop

from sluice.backfill.backfill_plan import BackfillObservation, PublishedBatch
from sluice.backfill.reach import PlanReach
from sluice.errors import IntervalChangedError, StarvedError, UnpublishableError
from sluice.ledger.backfill_attempts import BackfillAttemptKey, BackfillState, begin_attempt, recent_attempts
from sluice.publication.chain import MarkPosition
from sluice.publication.crash_points import CrashPoint
from sluice_spark.backfill import backfill_run as backfills
from sluice_spark.backfill import rejected_rows, replay_run
from sluice_spark.backfill.interval_rows import exact_reach
from sluice_spark.backfill.rejected_rows import RejectedRows
from sluice_spark.backfill.replayed_records import Computed, require_not_visible
from sluice_spark.refresh import refresh_run

OWN_STATE = """
    def transform(records):
        def counted(key, frames, state):
            yield from frames

        return records.groupBy("id").applyInPandasWithState(
            counted, "id long, word string, at timestamp", "rows long", "append", "NoTimeout"
        )
"""
NOW = datetime(2013, 1, 9, tzinfo=UTC)


def reach_of(workshop: Workshop, python: str, columns: dict[str, str]) -> Callable[[PublishedBatch | None], PlanReach]:
    """How far the plan of a stream reaches, by its newest published batch. It never runs."""
    name = f"s{workshop.namespace}"
    source, target = workshop.declare_table("source", COLUMNS), workshop.declare_table("target", columns)
    reading = {"stream": {"iceberg": {"table": source}}, "watermark": {"column": "at", "delay": "1 hour"}}
    workshop.declare_stream(
        name,
        python=python,
        inputs={"records": reading},
        outputs={"rows": {"iceberg": {"table": target}}},
        backfill={"column": "at"},
    )
    run = backfill_run(workshop, name, start=DAY_5, end=DAY_8)
    seen: BackfillObservation = run.observe(workshop.catalog)[0]
    return lambda published: exact_reach(workshop.spark, run.stream, run.settings, replace(seen, published=published))


def test_a_state_of_the_users_own_is_refused(workshop: Workshop) -> None:
    reach = reach_of(workshop, OWN_STATE, COLUMNS)

    with pytest.raises(UnpublishableError, match=r"FlatMapGroups.* keeps a state of its own") as refused:
        reach(PublishedBatch(end_offsets={}, watermark=NOW))

    assert refused.value.next_step == "Reset the stream instead (`sluice stream reset`)."


def test_windows_without_a_watermark_close_no_interval(workshop: Workshop) -> None:
    reach = reach_of(workshop, COUNT_DAYS, {"at": "timestamptz", "rows": "long"})

    for published in (None, PublishedBatch(end_offsets={}, watermark=None)):
        with pytest.raises(UnpublishableError, match="had no watermark in its newest batch"):
            reach(published)

    assert reach(PublishedBatch(end_offsets={}, watermark=NOW)).keeps_rows


@pytest.mark.full  # every run resolves what it replays (`test_replays.py`)
def test_rejected_rows_of_the_batch_of_the_plan_are_waited_for(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream publishes them right after the batch itself: until then it is unknown which the quarantine lacks."""
    monkeypatch.setattr(rejected_rows, "_QUARANTINE_SECONDS", 0.0)
    stream = declare_read_stream(workshop)
    run = backfill_run(workshop, stream, start=DAY_5, end=DAY_8)
    seen = run.observe(workshop.catalog)[0]
    assert seen.position is not None

    def look(position: MarkPosition) -> int:
        key = BackfillAttemptKey(stream=stream, interval_start=NOW, interval_end=NOW, attempt=1)
        rows = RejectedRows(
            attempt=key,
            key="k",
            seen=replace(seen, position=position),
            staging="unused.staging",
            observe_sources=lambda: run.observe_sources(workshop.catalog),
            require_unchanged=lambda: None,
        )
        return len(rows.corrected(workshop.spark, workshop.catalog, None, catalog_name=workshop.catalog.name))

    assert look(seen.position) == 2
    assert look(replace(seen.position, batch=0)) == 1, "a later batch has rejected the other one"
    with monkeypatch.context() as patch:
        patch.setattr(rejected_rows, "MOST_RESOLVED", 1)
        assert look(seen.position) == 1
    with pytest.raises(IntervalChangedError, match=rf"does not have the rejected rows of batch 7 of {stream} yet"):
        look(replace(seen.position, batch=7))


@pytest.mark.full
def test_a_follower_that_cannot_be_replaced_keeps_its_source_as_it_is(workshop: Workshop) -> None:
    stream, name = declare_read_stream(workshop), f"g{workshop.namespace}"
    gold = workshop.declare_table("gold", COLUMNS)
    reading = {"table": workshop.table_name("target"), "on_overwrite": "skip", "on_delete": "skip"}
    workshop.declare_stream(
        name,
        sql="SELECT * FROM rows",
        inputs={"rows": {"stream": {"iceberg": reading}}},
        outputs={"copies": {"iceberg": {"table": gold}}},
        backfill={"column": "at", "reads": {"rows": "at"}, "margin": "1 hour", "follows": ["rows"]},
    )
    workshop.run(name)
    workshop.declare_stream(
        f"r{workshop.namespace}",
        sql="SELECT * FROM rows",
        inputs={"rows": {"stream": {"iceberg": {"table": gold}}}},
        outputs={"copies": {"iceberg": {"table": workshop.declare_table("more", COLUMNS)}}},
    )
    workshop.append("target", [row(8, day=5, word="forged")])
    workshop.run(name)
    head = workshop.table("target").metadata.current_snapshot_id

    with pytest.raises(UnpublishableError, match=r"\(input rows\) stops at the overwrite"):
        backfill(workshop, stream, allows_fewer=True)

    assert workshop.table("target").metadata.current_snapshot_id == head


@pytest.mark.full
def test_an_interval_that_changes_before_every_attempt_is_given_up(
    workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfills, "MOST_ATTEMPTS", 1)
    stream = declare_read_stream(workshop)
    change = at_step(CrashPoint.STAGED, lambda: workshop.append("target", [row(7, day=5, word="foreign")]))
    workshop.append("target", [row(8, day=5, word="forged")])

    with pytest.raises(StarvedError, match="or an input of it, changed 1 times"):
        backfill(workshop, stream, allows_fewer=True, reached=change)

    (attempt,) = recent_attempts(workshop.ledger, stream, limit=10)
    assert attempt.state is BackfillState.CHANGED_MEANWHILE
    assert {7, 8} <= {one["id"] for one in workshop.rows("target")}


@pytest.mark.full
def test_what_begins_behind_the_fence_of_a_replay_stops_it(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    """A backfill may publish the same records, and its rows would count as those of before the fence."""
    dividing, name = divide(workshop), name_in(workshop)
    monkeypatch.setattr(replay_run, "_MOST_ATTEMPTS", 1)
    foreign = at_step(CrashPoint.STAGED, lambda: dividing.append("target", [{"id": 99, "word": "foreign"}]))
    with pytest.raises(StarvedError, match="changed 1 times while rejected records"):
        run_of(dividing, reached=foreign).work()

    def begin() -> None:
        begin_attempt(dividing.ledger, name, start=NOW, end=NOW, launched_by="a test", identity="own")

    with pytest.raises(UnpublishableError, match=rf"A backfill of {name} has not ended"):
        run_of(dividing, reached=at_step(CrashPoint.PLANNED, begin)).work()

    assert [one["id"] for one in dividing.rows("target")] == [11, 12, 13, 99]
    assert set(resolutions(dividing).values()) == {None}


@pytest.mark.full
def test_a_shadow_that_never_catches_up_is_not_swapped(workshop: Workshop, monkeypatch: pytest.MonkeyPatch) -> None:
    name = run_wrong_copy(workshop)
    monkeypatch.setattr(refresh_run, "MOST_INCREMENTS", 1)
    monkeypatch.setattr(refresh_run, "CAUGHT_UP_ROWS", len(COPIED) - 1)

    with pytest.raises(UnpublishableError, match=r"increment 1 still read 6 rows, .* 5 are the limit"):
        refresh(workshop, name)

    assert workshop.rows("target") == wrong(COPIED)
    assert shadow_tables(workshop, name)


@pytest.mark.parametrize(
    ("kind", "low", "high"),
    [
        ("string", "w1", "w9"),
        pytest.param("decimal(9,2)", Decimal("1.00"), Decimal("9.00"), marks=pytest.mark.full),
        pytest.param("long", 1, 9, marks=pytest.mark.full),
    ],
)
def test_what_a_replay_gives_is_looked_for_in_files_that_may_hold_it(
    workshop: Workshop, kind: str, low: Any, high: Any
) -> None:
    """A file with other values is not even opened."""
    workshop.declare_table("target", {"value": kind})
    workshop.append("target", [{"value": high}])
    (other,) = (task.file.file_path for task in workshop.table("target").scan().plan_files())
    workshop.append("target", [{"value": low}, {"value": None}])
    workshop.table("target").io.delete(other)
    held = workshop.spark.table(f"{workshop.settings.catalog.name}.{workshop.table_name('target')}")
    given = workshop.spark.createDataFrame([(low,)], held.schema)

    computed = Computed(rows=given, count=1, again={})

    assert require_not_visible("s", computed, held, allows_repeated=True) == 1
