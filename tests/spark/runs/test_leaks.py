"""A driver that works batch after batch, or item after item, keeps nothing of them; `make drill` lets it do so for
1,500 batches, and for 300 items.

Every test run has what the end of an item closes (`test_item_sessions.py`).
"""

from __future__ import annotations

from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.faults.long_run import declare
from tests.fixtures.item_leaks import ALLOWED_GROWTH, ItemWatch, MixedItems
from tests.fixtures.leaks import LeakWatch, stopping_after
from tests.fixtures.workshop import Workshop

from sluice.ledger.batches import BatchObservation, PublicationKey
from sluice_spark.session.item_sessions import ItemSessions

BATCHES = 16

MOST_GROWTH = {"views": 0.0, "kept_frames": 1.0, "python_files_held": 6.0}
"""By how much each may grow from the second quarter of so few batches to the last: what each batch left behind would
come to eight. Memory, and the files of a store of state, tell nothing so soon."""

MOST_GROWTH_OF_ITEMS = {
    "jvm_files": 8.0,
    "python_files_held": 6.0,
    "catalog_threads": 2.0,
    "python_threads": 2.0,
    "callback_objects": 2.0,
    "listeners": 1.0,
    "views": 0.0,
    "kept_frames": 0.0,
}
"""By how much each may grow over 18 items, of which half are increments: what each of those left behind would come to
nine. Memory and pools of threads tell nothing so soon."""


@pytest.mark.full  # as items, of which half are increments
def test_batches_leave_nothing_open_and_nothing_cached(workshop: Workshop) -> None:
    stream = f"s{workshop.namespace}"
    # A batch is under way at each look: only many looks tell.
    watch = LeakWatch(spark=workshop.spark, every=1, collects=False)
    declare(workshop, stream)

    workshop.run(stream, stop_when=stopping_after(watch, BATCHES))

    grown = {name: watch.growth()[name] for name in MOST_GROWTH}
    assert all(grown[name] <= most for name, most in MOST_GROWTH.items()), (grown, watch.samples)


@pytest.mark.full  # the watch of those below and of the drill
def test_a_view_a_frame_and_files_that_each_batch_leaves_behind_are_seen(spark: SparkSession, tmp_path: Path) -> None:
    watch = LeakWatch(spark=spark, every=1, collects=False)
    with ExitStack() as left_behind:
        for number in range(8):
            rows = spark.range(1).selectExpr(f"id + {number} AS id").persist()
            rows.count()
            left_behind.callback(rows.unpersist, blocking=True)
            rows.createOrReplaceTempView(f"left_behind_{number}")
            left_behind.callback(spark.catalog.dropTempView, f"left_behind_{number}")
            for name in range(5):
                left_behind.enter_context((tmp_path / f"{number}-{name}").open("w"))
            watch.see(_observation(number))

    assert {"views", "kept_frames", "python_files_held"} <= watch.leaks().keys()


@pytest.mark.full
def test_items_leave_nothing_open_in_their_application(workshop: Workshop) -> None:
    items, watch = _mixed_items(workshop), ItemWatch(workshop.spark)
    items.run(8)  # the first of each kind opens what all of them share
    watch.see(8)

    too_much: dict[str, float] = {}
    for last in (26, 44, 62):  # pools of connections may grow in one round; what items leave behind grows in every one
        items.run(18)
        watch.see(last)
        grown = watch.growth(early=(last - 18, last - 18), late=(last, last))
        too_much = {name: grown[name] for name, most in MOST_GROWTH_OF_ITEMS.items() if grown[name] > most}
        if not too_much:
            break
    assert not too_much, watch.samples


@pytest.mark.drill  # every test run has a sample of the items
def test_what_an_application_holds_levels_off_over_300_items(workshop: Workshop) -> None:
    items, watch = _mixed_items(workshop), ItemWatch(workshop.spark)
    for number in range(10, 310, 10):
        items.run(10)
        watch.see(number)

    grown = watch.growth(early=(50, 100), late=(200, 300))
    too_much = {name: grown[name] for name, most in ALLOWED_GROWTH.items() if grown[name] > most}
    assert not too_much, watch.samples


def _mixed_items(workshop: Workshop) -> MixedItems:
    sessions = ItemSessions(name="tests", spark=workshop.spark)
    items = MixedItems(workshop=workshop, sessions=sessions)
    items.declare()
    return items


def _observation(number: int) -> BatchObservation:
    return BatchObservation(
        key=PublicationKey(stream="leaking", generation=1, batch=number),
        run_id="leaking",
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        duration_ms=1,
        input_rows=0,
        published_rows={},
    )
