"""The files that a stream has read, from the logs of its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.checkpoints.checkpoint_files import LocalCheckpointFiles
from sluice.sources.unread_input import all_read_files, files_read_up_to


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


def test_the_first_position_in_a_topic_is_no_file(tmp_path: Path) -> None:
    assert all_read_files(written(tmp_path, KAFKA)) == {"file:///in/a.json"}


def written(folder: Path, texts: dict[str, str]) -> LocalCheckpointFiles:
    """A checkpoint with these files."""
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return LocalCheckpointFiles(folder.as_uri())
