"""The thread that publishes what is staged: when a batch is due, what waits for it, and what a failure stops."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import pytest

from sluice_spark.delivery.publisher import no_tables
from sluice_spark.delivery.staged_publication import OverlappedPublication

if TYPE_CHECKING:
    from pyiceberg.table import Table as PyIcebergTable

    from sluice_spark.delivery.publisher import StagedByOutput

HOUR_SECONDS = 3600.0


class Table:
    """Where batches become visible, together or alone, when they may. A batch is one output and its number."""

    def __init__(self) -> None:
        self.commits: list[list[str]] = []
        self.may_commit = threading.Event()
        self.has_begun = threading.Event()
        self.refusal: Exception | None = None
        self.staging: list[Mapping[str, object]] = []

    def publish(self, batches: Sequence[StagedByOutput], staging: Mapping[str, object]) -> None:
        self.has_begun.set()
        assert self.may_commit.wait(30)
        if self.refusal is not None:
            raise self.refusal
        self.commits.append([next(iter(batch)) for batch in batches])
        self.staging.append(staging)


@pytest.fixture
def table() -> Table:
    """One that nothing can be committed to yet."""
    return Table()


def overlapped(
    table: Table, *, every_seconds: float | None = None, failed: threading.Event | None = None
) -> OverlappedPublication:
    """A publication into the table."""
    told = failed or threading.Event()
    return OverlappedPublication(table.publish, every_seconds=every_seconds, on_failure=told.set)


def batch(number: int) -> StagedByOutput:
    return cast("StagedByOutput", {f"batch {number}": None})


def test_a_batch_waits_until_the_one_before_it_is_visible(table: Table) -> None:
    with overlapped(table) as publication:
        publication.add(batch(0), no_tables)
        assert table.has_begun.wait(30)
        next_one = threading.Thread(target=publication.add, args=(batch(1), no_tables))
        next_one.start()
        next_one.join(0.3)
        assert next_one.is_alive()
        table.may_commit.set()
        next_one.join(30)
        assert table.commits[0] == ["batch 0"]
    assert table.commits == [["batch 0"], ["batch 1"]]


def test_a_group_becomes_visible_together_at_the_end_of_the_run(table: Table) -> None:
    table.may_commit.set()
    with overlapped(table, every_seconds=HOUR_SECONDS) as publication:
        for number in range(3):
            publication.add(batch(number), no_tables)
        assert table.commits == []
    assert table.commits == [["batch 0", "batch 1", "batch 2"]]


def test_what_is_staged_during_a_publication_is_of_the_next_group(table: Table) -> None:
    """It is published from the tables that were loaded after the last of the group was staged."""
    first, second, third = (cast("Mapping[str, PyIcebergTable]", {"copies": name}) for name in ("1", "2", "3"))
    with overlapped(table, every_seconds=0.01) as publication:
        publication.add(batch(0), first)
        assert table.has_begun.wait(30)
        publication.add(batch(1), second)
        publication.add(batch(2), third)
        table.may_commit.set()
    assert table.commits == [["batch 0"], ["batch 1", "batch 2"]]
    assert table.staging == [first, third]


def test_a_batch_without_loaded_tables_is_not_published_from_those_of_an_earlier_one(table: Table) -> None:
    earlier = cast("Mapping[str, PyIcebergTable]", {"copies": "1"})
    with overlapped(table, every_seconds=HOUR_SECONDS) as publication:
        publication.add(batch(0), earlier)
        publication.add(batch(1), no_tables)
        table.may_commit.set()
    assert table.staging == [no_tables]


def test_a_failure_is_reported_stops_further_batches_and_is_the_runs(table: Table) -> None:
    failed = threading.Event()
    table.refusal = OSError("refused")
    table.may_commit.set()

    def run() -> None:
        with overlapped(table, failed=failed) as publication:
            publication.add(batch(0), no_tables)
            assert failed.wait(30)
            with pytest.raises(OSError, match="refused"):
                publication.add(batch(1), no_tables)

    with pytest.raises(OSError, match="refused"):
        run()
    assert table.commits == []


def test_a_batch_that_waits_hears_of_the_failure_before_it(table: Table) -> None:
    table.refusal = OSError("refused")
    heard: list[Exception] = []

    def add_next(publication: OverlappedPublication) -> None:
        try:
            publication.add(batch(1), no_tables)
        except OSError as error:
            heard.append(error)

    def run() -> None:
        with overlapped(table) as publication:
            publication.add(batch(0), no_tables)
            assert table.has_begun.wait(30)
            next_one = threading.Thread(target=add_next, args=(publication,))
            next_one.start()
            table.may_commit.set()
            next_one.join(30)

    with pytest.raises(OSError, match="refused"):
        run()
    assert heard == [table.refusal]


def test_a_run_that_failed_leaves_what_waits_to_the_next(table: Table) -> None:
    table.may_commit.set()

    def run() -> None:
        with overlapped(table, every_seconds=HOUR_SECONDS) as publication:
            publication.add(batch(0), no_tables)
            raise RuntimeError("the query")

    with pytest.raises(RuntimeError, match="the query"):
        run()
    assert table.commits == []


def test_the_failure_of_a_publication_outranks_that_of_the_query_beside_it(table: Table) -> None:
    """After a take-over both see it: the one finds a newer token, the other files of another query."""
    table.refusal = OSError("refused")

    def run() -> None:
        with overlapped(table) as publication:
            publication.add(batch(0), no_tables)
            assert table.has_begun.wait(30)
            threading.Timer(0.1, table.may_commit.set).start()
            raise RuntimeError("the query")

    with pytest.raises(OSError, match="refused"):
        run()
