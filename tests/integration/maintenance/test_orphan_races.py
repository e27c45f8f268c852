"""Whatever happens while orphans are moved: no referenced file is lost, and the next run goes on from there."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Operation
from tests.fixtures.drill import sampled
from tests.fixtures.orphans import EndingFiles, ProcessEndedError, Yard, open_yard, rows

from sluice.ledger.connection import Ledger
from sluice.maintenance.stored_files import Place
from sluice.publication.checked_commit import PreparedCommit, TableChange
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.publication.staging_layout import drop_staging_copy

WEEK = timedelta(days=7, seconds=1)


@pytest.fixture
def yard(ledger: Ledger, tmp_path: Path) -> Iterator[Yard]:
    """A table of three files."""
    made = open_yard(tmp_path, ledger)
    yield made
    made.catalog.close()


def prepared(yard: Yard, *files: DataFile) -> PreparedCommit:
    """A commit of files that are written, as a writer has it before it sends it."""
    change = TableChange(operation=Operation.APPEND, added=files, summary={}, added_at=datetime.now(UTC))
    return PyIcebergCommitter(yard.catalog).prepare(yard.table(), change)


def once(what: str, act: Callable[[], object]) -> Callable[[str, Place], None]:
    """Do something before the first change of a kind."""
    left = [act]

    def before(kind: str, _: Place) -> None:
        if kind == what and left:
            left.pop()()

    return before


@pytest.mark.parametrize("moment", ["listed", "copy", "delete"])
def test_a_writer_that_commits_an_old_file_during_the_move_keeps_it(yard: Yard, moment: str) -> None:
    """After the listing; while it is copied; and between the last look and the deletion, when it comes back."""
    added = yard.written(999)
    yard.leave("data/left.parquet")
    yard.age()
    plan = yard.plan()
    assert len(plan.seen.orphans) == 2

    def commit() -> None:
        assert prepared(yard, *added).send() == "landed"

    if moment == "listed":
        commit()
    act, deleted = once(moment, commit), set[str]()

    def before(what: str, place: Place) -> None:
        act(what, place)
        if what == "delete" and "_trash" not in place.path:
            deleted.add(place.name)

    done = replace(yard, files=EndingFiles(before=before)).removal.carry_out(plan, now=yard.now)

    assert (done.moved, done.spared) == (1, 1)
    assert (len(deleted) == 2) is (moment == "delete"), "it is absent only when it was committed after the last look"
    assert yard.ids() == [0, 1, 2, 999]
    assert yard.trashed() == {"left.parquet"}


def test_a_writer_that_prepares_its_commit_after_the_listing_keeps_its_files(yard: Yard) -> None:
    """The commit is under way during the move, and lands afterwards."""
    added = yard.written(999)
    yard.age()
    plan = yard.plan()
    commit = prepared(yard, *added)
    assert yard.removal.carry_out(plan, now=yard.now).spared == 1
    commit.send()
    assert yard.ids() == [0, 1, 2, 999]


def test_what_is_staged_after_the_listing_stays(yard: Yard) -> None:
    added = yard.written(999)
    staging = yard.stage("s", 100)
    yard.age()
    plan = yard.plan()
    assert len(plan.seen.orphans) == 1
    change = TableChange(operation=Operation.APPEND, added=added, summary={}, added_at=datetime.now(UTC))
    PyIcebergCommitter(yard.catalog).prepare(yard.catalog.load_table(staging), change).send()

    assert yard.removal.carry_out(plan, now=yard.now).moved == 0
    assert yard.ids(staging) == [100, 999]


def test_a_file_of_the_trash_that_a_commit_refers_to_is_not_deleted(yard: Yard) -> None:
    added = yard.written(999)
    yard.age()
    yard.remove()
    plan = yard.plan(after=WEEK)
    assert len(plan.seen.trashed) == 1
    prepared(yard, *added).send()

    done = yard.removal.carry_out(plan, now=yard.now + WEEK)
    assert (done.deleted, done.returned) == (0, 1)
    assert yard.ids() == [0, 1, 2, 999]


@pytest.mark.parametrize("changes", range(13))
def test_a_run_that_ends_anywhere_loses_nothing_and_the_next_one_goes_on(yard: Yard, changes: int) -> None:
    """Two orphans are moved, restored, moved and deleted; the process ends after so many changes in all."""
    for name in ("a", "b"):
        yard.leave(f"data/{name}.parquet")
    yard.age()
    with pytest.raises(ProcessEndedError):
        _move_and_restore(replace(yard, files=EndingFiles(left=changes)))

    names = {"a.parquet", "b.parquet"}
    assert {file.name for file in yard.stored()} | yard.trashed() >= names
    assert yard.ids() == [0, 1, 2]
    yard.restore()
    assert {file.name for file in yard.stored()} >= names
    assert yard.trashed() == set()
    yard.age()
    yard.remove(after=timedelta(minutes=1))
    assert yard.trashed() == names
    with pytest.raises(ProcessEndedError):
        replace(yard, files=EndingFiles(left=1)).remove(after=timedelta(minutes=2) + WEEK)
    assert len(yard.trashed()) == 1
    yard.remove(after=timedelta(minutes=2) + WEEK)
    assert yard.trashed() == set()
    assert yard.ids() == [0, 1, 2]


def _move_and_restore(yard: Yard) -> None:
    for number in range(20):
        yard.remove(after=timedelta(seconds=number))
        yard.restore()
        yard.age()


def _step(yard: Yard, rng: random.Random, number: int) -> None:
    """Something that changes tables and files, of any age."""
    staged = [f"{one[0]}.{one[1]}" for one in yard.catalog.list_tables("staging")] if _has_staging(yard) else []
    steps: list[Callable[[], object]] = [
        lambda: yard.append(number),
        lambda: yard.table().overwrite(rows(number)),
        lambda: yard.table().delete(f"id = {number - 1}"),
        lambda: yard.leave(f"data/left-{number}.parquet"),
        lambda: yard.written(number),
        lambda: yard.stage(f"s{number % 3}", number),
        lambda: _drop(yard, staged[:1]),
        lambda: yard.copy(f"backfill_staging.b{number % 2}", number),
        lambda: prepared(yard, *yard.written(number)),
        lambda: yard.table().manage_snapshots().create_tag(_any_snapshot(yard, rng), f"t{number}").commit(),
        lambda: yard.table().maintenance.expire_snapshots().older_than(datetime.now(UTC)).commit(),
        lambda: yard.remove(after=timedelta(seconds=number)),
        lambda: yard.restore(),
        lambda: yard.age(timedelta(days=rng.choice((0, 2, 5)))),
    ]
    rng.choice(steps)()


def _drop(yard: Yard, names: Sequence[str]) -> None:
    for name in names:
        drop_staging_copy(yard.catalog, name)


def _has_staging(yard: Yard) -> bool:
    return ("staging",) in yard.catalog.list_namespaces()


def _any_snapshot(yard: Yard, rng: random.Random) -> int:
    return rng.choice(yard.table().metadata.snapshots).snapshot_id


def referenced(yard: Yard) -> set[Path]:
    """All files that any table refers to, read in another way than the product's: by the metadata tables."""
    found: set[str] = set()
    for namespace in yard.catalog.list_namespaces():
        for name in yard.catalog.list_tables(namespace):
            table = yard.catalog.load_table(name)
            found.add(table.metadata_location)
            found |= {entry.metadata_file for entry in table.metadata.metadata_log}
            found |= {str(path) for path in table.inspect.all_manifests()["path"].to_pylist()}
            for snapshot in table.metadata.snapshots:
                found.add(snapshot.manifest_list)
                found |= {str(path) for path in table.inspect.files(snapshot.snapshot_id)["file_path"].to_pylist()}
    return {Path(path.removeprefix("file://")) for path in found}


@pytest.mark.parametrize("seed", sampled(range(200), range(3), full=range(3, 200)))
def test_no_referenced_file_is_ever_moved(yard: Yard, seed: int) -> None:
    rng = random.Random(seed)  # noqa: S311  # repeatable
    for number in range(10, 10 + rng.randint(5, 14)):
        _step(yard, rng, number)
        assert [file for file in referenced(yard) if not file.exists()] == []
    yard.age()
    yard.remove(after=timedelta(hours=1))
    yard.remove(after=timedelta(hours=1) + WEEK)
    assert [file for file in referenced(yard) if not file.exists()] == []
    assert yard.trashed() == set()
    for namespace in yard.catalog.list_namespaces():
        for name in yard.catalog.list_tables(namespace):
            yard.catalog.load_table(name).scan().to_arrow()
    left = {file for file in yard.stored() if file.suffix in (".parquet", ".avro")} - referenced(yard)
    assert not left or any("may still land" in note for note in yard.plan().seen.notes)
    yard.ids()
