"""Files of a checkpoint are compared with the checksums that Hadoop and Spark write beside them."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

import google_crc32c
import pytest

from sluice.checkpoints.checkpoint_files import LocalCheckpointFiles
from sluice.checkpoints.observe_checkpoint import damaged_files

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
