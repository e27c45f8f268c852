"""Rows of a person leave every file below the folders of a table, on a real catalog and object store. No Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import ManifestFile
from tests.fixtures.drill import sampled
from tests.fixtures.erasing import ANN, Died, Dying, Household, home
from tests.fixtures.publication import Workbench

from sluice.erasure.searched_files import metadata_folder
from sluice.errors import UnhealthyError
from sluice.ledger.events import Actor, EventAction, EventSubject, recent_events
from sluice.ledger.table_writers import LONGEST_WRITE
from sluice.maintenance.orphan_files import removals_in, restore_files
from sluice.maintenance.orphan_removal import OrphanRemoval
from sluice.publication.crash_points import CrashPoint
from sluice.publication.data_files import data_folder
from sluice.publication.staging_table import load_staging_table
from sluice.stored_keys import TRASH_FOLDER_PREFIX
from sluice.tables.stored_files import StoredFolder

__all__ = ["home"]

LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "partitioned": {"partitioning": [{"column": "kind"}]},
    "sorted": {
        "partitioning": [{"column": "id", "transform": "bucket", "width": 4}],
        "sort_order": [{"column": "kind", "direction": "desc"}],
    },
}
OTHERS: list[tuple[str | None, int]] = [(" ", 20), ("Ann", 21), ("Bob", 2), ("ann o'brien 🌊", 22), (None, 4)]


def furnish(home: Household) -> Workbench:
    """Rows of the person in every place: several snapshots, a tag, a file of no commit, and one in the trash."""
    driver = home.bench
    driver.begin()
    driver.publish(driver.stage(0, [0, 1], kind=ANN), driver.stage(1, [2], kind="Bob"))
    driver.clear()
    home.tag("old", home.append((ANN, 3), *OTHERS[:2]))
    home.append(*OTHERS[3:])
    home.table().delete("id = 1")
    home.leave((ANN, 7), ("Carl", 8))
    home.throw_away(home.leave((ANN, 9)))
    home.throw_away(home.leave(("Carl", 10)))
    return driver


def require_erased(home: Household, tmp: Path) -> None:
    """Nothing of the person is below any folder, and everything of the others is where it was."""
    assert home.rows() == sorted(OTHERS, key=repr)
    raw = home.raw(tmp=tmp)
    assert ANN not in {kind for kind, _ in raw}
    assert {row for row in raw if row[0] != "Carl"} == set(OTHERS)
    table = home.table()
    assert [one.snapshot_id for one in table.snapshots()] == [home.head()]
    assert set(table.refs()) == {"main"}
    listed = {one for one in home.files(home.name) if one[0].startswith(metadata_folder(table))}
    needed = {table.metadata_location, *(one for snapshot in table.snapshots() for one in lists_of(home, snapshot))}
    assert {name_of(path) for path, _ in listed} == {name_of(path) for path in needed}
    for manifest in table.snapshots()[0].manifests(table.io):
        entries = manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        bounds = [one.data_file.lower_bounds or {} for one in entries] + [
            one.data_file.upper_bounds or {} for one in entries
        ]
        assert not any(ANN.encode()[:8] in value for one in bounds for value in one.values())


def lists_of(home: Household, snapshot: Any) -> list[str]:
    """The metadata of a snapshot."""
    manifests: list[ManifestFile] = snapshot.manifests(home.table().io)
    return [snapshot.manifest_list, *(one.manifest_path for one in manifests)]


def name_of(path: str) -> str:
    """Without folders."""
    return path.rpartition("/")[2]


@pytest.mark.parametrize("layout", sampled(LAYOUTS, ["sorted"], full=LAYOUTS))  # every run kills one of a plain table
def test_rows_leave_every_file_and_others_stay(home: Household, tmp_path: Path, layout: str) -> None:
    home.declare(**LAYOUTS[layout])
    driver = furnish(home)
    assert {one for kind, one in home.raw(tmp=tmp_path) if kind == ANN} == {0, 1, 3, 7, 9}
    plan = home.erasure().plan()
    assert not plan.refusals
    assert plan.rows == 2
    assert "old" in " ".join(plan.sentences())

    done = home.erasure().erase(planned=plan.digest)
    assert done.rows["live"] == 2
    require_erased(home, tmp_path)
    staging = load_staging_table(driver.catalog, driver.output)
    assert len(staging.snapshots()) == 1

    again = home.erasure().plan()
    assert not again.seen.is_due
    assert home.erasure().erase().deleted_files == 0

    driver = driver.as_run(2)
    driver.begin()
    driver.publish(driver.stage(2, [30], kind="Dora"))
    driver.clear()
    assert driver.ids_by_duckdb() == sorted([*(one for _, one in OTHERS), 30])
    assert (driver.mark().batch, driver.mark().token) == (2, 2)


@pytest.mark.full  # every run: `test_erasure_command.py`
def test_the_event_and_the_answer_hold_no_value(home: Household) -> None:
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    home.throw_away(home.leave((ANN, 9)))
    erasure = home.erasure()
    said = f"{erasure.plan().as_json()}"
    done = erasure.erase()
    (event, *_) = recent_events(home.ledger, EventSubject.TABLE, home.name, limit=9)
    assert event.action == EventAction.ERASE_ROWS
    assert event.evidence["condition"] == erasure.search.test.digest
    summaries = [one.summary.additional_properties for one in home.table().snapshots() if one.summary]
    for text in (said, str(done), str(done.as_json()), str(event), str(summaries)):
        assert "Ann" not in text
        assert "Brien" not in text


@pytest.mark.full  # every run: the trash of an earlier table of the name
def test_the_trash_knows_nothing_of_what_was_erased(home: Household) -> None:
    home.declare()
    furnish(home)
    home.erasure().erase()
    removal = OrphanRemoval(
        catalog=home.bench.open_catalog(),
        ledger=home.ledger,
        declarations=home.observer().declarations,
        actor=Actor.person("a test"),
    )
    _, removals = removal.plan_restore(home.name).seen
    assert sorted(len(one.files) for one in removals) == [0, 1]
    assert removal.restore(home.name) == 1


def test_the_trash_of_an_earlier_table_of_the_name_knows_nothing_either(home: Household) -> None:
    home.declare()
    home.append(("Bob", 2))
    home.throw_away(home.leave((ANN, 9), ("Carl", 8)), of="earlier")
    home.throw_away(home.leave(("Carl", 10)), of="earlier")
    home.erasure().erase()
    folder = StoredFolder.at(home.table().io, data_folder(home.table().metadata))
    assert sorted(len(one.files) for one in removals_in(folder, f"{TRASH_FOLDER_PREFIX}earlier")) == [0, 1]


@pytest.mark.full  # every run: the trash of an earlier table of the name
def test_the_trash_names_no_file_that_a_killed_removal_has_not_moved(home: Household) -> None:
    home.declare(partitioning=[{"column": "kind"}])
    home.append(("Bob", 2))
    left = (*home.leave((ANN, 9)), *home.leave(("Carl", 10)))
    with pytest.raises(Died):
        home.throw_away(left, reached=Dying(CrashPoint.BEGUN))
    home.erasure().erase()
    table = home.table()
    folder = StoredFolder.at(table.io, data_folder(table.metadata))
    (removal,) = removals_in(folder, f"{TRASH_FOLDER_PREFIX}{table.metadata.table_uuid}")
    assert ["kind=Carl" in one.place for one in removal.files] == [True]
    assert restore_files(folder, [removal]) == 0


POINTS = [
    *((point, 1) for point in (CrashPoint.BEGUN, CrashPoint.COMPUTED, CrashPoint.PUBLISHED, CrashPoint.COMMITTED)),
    *((CrashPoint.CHECKED, times) for times in (1, 2, 3)),
    (CrashPoint.RECORDED, 1),
    *((CrashPoint.CLEARED, times) for times in (1, 2, 4, 7, 12)),
]


@pytest.mark.parametrize("died_at", sampled(POINTS, [(CrashPoint.RECORDED, 1)], full=POINTS))
def test_a_killed_erasure_is_completed_by_the_next(
    home: Household, tmp_path: Path, died_at: tuple[CrashPoint, int]
) -> None:
    home.declare()
    driver = furnish(home)
    with pytest.raises(Died):
        home.erasure(reached=Dying(*died_at)).erase()
    assert [row for row in home.rows() if row[0] != ANN] == sorted(OTHERS, key=repr)
    home.erasure().erase()
    require_erased(home, tmp_path)
    assert driver.as_run(2).begin().batch == 1


@pytest.mark.full  # every run: `test_stale_metadata.py`
@pytest.mark.parametrize("times", [1, 2])
def test_what_a_killed_commit_has_written_keeps_no_erasure_waiting(home: Household, tmp_path: Path, times: int) -> None:
    """Its manifests are of no state of the table, and a minute old. Those of another program stay for a day."""
    home.declare()
    home.append((ANN, 1), ("Bob", 2))
    home.append((ANN, 3), ("Eve", 4))
    with pytest.raises(Died):
        home.erasure(reached=Dying(CrashPoint.CHECKED, times), longest_commit=LONGEST_WRITE).erase()
    home.erasure(longest_commit=LONGEST_WRITE).erase()
    assert ANN not in {kind for kind, _ in home.raw(tmp=tmp_path)}
    assert home.rows() == [("Bob", 2), ("Eve", 4)]
    assert not [place for place, content in home.files(home.name) if ANN.encode() in content]


@pytest.mark.full  # every run: two erasures wait for one (`test_expired_data.py`)
def test_a_reader_is_waited_for_and_nothing_goes_from_under_it(home: Household, tmp_path: Path) -> None:
    home.declare(reads="skip")
    furnish(home)
    home.read_up_to(home.head(), files=2)
    before = home.raw(tmp=tmp_path)
    with pytest.raises(UnhealthyError, match=f"{home.reader} .input rows. has read up to snapshot") as caught:
        home.erasure().erase()
    assert f"sluice stream start {home.reader}" in (caught.value.next_step or "")
    assert home.rows() == sorted(OTHERS, key=repr)
    after = home.raw(tmp=tmp_path)
    assert {row for row in before if row[0] == ANN} == {row for row in after if row[0] == ANN}
    assert len(home.table().snapshots()) > 5

    cut = home.head()
    plan = home.erasure().plan()
    assert plan.seen.kept == (cut,)
    assert "Wait until the cut is passed" in " ".join(plan.sentences())
    home.append(("Eve", 40))
    home.read_up_to(cut, files=0)
    home.erasure().erase()
    assert ANN not in {kind for kind, _ in home.raw(tmp=tmp_path)}
    assert ("Eve", 40) in home.rows()
    assert [one.snapshot_id for one in home.table().snapshots()] == [cut, home.head()]


@pytest.mark.full  # every run: `test_expired_data.py`
def test_rows_that_come_while_a_reader_is_waited_for_go_as_well(home: Household, tmp_path: Path) -> None:
    home.declare(reads="skip")
    furnish(home)
    home.read_up_to(home.head(), files=2)
    with pytest.raises(UnhealthyError):
        home.erasure().erase()
    first = home.head()
    home.read_up_to(first, files=0)
    home.append((ANN, 50))
    with pytest.raises(UnhealthyError, match="has read up to"):
        home.erasure().erase()
    home.read_up_to(home.head(), files=0)
    home.erasure().erase()
    assert ANN not in {kind for kind, _ in home.raw(tmp=tmp_path)}


@pytest.mark.full  # every run: one that has started (`test_expired_data.py`)
def test_a_reader_that_never_started_begins_with_what_is_left(home: Household, tmp_path: Path) -> None:
    home.declare(reads="fail")
    furnish(home)
    home.erasure().erase()
    require_erased(home, tmp_path)
