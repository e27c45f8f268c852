"""The unread files of a Delta table, by its log."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from sluice.checkpoints.checkpoint_files import LocalCheckpointFiles
from sluice.ledger.progress_samples import LagObservation
from sluice.sources import source_heads
from sluice.sources.source_heads import unread_commits

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def added(*names: str, has_data: bool = True) -> list[dict[str, Any]]:
    """Files that a commit adds."""
    return [{"add": {"path": name, "dataChange": has_data}} for name in names]


def removed(*names: str, has_data: bool = True) -> list[dict[str, Any]]:
    """Files that a commit removes."""
    return [{"remove": {"path": name, "dataChange": has_data}} for name in names]


def commit(folder: Path, version: int, *actions: Mapping[str, Any], at: datetime = NOON) -> None:
    """Write a commit to the log of a table."""
    log = folder / "_delta_log"
    log.mkdir(exist_ok=True)
    lines = [{"commitInfo": {"timestamp": int(at.timestamp() * 1000)}}, *actions]
    (log / f"{version:020}.json").write_text("\n".join(json.dumps(line) for line in lines))


def position(version: int, index: int, *, is_snapshot: bool = False) -> dict[str, Any]:
    """An offset of Delta's source."""
    return {"sourceVersion": 1, "reservoirVersion": version, "index": index, "isStartingVersion": is_snapshot}


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A table of four commits: two files, a file, a compaction of all three, two files."""
    commit(tmp_path, 0, *added("a", "b"))
    commit(tmp_path, 1, *added("c"))
    commit(tmp_path, 2, *added("d", has_data=False), *removed("a", "b", "c", has_data=False))
    commit(tmp_path, 3, *added("e", "f"))
    return tmp_path


def lag(table: Path, offset: Any, *, since: datetime | None = None) -> LagObservation | None:
    """The lag of a reader at an offset."""
    return unread_commits(offset, table=LocalCheckpointFiles(table.as_uri()), since=since)


@pytest.mark.parametrize(
    ("offset", "files"),
    [
        (None, 3),
        (position(0, -1), 5),
        (position(0, 0), 4),
        (position(1, -1), 3),
        (position(1, -100), 3),
        (position(3, 0), 1),
        (position(3, 1), 0),
        (position(4, -1), 0),
        (position(2, 0, is_snapshot=True), 3),
    ],
)
def test_files_after_a_position_count_and_compactions_do_not(table: Path, offset: Any, files: int) -> None:
    assert lag(table, offset) == LagObservation(rows=None, files=files)


def test_a_commit_that_only_deletes_rows_is_one_that_its_reader_has_to_fail_at(table: Path) -> None:
    commit(table, 4, *removed("e"))
    assert lag(table, position(4, -1)) == LagObservation(rows=None, files=1)


def test_a_new_reader_begins_with_the_commits_since_its_time(table: Path) -> None:
    commit(table, 4, *added("g"), at=NOON.replace(hour=13))
    assert lag(table, None, since=NOON.replace(hour=12, minute=30)) == LagObservation(rows=None, files=1)


def test_how_large_a_table_is_whose_log_was_cut_is_unknown(table: Path) -> None:
    (table / "_delta_log" / f"{0:020}.json").unlink()
    unknown = lag(table, None)
    assert unknown is not None
    assert (unknown.rows, unknown.files, "the beginning of the Delta table's log" in unknown.problem) == (
        None,
        None,
        True,
    )
    assert lag(table, position(3, 0)) == LagObservation(rows=None, files=1)


def test_of_a_reader_far_behind_as_many_files_are_known_as_are_read(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_heads, "MOST_COMMITS_READ", 2)
    assert lag(table, position(0, 0)) == LagObservation(rows=None, files=2)


def test_a_folder_without_a_log_is_no_table(tmp_path: Path) -> None:
    assert lag(tmp_path, None) is None
