"""The exchange of a table's whole content together with the generation of the mark, in one commit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest
from pyiceberg.table import Table
from tests.fixtures.lost_marks import forget_previous_metadata, remove_mark
from tests.fixtures.publication import Workbench

from sluice.errors import StaleTokenError, UnpublishableError
from sluice.publication.chain import MarkPosition
from sluice.publication.checked_commit import HeadTag
from sluice.publication.crash_points import CrashPoint, Reached
from sluice.publication.file_preparation import fit_files
from sluice.publication.publish_batches import live_files
from sluice.publication.staging_table import load_staging_table
from sluice.refresh.swap_content import NewContent, swap_content

TAG = HeadTag(name="sluice_before_refresh_7", keeps=timedelta(days=2))


@pytest.fixture
def published(bench: Workbench) -> Workbench:
    """A target with two published batches and a foreign row; new content is staged as batch 2."""
    for number in range(2):
        bench.publish(bench.stage(number, [number]))
    bench.write_as_another(500)
    bench.clear()
    bench.stage(2, [100, 101])
    return bench


def content_of(bench: Workbench) -> NewContent:
    """What is staged becomes the content of the table, in generation 2."""
    staging = load_staging_table(bench.catalog, bench.output)
    files = live_files(staging)
    return NewContent(
        output=bench.output,
        files_for=lambda target: fit_files(files, staging=staging, target=target),
        key=f"{bench.output.stream}/refresh/7",
        mark=MarkPosition(generation=2, batch=5, token=bench.run, end_offsets_digest="d"),
        follows=(1, 1),
        tag=TAG,
    )


def once(act: Callable[[CrashPoint], object]) -> Reached:
    """Act between the first check and its commit."""
    done: list[CrashPoint] = []

    def reached(point: CrashPoint) -> None:
        if not done:
            done.append(point)
            act(point)

    return reached


def ids_at(table: Table, snapshot_id: int) -> list[int]:
    """The ids that a snapshot shows, in order."""
    rows = table.scan(snapshot_id=snapshot_id).to_arrow().to_pylist()
    return sorted(int(row["id"]) for row in rows)


def test_the_content_the_mark_and_the_tag_change_together(published: Workbench) -> None:
    before = published.target()
    head = before.current_snapshot()
    assert head is not None

    landed = swap_content(published.catalog, content_of(published))

    table = published.target()
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert (snapshot.snapshot_id, snapshot.parent_snapshot_id) == (landed, head.snapshot_id)
    assert snapshot.summary.operation.value == "overwrite"
    assert published.ids_by_duckdb() == [100, 101]
    assert (published.mark().position, published.mark().snapshot_id) == ((2, 5), landed)
    tag = table.refs()[TAG.name]
    assert tag.snapshot_id == head.snapshot_id
    assert head.timestamp_ms + (tag.max_ref_age_ms or 0) == snapshot.timestamp_ms + 2 * 86_400_000
    assert ids_at(table, tag.snapshot_id) == [0, 1, 500]
    assert swap_content(published.catalog, content_of(published)) == landed, "it is not repeated"
    assert len(published.target().snapshots()) == len(before.snapshots()) + 1


def test_the_history_of_main_has_the_mark_of_the_swap(published: Workbench) -> None:
    """Otherwise a mark that is lost would be that of a batch which the swap has replaced."""
    swap_content(published.catalog, content_of(published))
    remove_mark(published)
    forget_previous_metadata(published)

    mark = published.in_generation(2).as_run(2).begin(newest_committed=7)  # two batches wait, staged

    assert mark.position == (2, 5)


def test_rows_that_others_add_before_the_commit_are_kept_by_the_tag(published: Workbench) -> None:
    swap_content(published.catalog, content_of(published), reached=once(lambda _: published.write_as_another(501)))

    table = published.target()
    assert published.ids() == [100, 101]
    assert ids_at(table, table.refs()[TAG.name].snapshot_id) == [0, 1, 500, 501]


def test_a_newer_run_in_between_refuses_it(published: Workbench) -> None:
    with pytest.raises(StaleTokenError):
        swap_content(published.catalog, content_of(published), reached=once(lambda _: published.begin_as(9)))
    assert published.ids() == [0, 1, 500]


def test_a_batch_that_became_visible_since_the_plan_refuses_it(published: Workbench) -> None:
    with pytest.raises(UnpublishableError, match="batch 1:1 became visible after batch 1:0"):
        swap_content(published.catalog, replace(content_of(published), follows=(1, 0)))
    assert published.ids() == [0, 1, 500]
