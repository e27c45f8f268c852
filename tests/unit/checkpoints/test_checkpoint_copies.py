"""Copies of a checkpoint: what is copied, what is kept, and what a copy that broke off leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from tests.fakes.checkpoint_files import WRITTEN_AT, FakeCheckpointFiles

from sluice.checkpoints import checkpoint_copies
from sluice.checkpoints.checkpoint_copies import (
    KEPT_COPIES,
    CheckpointCopy,
    CopiedCheckpoint,
    Rehearsal,
    copies_location,
    copy_checkpoint,
    find_rehearsal,
    list_copies,
    record_rehearsal,
)
from sluice.checkpoints.checkpoint_files import CheckpointFiles, LocalCheckpointFiles
from sluice.checkpoints.checkpoint_layout import FileObservation
from sluice.errors import CheckpointError, LeaseLostError

LATER = WRITTEN_AT + timedelta(hours=1)


def stateful(batches: int) -> dict[str, str]:
    """A checkpoint that has committed so many batches."""
    numbers = range(batches)
    return {
        "metadata": "m",
        ".metadata.crc": "of Hadoop",
        **{f"{log}/{number}": f"{log} {number}" for log in ("offsets", "commits") for number in numbers},
        **{f"state/0/0/{number + 1}.delta": f"state {number}" for number in numbers},
    }


def copied(checkpoint: FakeCheckpointFiles, store: CheckpointFiles, now: datetime = LATER) -> CheckpointCopy | None:
    """A copy of a checkpoint that is the run's own."""
    return copy_checkpoint(checkpoint, store, now=now, token=1, require=lambda: None)


def restored(store: FakeCheckpointFiles, copy: CheckpointCopy) -> dict[str, str | None]:
    """The files that a copy holds."""
    whole = CopiedCheckpoint(store, copy)
    return {one.path: whole.read_text(one.path) for one in whole.list_files()}


@dataclass(frozen=True, slots=True)
class _Dying(FakeCheckpointFiles):
    """A folder whose storage fails after so many writes."""

    writes: list[str] = field(default_factory=list)
    most: int = 0

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write, or fail."""
        if len(self.writes) == self.most:
            raise CheckpointError("no space")
        self.writes.append(path)
        FakeCheckpointFiles.write_bytes(self, path, content)

    def write_text(self, path: str, text: str) -> None:
        """Write, or fail."""
        self.write_bytes(path, text.encode())


@dataclass(frozen=True, slots=True)
class _Running(FakeCheckpointFiles):
    """A checkpoint that a query writes into behind each look."""

    looks: list[str] = field(default_factory=list)

    def list_files(self, folder: str = "") -> Sequence[FileObservation]:
        """Every file below `folder`, as it is before the query goes on."""
        found = FakeCheckpointFiles.list_files(self, folder)
        self.looks.append(folder)
        for number in (2 * len(self.looks), 2 * len(self.looks) + 1):
            names = (f"sources/0/{number}", f"offsets/{number}", f"state/0/0/{number + 1}.zip", f"commits/{number}")
            self.texts.update({f"state/0/0/SSTs/{number + 1}.sst": "of it", **dict.fromkeys(names, "of the query")})
        return found


@dataclass(frozen=True, slots=True)
class _Removed(FakeCheckpointFiles):
    """A checkpoint from which a file goes between the look and the read."""

    gone: str = ""

    def read_bytes(self, path: str) -> bytes | None:
        """The content of one file."""
        return None if path == self.gone else FakeCheckpointFiles.read_bytes(self, path)


@dataclass(frozen=True, slots=True)
class _Watched(FakeCheckpointFiles):
    """A folder that remembers what is read from it and written into it."""

    read: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)

    def read_bytes(self, path: str) -> bytes | None:
        """The content of one file."""
        self.read.append(path)
        return FakeCheckpointFiles.read_bytes(self, path)

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write one file."""
        self.written.append(path)
        FakeCheckpointFiles.write_bytes(self, path, content)


@dataclass(frozen=True, slots=True)
class _Removing(FakeCheckpointFiles):
    """A folder whose storage fails after so many files were removed."""

    removed: list[str] = field(default_factory=list)
    most: int = 0

    def remove(self, path: str) -> None:
        """Remove, or fail."""
        if len(self.removed) == self.most:
            raise CheckpointError("no answer")
        self.removed.append(path)
        FakeCheckpointFiles.remove(self, path)


def test_copies_lie_beside_the_streams() -> None:
    assert copies_location("s3a://lake/checkpoints/silver/2/") == "s3a://lake/checkpoints/.copies/silver/2"


def test_a_copy_holds_the_checkpoint_without_hadoops_checksums() -> None:
    checkpoint, store = FakeCheckpointFiles(stateful(2)), FakeCheckpointFiles({})

    copy = copied(checkpoint, store)

    assert copy is not None
    assert (copy.committed, list_copies(store)) == (1, (copy,))
    assert restored(store, copy) == {path: text for path, text in checkpoint.texts.items() if path[0] != "."}


def test_a_checkpoint_without_state_follows_from_the_tables_and_is_not_copied() -> None:
    checkpoint, store = (
        FakeCheckpointFiles({"metadata": "m", "offsets/0": "o", "commits/0": "c"}),
        FakeCheckpointFiles({}),
    )

    assert copied(checkpoint, store) is None
    assert not store.texts


def test_what_the_copy_before_holds_is_not_copied_again() -> None:
    checkpoint, store = _Watched(stateful(2)), FakeCheckpointFiles({})
    first = copied(checkpoint, store)
    checkpoint.texts.update(stateful(3))
    checkpoint.read.clear()

    second = copied(checkpoint, store, LATER + timedelta(hours=1))

    assert first is not None
    assert second is not None
    assert sorted(checkpoint.read) == ["commits/2", "offsets/2", "state/0/0/3.delta"]
    assert copied(checkpoint, store, LATER + timedelta(hours=2)) == second, "nothing has changed"
    assert list_copies(store) == (second, first)


def test_a_file_that_was_young_is_copied_again_since_its_second_change_need_not_show() -> None:
    checkpoint, store = FakeCheckpointFiles(stateful(1)), FakeCheckpointFiles({})
    copied(checkpoint, store, WRITTEN_AT + timedelta(seconds=1))
    checkpoint.texts.update({"state/0/0/1.delta": "STATE 0", "offsets/1": "o"})

    second = copied(checkpoint, store)

    assert second is not None
    assert restored(store, second)["state/0/0/1.delta"] == "STATE 0"


def test_the_oldest_copies_go_with_what_only_they_hold() -> None:
    checkpoint, store = FakeCheckpointFiles(stateful(1)), FakeCheckpointFiles({})
    for hours in range(KEPT_COPIES + 2):
        checkpoint.texts.update(stateful(hours + 1))
        checkpoint.texts.pop(f"offsets/{hours - 1}", None)  # Spark removes old entries
        copy = copied(checkpoint, store, LATER + timedelta(hours=hours))
        assert copy is not None
        record_rehearsal(store, copy, Rehearsal(rehearsed_at=LATER, batch=hours, seconds=1.5))

    copies = list_copies(store)

    found = [find_rehearsal(store, one) for one in copies]
    assert [one.batch for one in found if one is not None] == [KEPT_COPIES + 1, KEPT_COPIES]
    assert [one.committed for one in copies] == [KEPT_COPIES + 1, KEPT_COPIES]
    assert set(store.texts) == {one.kept_at for copy in copies for one in copy.files} | {
        f"{copy.clock}{ending}" for copy in copies for ending in (".json", ".rehearsed")
    }
    assert all(restored(store, copy)["metadata"] == "m" for copy in copies)


@pytest.mark.parametrize("most", range(8))
def test_a_copy_that_broke_off_counts_as_none_and_the_next_one_removes_what_it_left(most: int) -> None:
    checkpoint, texts = FakeCheckpointFiles(stateful(2)), dict[str, str]()
    with pytest.raises(CheckpointError, match="no space"):
        copied(checkpoint, _Dying(texts, most=most))
    store = FakeCheckpointFiles(texts)
    assert list_copies(store) == ()

    copy = copied(checkpoint, store, LATER + timedelta(hours=1))

    assert copy is not None
    assert set(texts) == {one.kept_at for one in copy.files} | {f"{copy.clock}.json"}


def test_a_content_that_is_there_is_not_written_again(tmp_path: Path) -> None:
    """Two files of one content at once, and what a copy that broke off has written."""
    alike = stateful(1) | {f"state/0/{number}/1.delta": "of all" for number in range(40)}
    checkpoint, store = FakeCheckpointFiles(alike), LocalCheckpointFiles(tmp_path.as_uri())
    copy = copied(checkpoint, store)
    assert copy is not None
    assert len(store.list_files("files")) == len(set(alike.values())) - 1, "Hadoop's checksum is none of it"
    store.remove(f"{copy.clock}.json")
    again = _Watched({one.path: store.read_text(one.path) or "" for one in store.list_files()})

    assert copied(checkpoint, again) == copy

    assert again.written == []
    assert set(again.texts) == {*(one.kept_at for one in copy.files), f"{copy.clock}.json"}


def test_a_file_that_is_lost_from_among_the_copies_is_copied_again() -> None:
    checkpoint, store = FakeCheckpointFiles(stateful(2)), FakeCheckpointFiles({})
    first = copied(checkpoint, store)
    assert first is not None
    del store.texts[first.files[-1].kept_at]

    assert copied(checkpoint, store, LATER + timedelta(hours=1)) == first

    assert restored(store, first)[first.files[-1].path] == checkpoint.texts[first.files[-1].path]


def test_large_files_are_read_alone_behind_the_small_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_copies, "LARGE_BYTES", 12)
    store = FakeCheckpointFiles({})
    checkpoint = _Watched(stateful(2) | {"commits/0": "large enough", "commits/1": "also large enough"})

    copy = copied(checkpoint, store)

    assert copy is not None
    assert checkpoint.read[-2:] == ["commits/0", "commits/1"]
    assert len({one.path for one in copy.files}) == len(checkpoint.read), "each is read once"
    assert restored(store, copy)["commits/0"] == "large enough"


@pytest.mark.parametrize("most", range(4))
def test_no_copy_is_broken_while_the_oldest_goes(most: int) -> None:
    checkpoint, texts = FakeCheckpointFiles(stateful(1)), dict[str, str]()
    for hours in range(KEPT_COPIES):
        copied(checkpoint, FakeCheckpointFiles(texts), LATER + timedelta(hours=hours))
        checkpoint.texts.update({path: f"{text}, again" for path, text in checkpoint.texts.items() if "/" in path})
    with pytest.raises(CheckpointError, match="no answer"):
        copied(checkpoint, _Removing(texts, most=most), LATER + timedelta(hours=KEPT_COPIES))

    copies = list_copies(FakeCheckpointFiles(texts))

    assert len(copies) == KEPT_COPIES + (most == 0)
    assert all(restored(FakeCheckpointFiles(texts), copy)["metadata"] == "m" for copy in copies)


@pytest.mark.parametrize("most", [0, 3, len(stateful(9)) - 1])
def test_a_copy_is_given_up_between_two_files_and_before_it_counts(most: int) -> None:
    asked: list[None] = []

    def late() -> None:
        asked.append(None)
        if len(asked) > most:
            raise CheckpointError("too late")

    store = FakeCheckpointFiles({})
    with pytest.raises(CheckpointError, match="too late"):
        copy_checkpoint(FakeCheckpointFiles(stateful(9)), store, now=LATER, token=1, require=late)
    assert (list_copies(store), len(store.texts)) == ((), most)


def test_a_run_that_has_lost_its_lease_leaves_no_copy() -> None:
    def lost() -> None:
        raise LeaseLostError("another run has it")

    store = FakeCheckpointFiles({})
    with pytest.raises(LeaseLostError):
        copy_checkpoint(FakeCheckpointFiles(stateful(1)), store, now=LATER, token=1, require=lost)
    assert list_copies(store) == ()


def test_the_copy_of_a_running_query_is_what_a_crash_leaves() -> None:
    """It has committed 0 and 1 when the copy begins, and commits two behind each look."""
    store = FakeCheckpointFiles({})

    copy = copied(_Running(stateful(2)), store)

    assert copy is not None
    paths = {one.path for one in copy.files}
    assert (copy.committed, copy.planned) == (1, 2)
    assert {path for path in paths if path.startswith("commits")} == {"commits/0", "commits/1"}
    assert {path for path in paths if path.startswith("offsets")} == {"offsets/0", "offsets/1", "offsets/2"}
    zips = {int(path[len("state/0/0/") : -len(".zip")]) for path in paths if path.endswith(".zip")}
    assert zips == {3}, "of the batch that is planned in it; the looks have seen versions up to 6"
    assert {f"state/0/0/SSTs/{number}.sst" for number in zips} | {"sources/0/2"} <= paths


@pytest.mark.parametrize("gone", ["state/0/0/1.delta", "state/0/0/1.delta.crc", "offsets/0", "commits/0"])
def test_what_spark_removes_meanwhile_is_not_in_the_copy(gone: str) -> None:
    checkpoint = _Removed(stateful(2) | {"state/0/0/1.delta.crc": "checksum"}, gone=gone)

    copy = copied(checkpoint, FakeCheckpointFiles({}))

    assert copy is not None
    assert gone not in {one.path for one in copy.files}


@pytest.mark.parametrize("gone", ["metadata", "sources/0/1", "state/0/0/SSTs/7.sst", "state/0/_metadata/schema/0"])
def test_a_copy_that_would_not_be_whole_is_given_up(gone: str) -> None:
    """What a state of RocksDB refers to does not show by its name to which it belongs."""
    store = FakeCheckpointFiles({})
    others = ("sources/0/1", "state/0/0/SSTs/7.sst", "state/0/0/1.zip", "state/0/_metadata/schema/0")
    checkpoint = _Removed(stateful(2) | dict.fromkeys(others, "content"), gone=gone)

    with pytest.raises(CheckpointError, match=f"{gone} of .* was removed while the checkpoint was copied"):
        copied(checkpoint, store)

    assert list_copies(store) == ()


def test_a_file_of_a_copy_that_is_damaged_is_not_read() -> None:
    store = FakeCheckpointFiles({})
    copy = copied(FakeCheckpointFiles(stateful(1)), store)
    assert copy is not None
    kept_at = next(one.kept_at for one in copy.files if one.path == "offsets/0")
    store.texts[kept_at] = "OFFSETS 0"
    with pytest.raises(CheckpointError, match="is not what was copied"):
        CopiedCheckpoint(store, copy).read_bytes("offsets/0")
    del store.texts[kept_at]
    with pytest.raises(CheckpointError, match="is gone"):
        CopiedCheckpoint(store, copy).read_bytes("offsets/0")


def test_what_cannot_be_read_of_a_rehearsal_is_none() -> None:
    store = FakeCheckpointFiles({})
    copy = copied(FakeCheckpointFiles(stateful(1)), store)
    assert copy is not None
    assert find_rehearsal(store, copy) is None
    store.texts[f"{copy.clock}.rehearsed"] = "{"
    assert find_rehearsal(store, copy) is None


def test_an_index_that_cannot_be_read_is_no_copy() -> None:
    assert list_copies(FakeCheckpointFiles({"20261120T120000000000Z.json": "{"})) == ()
