"""Unread input, and files that were written again, from what sources report and the logs of a checkpoint say."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sluice.checkpoints.checkpoint_files import LocalCheckpointFiles
from sluice.declarations.source_declarations import FilesSource
from sluice.errors import InputReplacedError
from sluice.ledger.progress_samples import LagObservation
from sluice.settings import FilesConnection, ObjectStoreSettings
from sluice.sources.iceberg_positions import TableStep
from sluice.sources.unread_input import (
    FolderObservation,
    PartitionBounds,
    files_read_up_to,
    has_to_pass,
    is_at_end,
    is_same_time,
    observe_folder,
    require_unchanged_files,
    unread_records,
    unread_rows,
)

TOPICS = {"flights": {0: PartitionBounds(first=0, end=100), 1: PartitionBounds(first=40, end=90)}}
HISTORY = (
    TableStep(snapshot_id=5, appended_rows=7, appended_files=1),
    TableStep(snapshot_id=4),
    TableStep(snapshot_id=3, appended_rows=100, appended_files=4),
    TableStep(snapshot_id=2, appended_rows=10, appended_files=1),
)


@pytest.mark.parametrize(
    ("offset", "rows"),
    [
        (None, 150),
        ({"flights": {"0": 0, "1": 0}}, 150),
        ({"flights": {"0": 60, "1": 90}}, 40),
        ({"flights": {"0": 100}}, 50),
        ({"flights": {"0": 100, "1": 90}}, 0),
        ({"flights": {"0": 120, "1": 90}}, 0),
    ],
)
def test_unread_records(offset: Any, rows: int) -> None:
    assert unread_records(offset, topics=TOPICS, from_the_beginning=True) == LagObservation(rows=rows)


def test_a_reader_of_what_comes_next_has_no_lag_before_it_has_started() -> None:
    assert unread_records(None, topics=TOPICS, from_the_beginning=False).rows is None


def at(snapshot_id: int, position: int) -> dict[str, Any]:
    """An offset as Iceberg's source writes it."""
    return {"version": 1, "snapshot_id": snapshot_id, "position": position, "scan_all_files": False}


@pytest.mark.parametrize(
    ("offset", "rows"),
    [
        (None, 117),
        (at(-1, -1), 117),
        (at(5, 1), 0),
        (at(5, 0), 7),
        (at(4, 0), 7),
        (at(3, 4), 7),
        (at(3, 1), 82),
        (at(2, 1), 107),
    ],
)
def test_unread_rows(offset: Any, rows: int) -> None:
    assert unread_rows(offset, history=HISTORY) == LagObservation(rows=rows)


def test_a_reader_that_begins_at_a_time_has_not_missed_what_came_before_it() -> None:
    steps = tuple(
        TableStep(snapshot_id=number, appended_rows=10, appended_files=1, committed_at_ms=number * 1000)
        for number in (3, 2, 1)
    )
    assert unread_rows(None, history=steps, starting=datetime.fromtimestamp(4, tz=UTC)).rows == 0
    assert unread_rows(None, history=steps, starting=datetime.fromtimestamp(2, tz=UTC)).rows == 20
    assert unread_rows(at(1, 1), history=steps, starting=datetime.fromtimestamp(4, tz=UTC)).rows == 20, "it has begun"


def test_a_reader_whose_snapshot_is_gone_has_an_unknown_lag() -> None:
    lag = unread_rows(at(1, 0), history=HISTORY)
    assert lag == LagObservation(rows=None, problem="its snapshot 1 is no longer in the table's history")


def test_an_empty_table_has_nothing_to_read() -> None:
    assert unread_rows(None, history=()) == LagObservation(rows=0)


@pytest.mark.parametrize(
    ("offset", "expected"),
    [
        ({"flights": {"0": 100, "1": 90}}, True),
        ({"flights": {"0": 100, "1": 89}}, False),
        ({"flights": {"0": 101, "1": 90}}, False),
        ({"flights": {"0": 100}}, False),
        ({"flights": {"0": 100, "1": 90}, "weather": {"0": 3}}, False),
        (None, False),
    ],
    ids=["at the end", "before it", "behind the end of a topic made anew", "no partition", "a topic is gone", "unset"],
)
def test_a_reader_at_the_end_has_lost_nothing(offset: Any, expected: bool) -> None:
    assert is_at_end(offset, topics=TOPICS) is expected


@pytest.mark.parametrize(
    ("offset", "expected"), [(None, False), (at(2, 1), True), (at(3, 4), True), (at(4, 0), False), (at(-1, 0), True)]
)
def test_a_reader_comes_past_an_erasure_unless_it_begins_with_what_is_left(offset: Any, expected: bool) -> None:
    erased = tuple(replace(one, is_of_erasure=one.snapshot_id == 4) for one in HISTORY)
    assert has_to_pass(offset, history=erased, failing={}) is expected
    assert not has_to_pass(offset, history=HISTORY, failing={"overwrite": True})


@pytest.mark.parametrize("is_closed_beside", [False, True])
def test_a_file_that_was_written_again_is_found_beside_a_closed_folder(
    tmp_path: Path, *, is_closed_beside: bool
) -> None:
    """Its new content is never read, and the run is green: that is no less so where another folder is closed."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "again.json").write_text("{}")
    os.utime(tmp_path / "in" / "again.json", (1_700_000_000, 1_700_000_000))
    if is_closed_beside:  # the tests may run as root, who may enter every folder but this
        (tmp_path / "in" / "lost+found").symlink_to("lost+found")
    root = (tmp_path / "in").as_uri()
    line = json.dumps({"path": f"{root}/again.json", "timestamp": 1_600_000_000_000, "batchId": 0})
    (tmp_path / "c" / "sources" / "0").mkdir(parents=True)
    (tmp_path / "c" / "sources" / "0" / "0").write_text(f"v1\n{line}")
    source = FilesSource.model_validate({"connection": "here", "format": "text"})
    given: Any = SimpleNamespace(is_stream=True, declared_source=SimpleNamespace(source=source))
    declaration: Any = SimpleNamespace(stream="s", inputs={"files": given})
    connection = FilesConnection(kind="files", root=root)
    settings: Any = SimpleNamespace(object_store=ObjectStoreSettings(), connection=lambda *_: connection)

    with pytest.raises(InputReplacedError):
        require_unchanged_files(declaration, settings, checkpoint=(tmp_path / "c").as_uri())


def log(*entries: tuple[str, int]) -> str:
    """A file of the log of a source."""
    return "\n".join(["v1", *(json.dumps({"path": path, "timestamp": 1, "batchId": batch}) for path, batch in entries)])


SINGLE = {f"sources/0/{number}": log((f"file:///in/{number}%20.json", number)) for number in range(4)}
KAFKA = {"sources/0/0": 'v1\n{"flights":{"0":7}}', "sources/1/0": log(("file:///in/a.json", 0))}


@pytest.mark.parametrize(
    ("texts", "newest", "expected"),
    [
        (SINGLE, 1, {"0 ", "1 "}),
        (SINGLE, 3, {"0 ", "1 ", "2 ", "3 "}),
        ({name: text for name, text in SINGLE.items() if name != "sources/0/1"}, 3, None),
        (SINGLE, 4, None),
        ({"sources/0/2.compact": log(("file:///in/a.json", 0), ("file:///in/b.json", 2))}, 1, {"a"}),
        (
            {"sources/0/2.compact": log(("file:///in/a.json", 0), ("file:///in/b.json", 2)), **SINGLE},
            3,
            {"a", "b", "3 "},
        ),
        (KAFKA, 0, {"a"}),
        ({"sources/0/0": log(("file:///in/a.json", 0)), "sources/1/0": log(("file:///in/b.json", 0))}, 0, None),
        ({"sources/0/0": log(("file:///in/a.json", 0)), "sources/1/0": log(("file:///in/a.json", 0))}, 0, {"a"}),
        ({}, 0, None),
    ],
    ids=["up to one", "all", "hole", "no entry", "compacted", "then single", "topic", "differ", "twice", "none"],
)
def test_the_files_up_to_an_entry(
    tmp_path: Path, texts: dict[str, str], newest: int, expected: set[str] | None
) -> None:
    checkpoint = written(tmp_path, texts)

    found = files_read_up_to(newest, checkpoint)

    assert found == (None if expected is None else {f"file:///in/{name}.json" for name in expected})


def written(folder: Path, texts: dict[str, str]) -> LocalCheckpointFiles:
    """A checkpoint with these files."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return LocalCheckpointFiles(folder.as_uri())


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        (1_700_000_000_123, 1_700_000_000_123, True),
        (1_700_000_000_123, 1_700_000_000_124, False),
        (1_700_000_000_123, 1_700_000_000_000, True),
        (1_700_000_001_000, 1_700_000_000_000, False),
    ],
)
def test_times_of_change_are_compared_as_far_as_they_are_known(first: int, second: int, *, is_same: bool) -> None:
    assert is_same_time(first, second) is is_same


def test_a_file_that_was_written_again_is_changed_and_not_unread(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("same.json", "again.json", "new.json"):
        (tmp_path / "in" / name).write_text("{}")
        os.utime(tmp_path / "in" / name, (1_700_000_000, 1_700_000_000))
    root = (tmp_path / "in").as_uri()
    lines = [
        json.dumps({"path": f"{root}/{name}", "timestamp": at, "batchId": 0})
        for name, at in (("same.json", 1_700_000_000_000), ("again.json", 1_600_000_000_000))
    ]
    written(tmp_path / "c", {"sources/0/0": "\n".join(["v1", *lines])})
    source = FilesSource.model_validate({"connection": "here", "format": "text"})

    seen = observe_folder(source, root=root, checkpoint=(tmp_path / "c").as_uri(), object_store=ObjectStoreSettings())

    assert seen == FolderObservation(unread=frozenset({f"{root}/new.json"}), changed=frozenset({f"{root}/again.json"}))


def test_the_time_of_a_file_is_cut_off_and_never_rounded_up(tmp_path: Path) -> None:
    """As Hadoop has it in the log of read files: otherwise a file that is untouched counts as written again."""
    (tmp_path / "a.json").write_text("{}")
    os.utime(tmp_path / "a.json", ns=(0, 1_700_000_000_123_999_900))

    (seen,) = LocalCheckpointFiles(tmp_path.as_uri()).list_files()

    assert (int(seen.modified_at.timestamp()), seen.modified_at.microsecond) == (1_700_000_000, 123_999)
