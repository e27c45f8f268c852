"""A checkpoint is observed while it is written, and its files are compared with their checksums."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import google_crc32c
import pytest
from tests.fakes.checkpoint_files import WRITTEN_AT, FakeCheckpointFiles

from sluice.checkpoints.checkpoint_files import LocalCheckpointFiles
from sluice.checkpoints.checkpoint_layout import FileObservation
from sluice.checkpoints.health_decision import CheckpointExpectation, judge_checkpoint
from sluice.checkpoints.observe_checkpoint import damaged_files, observe_checkpoint

OFFSETS = 'v1\n{"batchWatermarkMs":0}\n{"logOffset":1}'
COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
QUERY_ID = "5b50e120-f7a9-4610-916a-695e361d1bb4"


def files(*, planned: int, committed: int) -> dict[str, str]:
    """A checkpoint that has planned and committed so many batches."""
    return {
        "metadata": f'{{"id":"{QUERY_ID}"}}',
        **{f"offsets/{batch}": OFFSETS for batch in range(planned)},
        **{f"commits/{batch}": COMMIT for batch in range(committed)},
    }


@dataclass
class BusyCheckpointFiles:
    """The checkpoint of a driver that plans and commits two batches between any two looks."""

    location: str = "memory://busy"
    looks: int = field(default=0)

    def list_files(self, folder: str = "") -> Sequence[FileObservation]:
        """Every file below `folder`, two batches later than at the last look."""
        self.looks += 1
        return self._now().list_files(folder)

    def read_text(self, path: str) -> str | None:
        """The text of one file."""
        return self._now().read_text(path)

    def read_bytes(self, path: str) -> bytes | None:
        """The content of one file."""
        return self._now().read_bytes(path)

    def write_text(self, path: str, text: str) -> None:
        """A check writes nothing."""
        raise AssertionError(f"{path} was written")

    def write_bytes(self, path: str, content: bytes) -> None:
        """A check writes nothing."""
        raise AssertionError(f"{path} was written")

    def remove(self, path: str) -> None:
        """A check removes nothing."""
        raise AssertionError(f"{path} was removed")

    def _now(self) -> FakeCheckpointFiles:
        return FakeCheckpointFiles(files(planned=2 * self.looks + 1, committed=2 * self.looks))


def problems(checkpoint: BusyCheckpointFiles | FakeCheckpointFiles) -> Mapping[str, str]:
    """What is found of a live stream's checkpoint, by property."""
    expected = CheckpointExpectation(
        stream="silver", generation=1, query_id=QUERY_ID, has_batches=True, is_live=True, longest_batch_seconds=300
    )
    seen = judge_checkpoint(
        expected=expected, seen=observe_checkpoint(checkpoint), now=WRITTEN_AT + timedelta(seconds=5)
    )
    return {finding.name: finding.message for finding in seen.problems}


def test_a_driver_at_full_speed_is_healthy() -> None:
    assert problems(BusyCheckpointFiles()) == {}


def test_two_uncommitted_batches_are_a_problem_when_no_one_is_quick() -> None:
    assert set(problems(FakeCheckpointFiles(files(planned=5, committed=3)))) == {"commits_follow_offsets"}


def test_only_the_few_files_that_are_judged_are_read() -> None:
    seen = observe_checkpoint(FakeCheckpointFiles(files(planned=100, committed=100)))

    assert len(seen.files) == 201
    assert sorted(seen.texts) == sorted(
        ["metadata", *(f"{log}/{batch}" for log in ("offsets", "commits") for batch in (97, 98, 99))]
    )


def test_a_file_that_disappears_after_it_was_listed_is_not_judged() -> None:
    class PurgedCheckpointFiles(BusyCheckpointFiles):
        def read_text(self, path: str) -> str | None:
            """The text of one file, of which the newest offsets are gone."""
            return None if path.startswith("offsets/") else self._now().read_text(path)

    assert problems(PurgedCheckpointFiles()) == {}


CONTENT = bytes(range(256)) * 5


def hadoop(content: bytes) -> bytes:
    """What Hadoop's `ChecksumFileSystem` writes beside a file."""
    blocks = (content[start : start + 512] for start in range(0, len(content), 512))
    return struct.pack(">4si", b"crc\0", 512) + b"".join(struct.pack(">I", zlib.crc32(block)) for block in blocks)


def spark(content: bytes) -> bytes:
    """What Spark writes beside a file of the state: a signed number."""
    (value,) = struct.unpack(">i", struct.pack(">I", google_crc32c.value(content)))
    return json.dumps({"algorithm": "CRC32C", "value": value, "mainFileSize": len(content)}).encode()


def damaged(folder: Path, *, most_bytes: int | None = None) -> frozenset[str]:
    """What of the one file of a folder is damaged."""
    files = LocalCheckpointFiles(folder.as_uri())
    return damaged_files(files, files.list_files(), ["offsets/7"], most_bytes=most_bytes)


@pytest.fixture(params=[".7.crc", "7.crc"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A folder with a file and one kind of checksum."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "7").write_bytes(CONTENT)
    written = hadoop(CONTENT) if request.param.startswith(".") else spark(CONTENT)
    (tmp_path / "offsets" / request.param).write_bytes(written)
    return tmp_path


@pytest.mark.parametrize("place", [0, 511, 512, len(CONTENT) - 1])
def test_one_flipped_bit_is_found_wherever_it_is(folder: Path, place: int) -> None:
    assert damaged(folder) == frozenset()
    content = bytearray(CONTENT)
    content[place] ^= 1
    (folder / "offsets" / "7").write_bytes(bytes(content))

    assert damaged(folder) == {"offsets/7"}
    assert damaged(folder, most_bytes=len(CONTENT) - 1) == frozenset(), "more than a check may read"


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:512], b"", CONTENT + b"x"])
def test_another_length_is_found(folder: Path, content: bytes) -> None:
    (folder / "offsets" / "7").write_bytes(content)
    assert damaged(folder) == {"offsets/7"}


@pytest.mark.parametrize("checksum", [b"", b"of another form", b'{"algorithm":"MD5","value":1}', b"crc\0"])
def test_a_checksum_of_another_form_says_nothing(folder: Path, checksum: bytes) -> None:
    (beside,) = (file for file in (folder / "offsets").iterdir() if file.name.endswith(".crc"))
    beside.write_bytes(checksum)
    assert damaged(folder) == frozenset()


def test_without_a_checksum_nothing_is_said(folder: Path) -> None:
    for file in (folder / "offsets").glob("*.crc"):
        file.unlink()
    (folder / "offsets" / ".7.crc").unlink(missing_ok=True)
    assert damaged(folder) == frozenset()
