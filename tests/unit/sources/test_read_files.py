"""The files that a stream has read, from the logs of its checkpoint."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from sluice.checkpoints.checkpoint_files import LocalCheckpointFiles
from sluice.declarations.source_declarations import FilesSource
from sluice.settings import ObjectStoreSettings
from sluice.sources.unread_input import (
    FolderObservation,
    files_read_up_to,
    is_same_time,
    observe_folder,
)


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
