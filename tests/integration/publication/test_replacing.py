"""Publishing by replacing: all of the table, or the partitions that a batch brings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from pyiceberg.manifest import ManifestFile
from tests.fixtures.publication import Workbench

from sluice.errors import StaleTokenError, UnpublishableError
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.mark_moves import take_over
from sluice.publication.publish_batches import Publication, ReplacedRange, publish_replace
from sluice.publication.staged_batch import StagedBatch


def replace_with(
    bench: Workbench, *batches: StagedBatch, replaced: ReplacedRange, reached: Reached = unnoticed
) -> Publication:
    return publish_replace(bench.catalog, bench.output, batches, replaced=replaced, token=bench.run, reached=reached)


def test_each_batch_replaces_the_table(bench: Workbench) -> None:
    bench.write_as_another(100)
    for number in range(3):
        batch = bench.stage(number, [number, number + 10])
        first = replace_with(bench, batch, replaced=ReplacedRange.TABLE)
        again = replace_with(bench, batch, replaced=ReplacedRange.TABLE)
        assert (first.published, again.was_published_before) == ((batch,), True)
        assert bench.ids() == [number, number + 10]
    snapshot = bench.target().current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.summary.operation.value == "overwrite"
    assert (snapshot.summary["total-records"], snapshot.summary["deleted-records"]) == ("2", "2")


def test_of_several_batches_that_replace_the_table_only_the_last_counts(bench: Workbench) -> None:
    batches = [bench.stage(number, [number]) for number in range(4)]
    replace_with(bench, *batches, replaced=ReplacedRange.TABLE)
    assert bench.ids() == [3]
    assert bench.mark().batch == 3


def test_an_empty_batch_empties_the_table(bench: Workbench) -> None:
    replace_with(bench, bench.stage(0, [1]), replaced=ReplacedRange.TABLE)
    replace_with(bench, bench.stage(1, []), replaced=ReplacedRange.TABLE)
    assert bench.ids() == []


def test_a_table_without_partitions_is_replaced_too(new_bench: Callable[..., Workbench]) -> None:
    bench = new_bench(partitioning=[])
    bench.declare()
    bench.begin()
    for number in range(3):
        replace_with(bench, bench.stage(number, [number]), replaced=ReplacedRange.TABLE)
    assert bench.ids() == [2]
    with pytest.raises(UnpublishableError, match="has no partitions"):
        replace_with(bench, bench.stage(3, [3]), replaced=ReplacedRange.PARTITIONS)


def test_only_the_partitions_of_the_batch_are_replaced(bench: Workbench) -> None:
    bench.write_as_another(1, 2, kind="a")
    bench.write_as_another(3, kind="b")
    bench.compact()
    replace_with(bench, bench.stage(0, [10], kind="a"), replaced=ReplacedRange.PARTITIONS)
    assert bench.ids() == bench.ids_by_duckdb() == [3, 10]
    replace_with(bench, bench.stage(1, [20], kind="c"), replaced=ReplacedRange.PARTITIONS)
    assert bench.ids() == [3, 10, 20]


def test_only_the_manifests_of_the_partitions_that_are_replaced_are_read(bench: Workbench) -> None:
    for number, kind in enumerate("abcdefgh"):
        bench.write_as_another(number, kind=kind)
    batch = bench.stage(0, [10], kind="a")
    newest = bench.target().current_snapshot()
    assert newest is not None
    before = {manifest.manifest_path for manifest in newest.manifests(bench.target().io)}
    read: list[str] = []
    fetch = ManifestFile.fetch_manifest_entry

    def noted(manifest: ManifestFile, *arguments: Any, **more: Any) -> Any:
        read.append(manifest.manifest_path)
        return fetch(manifest, *arguments, **more)

    with patch.object(ManifestFile, "fetch_manifest_entry", noted):
        replace_with(bench, batch, replaced=ReplacedRange.PARTITIONS)

    assert (len(before), len(before & set(read))) == (8, 1)
    assert bench.ids() == bench.ids_by_duckdb() == [1, 2, 3, 4, 5, 6, 7, 10]


def test_of_several_batches_each_partition_has_the_last_one_that_brings_it(bench: Workbench) -> None:
    bench.write_as_another(1, kind="a")
    batches = [bench.stage(0, [2], kind="a"), bench.stage(1, [3], kind="b"), bench.stage(2, [4], kind="a")]
    replace_with(bench, *batches, replaced=ReplacedRange.PARTITIONS)
    assert bench.ids() == [3, 4]


def test_a_partition_that_is_no_set_of_files_is_left_to_spark(bench: Workbench) -> None:
    bench.write_as_another(1)
    bench.declare(partitioning=[{"column": "id", "transform": "bucket", "width": 4}])
    bench.begin()
    with pytest.raises(UnpublishableError, match="older partition spec"):
        replace_with(bench, bench.stage(0, [2]), replaced=ReplacedRange.PARTITIONS)
    assert bench.ids() == [1]


def test_files_of_an_older_spec_that_are_gone_keep_no_partition_from_being_replaced(bench: Workbench) -> None:
    bench.write_as_another(1)
    bench.declare(partitioning=[{"column": "id", "transform": "bucket", "width": 4}])
    bench.begin()
    bench.catalog.load_table(bench.output.target).delete()
    replace_with(bench, bench.stage(0, [2]), replaced=ReplacedRange.PARTITIONS)
    assert bench.ids() == [2]


def test_rows_that_land_between_check_and_commit_are_replaced_and_not_lost_sight_of(bench: Workbench) -> None:
    replace_with(bench, bench.stage(0, [1]), replaced=ReplacedRange.TABLE)
    pending = [100]

    def reached(point: CrashPoint) -> None:
        if point is CrashPoint.CHECKED and pending:
            bench.write_as_another(pending.pop())

    published = replace_with(bench, bench.stage(1, [2]), replaced=ReplacedRange.TABLE, reached=reached)
    assert published.attempts == 2
    assert bench.ids() == [2]


def test_an_older_run_replaces_nothing(bench: Workbench) -> None:
    batch = bench.stage(0, [1])

    def reached(point: CrashPoint) -> None:
        if point is CrashPoint.CHECKED and bench.mark().token == 1:
            take_over(bench.as_run(2).catalog, bench.output, token=2)

    bench.write_as_another(100)
    with pytest.raises(StaleTokenError):
        replace_with(bench, batch, replaced=ReplacedRange.TABLE, reached=reached)
    assert bench.ids() == [100]
