"""A removal that is killed at any step loses no file: repeating it, or bringing the files back, completes it."""

from __future__ import annotations

import signal
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from tests.fixtures.drill import sampled
from tests.fixtures.trash_process import carry_out, folder_at

from sluice.errors import LakehouseError
from sluice.maintenance.orphan_files import Removal, delete_removal, move_files, removal_of, removals_in, restore_files
from sluice.publication.crash_points import CrashPoint

CONTENT = {"w/run_1/kind=a/1.parquet": b"one", "w/run_1/2.parquet": b"three"}
TRASH = "_sluice_trash_u"
POINTS = range(1, 6)
"""A move of two files passes five points: the list, and two for each file."""


@pytest.fixture
def removal(tmp_path: Path) -> Removal:
    for place, content in CONTENT.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(content)
    files = sorted(folder_at(str(tmp_path)).below(), key=lambda file: file.place)
    return removal_of(files, identity="r1", trash=TRASH, now=datetime(2026, 11, 1, tzinfo=UTC))


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def in_place(folder: Path) -> dict[str, bytes]:
    return {place: found for place, found in content(folder).items() if not place.startswith(TRASH)}


def known(folder: Path) -> list[Removal]:
    return list(removals_in(folder_at(str(folder)), TRASH))


def die(step: str, folder: Path, removal: Removal, point: int) -> None:
    assert carry_out(step, str(folder), removal, die_at=point) == -signal.SIGKILL


@pytest.mark.full  # every run: the next one completes it, and is undone
@pytest.mark.parametrize("point", POINTS)
def test_a_move_that_was_killed_is_undone_by_bringing_the_files_back(
    tmp_path: Path, removal: Removal, point: int
) -> None:
    die("move", tmp_path, removal, point)
    assert known(tmp_path) == [removal]
    restore_files(folder_at(str(tmp_path)), [removal])
    assert in_place(tmp_path) == CONTENT


@pytest.mark.parametrize("point", sampled(POINTS, [3], full=POINTS))
def test_a_move_that_was_killed_is_completed_by_the_next_one(tmp_path: Path, removal: Removal, point: int) -> None:
    die("move", tmp_path, removal, point)
    folder = folder_at(str(tmp_path))
    rest = [file for file in folder.below() if not file.place.startswith(TRASH)]
    second = removal_of(rest, identity="r2", trash=TRASH, now=datetime(2026, 11, 2, tzinfo=UTC))
    move_files(folder, second)
    assert in_place(tmp_path) == {}
    restore_files(folder, known(tmp_path))
    assert in_place(tmp_path) == CONTENT


@pytest.mark.parametrize("at", range(1, 6))
def test_bringing_back_beside_a_removal_that_lost_its_lock_loses_no_file(
    tmp_path: Path, removal: Removal, at: int
) -> None:
    folder, points = folder_at(str(tmp_path)), list[CrashPoint]()

    def reached(point: CrashPoint) -> None:
        points.append(point)
        if len(points) == at:
            restore_files(folder, [removal])

    move_files(folder, removal, reached=reached)
    restore_files(folder, known(tmp_path))
    assert in_place(tmp_path) == CONTENT


@pytest.mark.full  # every run: a copy that is half written
@pytest.mark.parametrize("point", range(1, 3))
def test_bringing_back_that_was_killed_is_repeated(tmp_path: Path, removal: Removal, point: int) -> None:
    folder = folder_at(str(tmp_path))
    move_files(folder, removal)
    die("restore", tmp_path, removal, point)
    restore_files(folder, [removal])
    assert in_place(tmp_path) == CONTENT


@pytest.mark.full  # every run: one beside another removal
@pytest.mark.parametrize("point", range(1, 3))
def test_a_deletion_that_was_killed_is_repeated(tmp_path: Path, removal: Removal, point: int) -> None:
    folder = folder_at(str(tmp_path))
    move_files(folder, removal)
    die("delete", tmp_path, removal, point)
    assert known(tmp_path) == [removal]
    delete_removal(folder, removal)
    assert content(tmp_path) == {}


def test_a_half_written_copy_is_not_taken_for_the_file(tmp_path: Path, removal: Removal) -> None:
    folder = folder_at(str(tmp_path))
    move_files(folder, removal)
    first = removal.files[0]
    (tmp_path / first.place).write_bytes(b"o")
    restore_files(folder, [removal])
    assert in_place(tmp_path) == CONTENT


def test_files_that_are_gone_from_the_trash_are_named_and_nothing_is_forgotten(
    tmp_path: Path, removal: Removal
) -> None:
    folder = folder_at(str(tmp_path))
    move_files(folder, removal)
    (tmp_path / removal.copy_of(removal.files[0])).unlink()
    with pytest.raises(LakehouseError, match="1 removed files are not in the trash"):
        restore_files(folder, [removal])
    assert known(tmp_path) == [removal]


def test_a_list_that_was_not_written_to_its_end_moved_nothing(tmp_path: Path, removal: Removal) -> None:
    (tmp_path / removal.folder).mkdir(parents=True)
    (tmp_path / removal.folder / "list.parquet").write_bytes(b"PAR1half")
    assert known(tmp_path) == []


def test_a_deletion_that_was_killed_keeps_no_other_removal_in_the_trash(tmp_path: Path, removal: Removal) -> None:
    folder = folder_at(str(tmp_path))
    move_files(folder, replace(removal, files=removal.files[:1]))
    second = replace(removal, identity="r2", folder=f"{TRASH}/r2", files=removal.files[1:])
    move_files(folder, second)
    die("delete", tmp_path, removal, 1)
    with pytest.raises(LakehouseError, match="1 others are back"):
        restore_files(folder, known(tmp_path))
    last = removal.files[1].place
    assert content(tmp_path)[last] == CONTENT[last]
