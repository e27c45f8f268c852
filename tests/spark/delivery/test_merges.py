"""Merged batches become visible once, in the order of their keys, and leave the newest row of each key."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.types import StringType
from tests.faults.guards import Guard, without
from tests.fixtures.soft_references import clear_soft_references
from tests.fixtures.streams_of_tables import (
    COLUMNS,
    all_of_them,
    blind_to_what_is_there,
    reading,
    stopping_when_staged,
    writing,
)
from tests.fixtures.workshop import Workshop

from sluice.errors import DeliveryError, StaleTokenError, StarvedError
from sluice.publication.checked_commit import RacePolicy
from sluice.publication.crash_points import CrashPoint
from sluice.publication.mark_moves import take_over
from sluice.publication.marks import load_target_state
from sluice.publication.staged_batch import StagedOutput
from sluice.publication.staging_table import load_staging_table, staged_batches, staged_files
from sluice_spark.delivery.publisher import FencedMerge
from sluice_spark.run.stop_request import StopRequest
from sluice_spark.sinks.iceberg import IcebergTarget

MERGE = "sluice_spark.delivery.publisher"


@pytest.fixture
def stream_name(workshop: Workshop) -> str:
    """A stream that no other test has: the ledger is shared."""
    return f"s{workshop.namespace}"


@pytest.fixture
def merging(workshop: Workshop, stream_name: str) -> Workshop:
    """A stream that keeps the newest row of each key."""
    columns = {"order": "long", "at": "long", "word": "string"}  # a column named like a word of SQL, knowingly
    source, target = workshop.declare_table("source", columns), workshop.declare_table("target", columns)
    workshop.declare_stream(
        stream_name,
        sql="SELECT `order`, at, word FROM records",
        inputs=reading(source),
        outputs=writing(target, mode="merge", keys=["order"], ordering_column="at"),
    )
    return workshop


@pytest.mark.full  # every run: a change feed is merged (`test_change_feeds.py`)
def test_a_merge_keeps_the_newest_row_of_each_key(merging: Workshop, stream_name: str) -> None:
    merging.append("source", [{"order": 1, "at": 1, "word": "a"}, {"order": 2, "at": 1, "word": "b"}])
    merging.run(stream_name)
    merging.append(
        "source",
        [
            {"order": 2, "at": 3, "word": "newest"},
            {"order": 2, "at": 2, "word": "newer"},
            {"order": 3, "at": None, "word": "unordered"},
            {"order": 3, "at": 0, "word": "ordered"},
        ],
    )

    (batch,) = merging.run(stream_name).batches

    assert merging.rows("target") == [
        {"order": 1, "at": 1, "word": "a"},
        {"order": 2, "at": 3, "word": "newest"},
        {"order": 3, "at": 0, "word": "ordered"},
    ]
    (merge,) = [
        snapshot
        for snapshot in merging.table("target").snapshots()
        if snapshot.snapshot_id == batch.snapshot_ids["copies"]
    ]
    assert merge.summary is not None
    assert merge.summary["sluice.publication-key"] == f"{stream_name}:1:1"
    assert batch.published_rows == {"copies": 4}


def is_merge(snapshot: Snapshot) -> bool:
    """Whether a snapshot made a batch visible; the others moved a mark."""
    return snapshot.summary is not None and "sluice.publication-key" in snapshot.summary.additional_properties


@pytest.mark.full  # every run has it without the mark, which is harder
def test_a_merge_that_is_run_again_changes_nothing(merging: Workshop, stream_name: str) -> None:
    merging.append("source", [{"order": 1, "at": 5, "word": "x"}, {"order": 1, "at": 5, "word": "x"}])
    merging.run(stream_name)
    before = merging.rows("target")
    merging.forget_last_commit(stream_name)

    merging.run(stream_name)

    assert merging.rows("target") == before
    assert len(before) == 1
    merges = [snapshot for snapshot in merging.table("target").snapshots() if is_merge(snapshot)]
    assert len(merges) == 1


@pytest.mark.full
def test_a_merge_without_the_mark_ends_in_the_same_rows(merging: Workshop, stream_name: str) -> None:
    """The merge itself is re-runnable: the same batch leaves the same rows, whichever way it was split into tasks."""
    merging.append("source", [{"order": 1, "at": at, "word": word} for at, word in ((4, "x"), (5, "y"), (5, "y"))])
    merging.run(stream_name)
    before = merging.rows("target")
    merging.forget_last_commit(stream_name)

    with (
        blind_to_what_is_there(),
        patch(f"{MERGE}.batches_to_publish", side_effect=all_of_them),
    ):
        merging.run(stream_name)

    assert merging.rows("target") == before


def test_different_rows_that_tie_stop_the_batch(merging: Workshop, stream_name: str) -> None:
    merging.append("source", [{"order": 1, "at": 5, "word": word} for word in ("x", "x", "y")])

    table = merging.table_name("target")
    tie = (
        f'{table}: two different rows of a batch have the key {{"order":1}} and the same at, so that none is the newest'
    )
    with pytest.raises(DeliveryError, match=tie):
        merging.run(stream_name)

    assert merging.rows("target") == []


@pytest.mark.full
def test_a_column_that_is_added_while_a_stream_merges_keeps_its_values(merging: Workshop, stream_name: str) -> None:
    merging.append("source", [{"order": 1, "at": 1, "word": "a"}])
    merging.run(stream_name)
    merging.append("source", [{"order": 1, "at": 2, "word": "b"}, {"order": 2, "at": 2, "word": "c"}])
    target = merging.table_name("target")

    def widened(here: CrashPoint) -> None:
        if here is CrashPoint.STAGED:
            with merging.table("target").update_schema() as update:
                update.add_column("note", StringType())
            merging.append("target", [{"order": 9, "at": 9, "word": "theirs", "note": "kept"}])

    merging.run(stream_name, reached=widened)

    assert [tuple(row.values()) for row in merging.rows("target")] == [
        (1, 2, "b", None),
        (2, 2, "c", None),
        (9, 9, "theirs", "kept"),
    ], target


@pytest.mark.full  # every run has rows that tie, here and at random
def test_two_rows_of_a_key_are_refused_when_nothing_orders_them(workshop: Workshop, stream_name: str) -> None:
    source, target = workshop.declare_table("source", COLUMNS), workshop.declare_table("target", COLUMNS)
    workshop.declare_stream(
        stream_name,
        sql="SELECT id, word FROM records",
        inputs=reading(source),
        outputs=writing(target, mode="merge", keys=["id"]),
    )
    workshop.append("source", [{"id": 8, "word": "a"}, {"id": 8, "word": "b"}])

    with pytest.raises(DeliveryError, match=f'{target}: two rows of a batch have the key {{"id":8}}'):
        workshop.run(stream_name)

    assert workshop.rows("target") == []


@pytest.fixture
def by_region(workshop: Workshop, stream_name: str) -> Workshop:
    """A stream that merges into a table of regions, each a partition and part of the key; batch 0 is merged."""
    columns = {"id": "long", "region": "string", "word": "string"}
    source = workshop.declare_table("source", columns)
    target = workshop.declare_table("target", columns, partitioning=[{"column": "region"}])
    workshop.declare_stream(
        stream_name,
        sql="SELECT id, region, word FROM records",
        inputs=reading(source),
        outputs=writing(target, mode="merge", keys=["id", "region"]),
    )
    workshop.append("source", [{"id": 1, "region": "here", "word": "old"}])
    workshop.run(stream_name)
    workshop.append("source", [{"id": 1, "region": "here", "word": "new"}])
    return workshop


class Rival:
    """Another writer who adds rows right after the mark was checked, so often. places: how often it was checked."""

    def __init__(self, workshop: Workshop, region: str, *, times: int = 1) -> None:
        self.workshop, self.region, self.times = workshop, region, times
        self.places = 0

    def __call__(self, here: CrashPoint) -> None:
        if here is CrashPoint.CHECKED:
            self.places += 1
            if self.places <= self.times:
                row = {"id": 90 + self.places, "region": self.region, "word": "theirs"}
                self.workshop.append("target", [row])


@pytest.mark.full  # every run: a driver that stops there (`test_zombies.py`)
def test_rows_that_others_add_to_the_same_partition_refuse_a_merge_and_it_is_done_again(
    by_region: Workshop, stream_name: str
) -> None:
    rival = Rival(by_region, "here", times=2)

    by_region.run(stream_name, reached=rival)

    assert rival.places == 3
    assert [(row["id"], row["word"]) for row in by_region.rows("target")] == [
        (1, "new"),
        (91, "theirs"),
        (92, "theirs"),
    ]


@pytest.mark.full  # every run: a driver that stops there (`test_zombies.py`)
@pytest.mark.parametrize("guard", [None, Guard.HELD_TABLE])
def test_a_garbage_collection_after_the_check_does_not_open_the_fence(
    by_region: Workshop, stream_name: str, guard: Guard | None
) -> None:
    """With the guard the MERGE looks at the table that was checked, and is refused; without it, at a newer one."""
    rival = Rival(by_region, "here")

    def rival_and_collection(here: CrashPoint) -> None:
        rival(here)
        if here is CrashPoint.CHECKED:
            clear_soft_references(by_region.spark)

    with without(guard):
        by_region.run(stream_name, reached=rival_and_collection)

    assert rival.places == (2 if guard is None else 1)
    assert [(row["id"], row["word"]) for row in by_region.rows("target")] == [(1, "new"), (91, "theirs")]


@pytest.mark.full
def test_the_rows_are_read_before_the_check(by_region: Workshop, stream_name: str) -> None:
    """What is read between the check and the commit is time for others to commit in: not even the files are needed."""
    names = StagedOutput(stream=stream_name, output="copies", target=by_region.table_name("target"))

    def staged_files_are_gone(here: CrashPoint) -> None:
        if here is CrashPoint.CHECKED:
            staging = load_staging_table(by_region.catalog, names)
            newest = staged_batches(staging, stream=stream_name, output="copies")[-1]
            for file in staged_files(staging, [newest])[newest.snapshot_id]:
                staging.io.delete(file.file_path)

    by_region.run(stream_name, reached=staged_files_are_gone)

    assert [(row["id"], row["word"]) for row in by_region.rows("target")] == [(1, "new")]


@pytest.mark.full
def test_rows_that_others_add_elsewhere_do_not_disturb_a_merge(by_region: Workshop, stream_name: str) -> None:
    rival = Rival(by_region, "there")

    by_region.run(stream_name, reached=rival)

    assert rival.places == 1
    assert [(row["id"], row["word"]) for row in by_region.rows("target")] == [(1, "new"), (91, "theirs")]


def iceberg_target(workshop: Workshop, stream_name: str) -> IcebergTarget:
    """What the stream merges into."""
    return IcebergTarget(
        stream=stream_name,
        output="copies",
        declared=workshop.stream(stream_name).declaration.outputs["copies"].iceberg or pytest.fail("no table"),
        catalog=workshop.settings.catalog.name,
    )


@pytest.mark.full
def test_a_newer_driver_s_merge_refuses_the_older_one_s(by_region: Workshop, stream_name: str) -> None:
    """A driver checks and stops there; the next one takes over, merges this batch and the next; the first goes on."""
    names = iceberg_target(by_region, stream_name)

    def overtaken(here: CrashPoint) -> None:
        if here is CrashPoint.CHECKED:
            catalog = by_region.catalog
            token = load_target_state(catalog, names.names).position(names.names).token + 1
            take_over(catalog, names.names, token=token)
            batches = staged_batches(load_staging_table(catalog, names.names), stream=stream_name, output="copies")
            newer = FencedMerge(spark=by_region.spark, catalog=catalog, token=token)
            newer.publish(names, [batch for batch in batches if batch.summary.key.batch == 1])
            by_region.spark.sql(f"UPDATE {names.identifier} SET word = 'newest' WHERE id = 1")  # noqa: S608  # it is quoted

    with pytest.raises(StaleTokenError, match="a newer run has taken the stream over"):
        by_region.run(stream_name, reached=overtaken)

    assert [(row["id"], row["word"]) for row in by_region.rows("target")] == [(1, "newest")]


@pytest.mark.full  # every run merges beside others that add rows
def test_what_others_leave_of_a_group_may_be_a_batch_without_rows(workshop: Workshop, stream_name: str) -> None:
    source, target = workshop.declare_table("source", COLUMNS), workshop.declare_table("target", COLUMNS)
    inputs = reading(source)
    inputs["records"]["stream"]["iceberg"]["max_files_per_batch"] = 1
    workshop.declare_stream(
        stream_name,
        sql="SELECT id, word FROM records WHERE word <> 'nothing'",
        inputs=inputs,
        outputs=writing(target, mode="merge", keys=["id"], publish_every="1 hour"),
        mode="continuous",
        trigger={"processing_time": "100 milliseconds"},
    )
    for number, word in enumerate(("something", "nothing")):
        workshop.append("source", [{"id": number, "word": word}])
    merged = iceberg_target(workshop, stream_name)
    groups: list[list[int]] = []
    stop_when_staged = stopping_when_staged(stop := StopRequest(), batches=2)

    def publish_the_first(here: CrashPoint) -> None:
        stop_when_staged(here)
        if here is CrashPoint.CHECKED and not groups:
            catalog = workshop.catalog
            token = load_target_state(catalog, merged.names).position(merged.names).token
            staged = staged_batches(load_staging_table(catalog, merged.names), stream=stream_name, output="copies")
            groups.append([batch.summary.key.batch for batch in staged])
            FencedMerge(spark=workshop.spark, catalog=catalog, token=token).publish(merged, staged[:1])

    workshop.run(stream_name, stop=stop, reached=publish_the_first)

    assert groups == [[0, 1]]
    assert workshop.rows("target") == [{"id": 0, "word": "something"}]
    position = load_target_state(workshop.catalog, merged.names).position(merged.names)
    assert position.batch == 1


@pytest.mark.full  # it shows what the test of the fence is worth
def test_without_the_fence_the_older_driver_would_win(by_region: Workshop, stream_name: str) -> None:
    """The guard is taken out: the MERGE looks at the table anew after the check, as any session's would."""

    def looking_anew(merge: FencedMerge, *arguments: Any) -> None:
        for table in ("source", "target"):
            merge._fenced_session().sql(
                f"REFRESH TABLE {by_region.settings.catalog.name}.{by_region.table_name(table)}"
            )
        plain(merge, *arguments)

    plain, rival = FencedMerge._merge, Rival(by_region, "here")
    with patch.object(FencedMerge, "_merge", looking_anew):
        by_region.run(stream_name, reached=rival)

    assert rival.places == 1  # the rows that came after the check refused nothing


@pytest.mark.full
def test_a_table_that_never_rests_starves_a_merge(by_region: Workshop, stream_name: str) -> None:
    rival = Rival(by_region, "here", times=100)
    impatient = patch(f"{MERGE}.MERGE_RACES", RacePolicy(attempts=2, longest_wait_seconds=0.1))

    with impatient, pytest.raises(StarvedError, match=f"Batch {stream_name}:1:1 was refused 2 times"):
        by_region.run(stream_name, reached=rival)
