"""What keeps a removal from taking a file that somebody needs: each guard in a state that the others do not see."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from sqlalchemy import delete, text
from tests.fixtures.left_files import ENDED_AFTER, Yard, catalog_place, name_of, yard
from tests.fixtures.publication import Workbench

from sluice.errors import DivergedError, LakehouseError, StagingError, UnpublishableError
from sluice.ledger.maintenance_runs import MaintenanceObservation, TableFigures, record_maintenance
from sluice.ledger.run_leases import Run
from sluice.maintenance.orphan_files import FileFate
from sluice.publication.crash_points import CrashPoint
from sluice.publication.data_files import missing_list
from sluice.publication.publish_batches import live_files
from sluice.publication.staging_layout import empty_staging_table

__all__ = ["catalog_place", "yard"]


def left_by_a_dead_run(yard: Yard) -> str:
    (left,) = yard.die_writing(20)
    yard.end()
    return left


def path_of(yard: Yard, name: str) -> Path:
    return next(path for path in yard.data_files() if path.name == name)


def test_what_was_visible_stays_when_somebody_forgets_the_snapshots(yard: Yard) -> None:
    """pyiceberg's expiry leaves the files, and a table of another catalog may refer to them."""
    visible = {name_of(file.file_path) for file in live_files(yard.bench.target())}
    yard.bench.compact()
    yard.bench.expire_all_but_the_newest()
    yard.end()
    assert yard.left() == set()
    assert {yard.fates()[name] for name in visible} <= {FileFate.HISTORY_EXPIRED, FileFate.NEEDED}


@pytest.mark.full  # every run: all that were forgotten
def test_snapshots_that_are_missing_between_others_are_no_whole_history(yard: Yard) -> None:
    table = yard.bench.target()
    visible = {name_of(file.file_path) for file in live_files(table)}
    published = table.metadata.current_snapshot_id
    yard.bench.compact()
    assert published is not None
    table.refresh().maintenance.expire_snapshots().by_ids([published]).commit()
    yard.end()
    assert yard.left() == set()
    assert visible


def test_a_table_of_the_catalog_that_refers_to_a_leftover_keeps_it(yard: Yard) -> None:
    left = left_by_a_dead_run(yard)
    assert yard.left() == {left}
    refer_to(yard, path_of(yard, left))
    assert yard.fates()[left] is FileFate.NEEDED


def refer_to(yard: Yard, path: Path, scheme: str = "file://") -> None:
    """A table that knows nothing of Sluice takes a file."""
    stream, schema = yard.bench.output.stream, yard.bench.target().schema()
    other = yard.bench.catalog.create_table(f"{stream}.other", schema)
    other.add_files([f"{scheme}{path}"], check_duplicate_files=False)


def test_what_a_table_takes_while_files_are_moved_is_brought_back(yard: Yard) -> None:
    left = left_by_a_dead_run(yard)
    yard.age()
    path = path_of(yard, left)

    def reached(point: CrashPoint) -> None:
        if point is CrashPoint.BEGUN:
            refer_to(yard, path)

    with pytest.raises(LakehouseError, match="began to refer to 1 of the files"):
        yard.removal(reached=reached).remove(yard.name)
    assert path.exists()
    assert yard.trashed()  # its copy stays until the seven days are over


@pytest.mark.full  # every run: `test_orphan_plan.py`
def test_another_table_in_the_same_folder_takes_none_of_the_first_ones_files(yard: Yard) -> None:
    left, location = left_by_a_dead_run(yard), yard.bench.target().location()
    schema = yard.bench.target().schema()
    yard.bench.catalog.drop_table(yard.name)
    yard.bench.catalog.create_table(yard.name, schema, location=location)
    yard.bench.write_as_another(1)
    assert yard.fates()[left] is FileFate.FOREIGN


@pytest.mark.full  # every run: `test_orphan_plan.py`
def test_a_folder_of_a_run_that_the_ledger_does_not_know_stays(yard: Yard) -> None:
    """Another deployment writes into a copy of the catalog, or the ledger was restored."""
    left = left_by_a_dead_run(yard)
    with yard.ledger.transaction() as connection:
        connection.execute(delete(Run).where(Run.stream == yard.bench.output.stream))
    assert yard.fates()[left] is FileFate.WRITER_UNKNOWN


def pointers(bench: Workbench) -> dict[str, str]:
    """Where the catalog finds the metadata of each table."""
    assert isinstance(bench.catalog, SqlCatalog)
    named = text(
        "SELECT table_namespace || '.' || table_name, metadata_location FROM iceberg_tables WHERE catalog_name = :own"
    )
    with bench.catalog.engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(named, {"own": bench.catalog.name})}


def restore(bench: Workbench, backup: dict[str, str]) -> None:
    """Bring a catalog back to an earlier time, as a backup of its database does."""
    assert isinstance(bench.catalog, SqlCatalog)
    change = text(
        "UPDATE iceberg_tables SET metadata_location = :location, previous_metadata_location = NULL "
        "WHERE table_namespace || '.' || table_name = :name AND catalog_name = :own"
    )
    with bench.catalog.engine.begin() as connection:
        for name, location in backup.items():
            connection.execute(change, {"name": name, "location": location, "own": bench.catalog.name})


@pytest.mark.full  # every run: a target with such a file
def test_a_staging_table_of_a_catalog_that_was_set_back_is_named_with_the_way_out(yard: Yard) -> None:
    """Clearing it has removed what its earlier metadata refers to."""
    backup = pointers(yard.bench)
    yard.bench.publish(yard.bench.stage(2, [20]))
    yard.bench.clear()
    restore(yard.bench, backup)

    with pytest.raises(
        StagingError, match=r"refers to a file that is gone, .* before the table was cleared"
    ) as refused:
        yard.begin()

    staging = yard.bench.output.staging
    assert f"sluice stream repair {yard.bench.output.stream}" in refused.value.next_step
    assert missing_list(yard.bench.catalog.load_table(staging)).endswith(".avro")
    empty_staging_table(yard.bench.catalog, staging)
    yard.begin()
    before = yard.bench.ids_by_duckdb()
    yard.bench.publish(yard.bench.stage(2, [20]))
    assert sorted(yard.bench.ids_by_duckdb()) == sorted([*before, 20])


def test_a_target_that_refers_to_a_file_that_is_gone_is_named_with_it(yard: Yard) -> None:
    target = yard.bench.target()
    newest = target.current_snapshot()
    assert newest is not None
    target.io.delete(newest.manifest_list)

    with pytest.raises(
        DivergedError, match=rf"^{yard.bench.output.target} refers to a file that is gone, so the mark of"
    ):
        yard.begin()


def lose_a_batch(yard: Yard) -> str:
    """Publish a batch and restore the catalog to before it; the name of its file."""
    backup = pointers(yard.bench)
    yard.bench.publish(yard.bench.stage(2, [20]))
    (lost,) = {name_of(f.file_path) for f in live_files(yard.bench.target())} & {
        path.name for path in yard.data_files() if f"run_{yard.bench.run}" in str(path)
    } - {name_of(path) for path in yard_before(yard, backup)}
    restore(yard.bench, backup)
    return lost


def yard_before(yard: Yard, backup: dict[str, str]) -> set[str]:
    """The files of the table as a backup knows it."""
    now = pointers(yard.bench)
    restore(yard.bench, backup)
    paths = {file.file_path for file in live_files(yard.bench.target())}
    restore(yard.bench, now)
    return paths


def test_what_a_restored_catalog_does_not_know_stays(yard: Yard) -> None:
    lost = lose_a_batch(yard)
    yard.end()
    assert yard.fates()[lost] is FileFate.NEEDED
    for number in range(3):
        yard.bench.write_as_another(100 + number)
    assert yard.fates()[lost] is FileFate.NEEDED


@pytest.mark.full  # every run: `test_needed_files.py`
def test_a_restored_catalog_that_lost_what_the_ledger_saw_refuses(yard: Yard) -> None:
    backup = pointers(yard.bench)
    yard.bench.publish(yard.bench.stage(2, [20]))
    figures = TableFigures(snapshot=yard.bench.target().metadata.current_snapshot_id)
    at = yard.made_at + ENDED_AFTER
    seen = MaintenanceObservation(
        table=yard.name, started_at=at, ended_at=at, launched_by="x", before=figures, after=figures, operations=()
    )
    record_maintenance(yard.ledger, seen)
    restore(yard.bench, backup)
    yard.die_writing(30)
    yard.end()
    yard.age()
    with pytest.raises(UnpublishableError, match="1 snapshots of the table that the catalog does not list"):
        yard.removal().remove(yard.name)
    assert not yard.trashed()


def test_a_removal_that_is_needed_again_is_not_deleted(yard: Yard) -> None:
    left = left_by_a_dead_run(yard)
    path = path_of(yard, left)
    assert yard.remove() == {left}
    yard.removal().restore(yard.name)
    refer_to(yard, path)
    assert yard.remove(after=timedelta(days=30)) == set()
    assert path.exists()


@pytest.mark.full  # every run: a file that was brought back
def test_a_trash_to_whose_files_a_table_refers_is_not_deleted(yard: Yard) -> None:
    left = left_by_a_dead_run(yard)
    path = path_of(yard, left)
    copy = path.read_bytes()
    yard.remove()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(copy)
    refer_to(yard, path)
    path.unlink()
    with pytest.raises(UnpublishableError, match="refers to 1 files in the trash"):
        yard.removal(after=timedelta(days=30)).remove(yard.name)
    assert yard.trashed()


@pytest.mark.full  # every run: `test_orphan_plan.py`
def test_a_young_file_stays(yard: Yard) -> None:
    left = left_by_a_dead_run(yard)
    assert yard.fates(after=timedelta(days=3))[left] is FileFate.YOUNG
    assert yard.fates(after=timedelta(days=4))[left] is FileFate.LEFT


def test_another_plan_than_was_shown_is_refused(yard: Yard) -> None:
    left_by_a_dead_run(yard)
    yard.age()
    shown = yard.removal().plan(yard.name).digest
    replace(yard.bench).begin()
    yard.die_writing(21)
    yard.age()
    with pytest.raises(Exception, match="is another one than was shown"):
        yard.removal().remove(yard.name, planned=shown)
    assert not yard.trashed()


@pytest.mark.full  # every run: `test_needed_files.py`
def test_a_table_that_cannot_be_read_keeps_everything(yard: Yard) -> None:
    left_by_a_dead_run(yard)
    other = yard.bench.catalog.create_table(f"{yard.bench.output.stream}.broken", yard.bench.target().schema())
    other.append(pa.Table.from_pylist([{"kind": "a", "id": 1}], other.schema().as_arrow()))
    snapshot = other.refresh().current_snapshot()
    assert snapshot is not None
    Path(snapshot.manifest_list.removeprefix("file://")).unlink()
    yard.age()
    with pytest.raises(LakehouseError, match="Cannot read the manifests"):
        yard.removal().remove(yard.name)
