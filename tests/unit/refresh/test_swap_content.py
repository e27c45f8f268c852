"""The exchange of a table's content is refused while the table has delete files, whose rows it would bring back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table
from tests.fixtures.delete_files import add_delete_file
from tests.fixtures.publication import CatalogPlace, Workbench, open_catalog_at

from sluice.errors import StagedFilesMissingError, UncertainError, UnpublishableError
from sluice.publication.chain import MarkPosition
from sluice.publication.checked_commit import NothingToCommit, snapshot_of
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.file_preparation import fit_files
from sluice.publication.marks import find_lost_mark, load_target_state
from sluice.publication.publish_batches import live_files
from sluice.publication.staged_batch import StagedOutput
from sluice.publication.staging_table import load_staging_table
from sluice.refresh.observe_refresh import delete_files_of
from sluice.refresh.swap_content import NewContent, swap_content
from sluice.refresh.swap_shadow import end_of_shadow


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Workbench]:
    """A target with a published batch."""
    place = CatalogPlace(sql_url=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    opened: list[Catalog] = []

    def opener() -> Catalog:
        opened.append(open_catalog_at(place))
        return opened[-1]

    output = StagedOutput(stream="flights", output="main", target="n.flights")
    made = Workbench(open_catalog=opener, catalog=opener(), output=output, place=place)
    made.declare()
    made.begin()
    made.publish(made.stage(0, [1]))
    yield made
    for catalog in opened:
        catalog.close()


def emptied(bench: Workbench, reached: Reached = unnoticed) -> int:
    """Exchange the content for none, in generation 2."""
    return exchanged(bench, lambda _: (), reached=reached)


def exchanged(
    bench: Workbench,
    files_for: Callable[[Table], Sequence[DataFile]],
    *,
    way_out: str = "",
    reached: Reached = unnoticed,
) -> int:
    """Exchange the content for some files, in generation 2."""
    content = NewContent(
        output=bench.output,
        files_for=files_for,
        key="flights/refresh/7",
        mark=MarkPosition(generation=2, batch=5, token=bench.run, end_offsets_digest="d"),
        follows=(1, 0),
        way_out=way_out,
    )
    return swap_content(bench.catalog, content, reached=reached)


def test_a_table_with_delete_files_keeps_its_content(bench: Workbench) -> None:
    add_delete_file(bench.target())
    assert delete_files_of(bench.target()) == 1

    with pytest.raises(UnpublishableError, match=r"n\.flights has delete files") as refused:
        emptied(bench)

    assert refused.value.next_step == "Compact it first: `sluice table maintain n.flights`."
    assert bench.mark().generation == 1


def test_a_delete_file_that_comes_before_the_commit_is_noticed(bench: Workbench) -> None:
    points: list[CrashPoint] = []

    def add_once(point: CrashPoint) -> None:
        if not points:
            add_delete_file(bench.target())
        points.append(point)

    with pytest.raises(UnpublishableError, match=r"n\.flights has delete files"):
        emptied(bench, add_once)

    assert (points, bench.mark().generation) == ([CrashPoint.CHECKED], 1)


def test_a_shadow_with_delete_files_is_no_new_content(bench: Workbench) -> None:
    """Its data files hold rows that it does not."""
    before = end_of_shadow(load_target_state(bench.catalog, bench.output), bench.output)
    assert (before.generation, before.batch) == (1, 0)
    add_delete_file(bench.target())

    with pytest.raises(UnpublishableError, match=r"The shadow n\.flights has delete files"):
        end_of_shadow(load_target_state(bench.catalog, bench.output), bench.output)


def test_a_table_never_gets_new_content_of_which_a_file_is_gone(bench: Workbench) -> None:
    bench.clear()
    bench.stage(2, [100])
    staging = load_staging_table(bench.catalog, bench.output)
    (staged,) = live_files(staging)
    staging.io.delete(staged.file_path)

    with pytest.raises(
        StagedFilesMissingError, match=f"1 of the 1 files .* 1 rows, are gone: {staged.file_path}"
    ) as no:
        exchanged(bench, lambda target: fit_files([staged], staging=staging, target=target), way_out="Give it up.")

    assert no.value.next_step == "Give it up."
    assert (bench.ids(), bench.mark().generation) == ([1], 1)


def test_a_mark_that_was_removed_is_found_where_the_exchange_has_set_it(bench: Workbench) -> None:
    emptied(bench)
    target = bench.target()
    with target.transaction() as transaction:
        transaction.remove_properties(bench.output.mark_property)

    found = find_lost_mark(bench.target(), bench.output, in_log=False)

    assert found is not None
    assert (found.generation, found.batch, found.token) == (2, 5, bench.run)


def test_a_snapshot_that_is_not_known_is_no_number() -> None:
    with pytest.raises(UncertainError, match="It is unknown which snapshot made this visible: the swap"):
        snapshot_of(NothingToCommit(snapshot_id=None), what="the swap")


def test_without_delete_files_it_is_exchanged(bench: Workbench) -> None:
    assert bench.ids() == [1]

    landed = emptied(bench)

    assert (bench.ids(), bench.mark().snapshot_id) == ([], landed)
