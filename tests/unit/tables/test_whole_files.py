"""Small files are read whole, and manifests once."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.typedef import Record

from sluice.tables.whole_files import MOST_KEPT_BYTES, KeptManifests, WholeFiles


def data_file(path: Path) -> DataFile:
    """A file as a manifest lists it."""
    return DataFile.from_args(file_path=path.as_uri(), file_size_in_bytes=path.stat().st_size, partition=Record())


def content_of(io: KeptManifests | WholeFiles, path: Path) -> bytes:
    """What is read of a file."""
    with io.new_input(path.as_uri()).open() as stream:
        return stream.read()


def test_a_manifest_is_read_once_and_what_may_change_each_time(tmp_path: Path) -> None:
    manifest, metadata = tmp_path / "a-m0.avro", tmp_path / "a.metadata.json"
    for path in (manifest, metadata):
        path.write_bytes(b"first")
        assert content_of(KeptManifests(), path) == b"first"
        path.write_bytes(b"second")
    assert content_of(KeptManifests(), manifest) == b"first"
    assert content_of(KeptManifests(), metadata) == b"second"


def test_the_manifest_goes_first_that_was_not_read_for_the_longest_time(tmp_path: Path) -> None:
    size = MOST_KEPT_BYTES // 2
    paths = [tmp_path / f"{number}.avro" for number in range(3)]
    for path in paths:
        path.write_bytes(b"1" * size)
        content_of(KeptManifests(), path)
    for path in paths:
        path.write_bytes(b"2")
    assert [content_of(KeptManifests(), path)[:1] for path in reversed(paths)] == [b"1", b"1", b"2"]


def test_a_manifest_that_is_missing_is_looked_for_again(tmp_path: Path) -> None:
    manifest = tmp_path / "later.avro"
    with pytest.raises(FileNotFoundError):
        content_of(KeptManifests(), manifest)
    manifest.write_bytes(b"there")
    assert content_of(KeptManifests(), manifest) == b"there"


def test_small_files_are_read_whole_and_others_as_their_readers_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.tables.whole_files.MOST_WHOLE_BYTES", 5)
    small, large, unknown = (tmp_path / f"{name}.parquet" for name in ("small", "large", "unknown"))
    for path, content in ((small, b"small"), (large, b"larger"), (unknown, b"any")):
        path.write_bytes(content)
    io = WholeFiles(KeptManifests(), [data_file(small), data_file(large)])
    opened = {path: io.new_input(path.as_uri()).open() for path in (small, large, unknown)}
    for path in opened:
        path.write_bytes(b"")
    assert {path.stem: stream.read() for path, stream in opened.items()} == {
        "small": b"small",
        "large": b"",
        "unknown": b"",
    }
