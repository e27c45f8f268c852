"""Batches that are published together, and batches that replace what a table holds."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import pytest
from tests.fixtures.streams_of_tables import COLUMNS, dying_at, reading, stopping_when_staged, writing
from tests.fixtures.workshop import Workshop

from sluice.errors import UnpublishableError
from sluice.publication.crash_points import CrashPoint
from sluice.stored_keys import FIRST_BATCH
from sluice_spark.run.stop_request import StopRequest


@pytest.fixture
def stream_name(workshop: Workshop) -> str:
    """A stream that no other test has: the ledger is shared."""
    return f"s{workshop.namespace}"


def declare(workshop: Workshop, name: str, sql: str, *, source: Any = None, **output: Any) -> None:
    """A stream from the table `source` into the table `target`. source: more of the source, when it is continuous."""
    read = reading(workshop.declare_table("source", COLUMNS))
    how: dict[str, Any] = {}
    if source is not None:
        read["records"]["stream"]["iceberg"] |= source
        how = {"mode": "continuous", "trigger": {"processing_time": "100 milliseconds"}}
    target = workshop.table_name("target")
    workshop.declare_stream(name, sql=sql, inputs=read, outputs=writing(target, **output), **how)


def publications(workshop: Workshop) -> list[dict[str, str]]:
    """The summaries of the snapshots that made batches visible, in order."""
    summaries = [snapshot.summary for snapshot in workshop.table("target").snapshots() if snapshot.summary]
    found = [summary.additional_properties for summary in summaries]
    return [summary for summary in found if "sluice.publication-key" in summary]


@pytest.mark.full  # every run has groups without Spark (`test_overlapped_publication.py`)
def test_batches_wait_and_become_visible_together(workshop: Workshop, stream_name: str) -> None:
    workshop.declare_table("target", COLUMNS)
    declare(workshop, stream_name, "SELECT id, word FROM records", publish_every="1 hour")
    workshop.append("source", [{"id": 1, "word": "one"}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream_name, reached=dying_at(CrashPoint.STAGED))
    assert workshop.rows("target") == []  # and staged it is
    workshop.append("source", [{"id": 2, "word": "two"}])

    result = workshop.run(stream_name)

    assert workshop.rows("target") == [{"id": 1, "word": "one"}, {"id": 2, "word": "two"}]
    assert {batch.key.batch: dict(batch.published_rows) for batch in result.batches} == {
        0: {"copies": 1},
        1: {"copies": 1},
    }
    assert [summary["sluice.publication-key"] for summary in publications(workshop)] == [
        f"{stream_name}:1:0",
        f"{stream_name}:1:1",
    ]


@pytest.mark.full  # every run puts files together without Spark (`test_publishing.py`)
def test_a_group_is_one_commit_with_the_small_files_put_together(workshop: Workshop, stream_name: str) -> None:
    workshop.declare_table("target", COLUMNS)
    one_by_one = {"max_files_per_batch": 1}
    declare(workshop, stream_name, "SELECT id, word FROM records", source=one_by_one, publish_every="1 hour")
    for number in range(3):
        workshop.append("source", [{"id": number, "word": "x"}])

    result = workshop.run(stream_name, stop=(stop := StopRequest()), reached=stopping_when_staged(stop, batches=3))

    assert [row["id"] for row in workshop.rows("target")] == [0, 1, 2]
    (published,) = publications(workshop)
    assert (published["sluice.publication-key"], published[FIRST_BATCH]) == (f"{stream_name}:1:2", "0")
    assert (published["sluice.rows"], published["added-data-files"]) == ("3", "1")
    assert [batch.key.batch for batch in result.batches] == [0, 1, 2]
    assert len({batch.snapshot_ids["copies"] for batch in result.batches}) == 1


@pytest.mark.full  # every run has one that is due, and fails
def test_a_group_becomes_visible_when_it_is_due_without_new_input(workshop: Workshop, stream_name: str) -> None:
    workshop.declare_table("target", COLUMNS)
    declare(workshop, stream_name, "SELECT id, word FROM records", source={}, publish_every="1 second")
    workshop.append("source", [{"id": 1, "word": "x"}])

    workshop.run(stream_name, stop_after_batches=1)  # which it hears of when the batch is visible

    assert workshop.rows("target") == [{"id": 1, "word": "x"}]


def test_a_publication_that_fails_on_its_own_thread_ends_the_run_by_name(workshop: Workshop, stream_name: str) -> None:
    workshop.declare_table("target", COLUMNS)
    declare(workshop, stream_name, "SELECT id, word FROM records", source={}, publish_every="1 second")
    workshop.append("source", [{"id": 1, "word": "x"}])

    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream_name, reached=dying_at(CrashPoint.CHECKED))

    assert workshop.rows("target") == []


@pytest.mark.full  # every run has it without Spark (`test_overlapped_publication.py`)
def test_a_batch_becomes_visible_while_spark_works_on_the_next(workshop: Workshop, stream_name: str) -> None:
    workshop.declare_table("target", COLUMNS)
    declare(workshop, stream_name, "SELECT id, word FROM records", source={"max_files_per_batch": 1})
    for number in range(4):
        workshop.append("source", [{"id": number, "word": "x"}])
    staged = itertools.count(1)
    second_is_staged = threading.Event()
    ending = stopping_when_staged(stop := StopRequest(), batches=4)

    def reached(point: CrashPoint) -> None:
        if point is CrashPoint.STAGED and next(staged) == 2:
            second_is_staged.set()
        if point is CrashPoint.CHECKED:
            assert second_is_staged.wait(60), "the second batch waited for the publication of the first"
        ending(point)

    workshop.run(stream_name, stop=stop, reached=reached)

    assert [row["id"] for row in workshop.rows("target")] == [0, 1, 2, 3]
    assert len(publications(workshop)) == 4


@pytest.mark.full  # every run replaces partitions, and tables without Spark (`test_replacing.py`)
def test_complete_replaces_the_table(workshop: Workshop, stream_name: str) -> None:
    workshop.declare_table("target", {"word": "string", "words": "long"})
    declare(workshop, stream_name, "SELECT word, count(*) AS words FROM records GROUP BY word", mode="complete")
    workshop.append("source", [{"id": 1, "word": "a"}, {"id": 2, "word": "b"}])
    workshop.run(stream_name)
    workshop.append("source", [{"id": 3, "word": "b"}])

    workshop.run(stream_name)
    workshop.forget_last_commit(stream_name)
    workshop.run(stream_name)

    assert workshop.rows("target") == [{"word": "a", "words": 1}, {"word": "b", "words": 2}]
    assert len(publications(workshop)) == 2
    assert FIRST_BATCH not in publications(workshop)[-1]


def test_partitions_that_a_batch_brings_are_replaced(workshop: Workshop, stream_name: str) -> None:
    workshop.declare_table("target", COLUMNS, partitioning=[{"column": "word"}])
    declare(workshop, stream_name, "SELECT id, word FROM records", mode="overwrite_partitions")
    workshop.append("source", [{"id": 1, "word": "a"}, {"id": 2, "word": "b"}])
    workshop.run(stream_name)
    workshop.append("source", [{"id": 3, "word": "b"}])
    workshop.run(stream_name)
    workshop.forget_last_commit(stream_name)

    workshop.run(stream_name)

    assert workshop.rows("target") == [{"id": 1, "word": "a"}, {"id": 3, "word": "b"}]
    assert len(publications(workshop)) == 2


@pytest.mark.full  # every run replaces other partitions
def test_partitions_of_a_uuid_are_found_and_replaced(workshop: Workshop, stream_name: str) -> None:
    """Writers in Java and pyiceberg order a uuid differently, so the bounds of manifests are of no use."""
    workshop.declare_table("target", {"id": "long", "word": "uuid"}, partitioning=[{"column": "word"}])
    declare(workshop, stream_name, "SELECT id, word FROM records", mode="overwrite_partitions")
    words = ("00000000-0000-0000-0000-000000000001", "ffffffff-0000-4000-8000-00000000000a")
    for first in (0, 10):
        rows = [{"id": first + number, "word": word} for number, word in enumerate(words)]
        workshop.append("source", rows)
        workshop.run(stream_name)

    assert [row["id"] for row in workshop.rows("target")] == [10, 11]


@pytest.mark.full
def test_after_a_change_of_the_partitioning_one_rewrite_lets_partitions_be_replaced(
    workshop: Workshop, stream_name: str
) -> None:
    target = workshop.declare_table("target", COLUMNS, partitioning=[{"column": "word"}])
    declare(workshop, stream_name, "SELECT id, word FROM records", mode="overwrite_partitions")
    workshop.append("source", [{"id": 1, "word": "aa"}, {"id": 2, "word": "b"}])
    workshop.run(stream_name)
    part = {"column": "word", "transform": "truncate", "width": 1}
    workshop.declare_table("target", COLUMNS, partitioning=[part])
    workshop.append("source", [{"id": 3, "word": "ab"}])
    with pytest.raises(UnpublishableError, match="rewrite_data_files") as refused:
        workshop.run(stream_name)

    advised = refused.value.next_step.partition("Spark: ")[2].removesuffix(".")
    workshop.spark.sql(advised.replace("<catalog>", workshop.settings.catalog.name))
    workshop.run(stream_name)

    assert workshop.rows("target") == [{"id": 2, "word": "b"}, {"id": 3, "word": "ab"}], target


def test_a_table_without_partitions_is_refused_before_anything_is_staged(workshop: Workshop, stream_name: str) -> None:
    workshop.declare_table("target", COLUMNS)
    declare(workshop, stream_name, "SELECT id, word FROM records", mode="overwrite_partitions")
    workshop.append("source", [{"id": 1, "word": "a"}])

    with pytest.raises(UnpublishableError, match="has no partitions to overwrite"):
        workshop.run(stream_name)
