"""Every kind of storage answers alike: a folder of this machine, a bucket of the real S3 service, and the fake."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import unquote, urlsplit
from uuid import uuid4

import pytest
from tests.fakes.checkpoint_files import FakeCheckpointFiles
from tests.fixtures.stack import Stack

from sluice.checkpoints.checkpoint_files import (
    CheckpointFiles,
    LocalCheckpointFiles,
    open_checkpoint_files,
    require_below,
)
from sluice.checkpoints.s3_checkpoint_files import s3_client
from sluice.errors import CheckpointError
from sluice.settings import ObjectStoreSettings

NOWHERE = ObjectStoreSettings(endpoint="http://127.0.0.1:1")
FILES = {
    "metadata": '{"id":"1"}',
    ".metadata.crc": "crc",
    "offsets/0": "v1",
    "offsets/10": "v1\n{}",
    "offsets/9": "v1",
    "state/0/0/1.changelog": "",
    "sources/0/offsets/0": "é",
}

Made = Callable[[Mapping[str, str]], CheckpointFiles]


def in_folder(tmp_path: Path) -> Made:
    """Makes a checkpoint below a folder whose name needs quoting in a URI."""

    def made(files: Mapping[str, str]) -> CheckpointFiles:
        root = tmp_path / "a checkpoint"
        for path, text in files.items():
            file = root / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return open_checkpoint_files(root.as_uri(), NOWHERE)

    return made


def in_bucket(stack: Stack) -> Made:
    """Makes a checkpoint below a prefix of the bucket for landing files."""
    store = stack.settings().object_store

    def made(files: Mapping[str, str]) -> CheckpointFiles:
        client, prefix = s3_client(store), f"checkpoints/{uuid4().hex}/1"
        for path, text in {**files, "../10/metadata": "a neighbour"}.items():
            key = path.replace("..", prefix.rpartition("/")[0]) if path.startswith("..") else f"{prefix}/{path}"
            client.put_object(Bucket="landing", Key=key, Body=text.encode())
        return open_checkpoint_files(f"s3a://landing/{prefix}/", store)

    return made


@pytest.fixture(params=["folder", "bucket", "fake"])
def made(request: pytest.FixtureRequest, tmp_path: Path) -> Made:
    """Makes checkpoints in one kind of storage."""
    if request.param == "folder":
        return in_folder(tmp_path)
    if request.param == "bucket":
        return in_bucket(request.getfixturevalue("services_stack"))
    return lambda files: FakeCheckpointFiles(dict(files))


def test_a_bucket_gives_another_content_another_version_also_within_a_second(services_stack: Stack) -> None:
    store, place = services_stack.settings().object_store, f"versions/{uuid4().hex}"
    folder = open_checkpoint_files(f"s3a://landing/{place}", store)
    versions = []
    for text in ("ab", "cd", "cd"):
        s3_client(store).put_object(Bucket="landing", Key=f"{place}/a", Body=text.encode())
        (seen,) = folder.list_files()
        versions.append((seen.size_bytes, seen.version))

    assert versions[0] != versions[1]
    assert versions[1] == versions[2]


def test_all_files_are_listed_with_their_sizes_in_order(made: Made) -> None:
    listed = made(FILES).list_files()

    assert [(seen.path, seen.size_bytes) for seen in listed] == sorted(
        (path, len(text.encode())) for path, text in FILES.items()
    )


def test_a_folder_is_listed_with_paths_from_the_root(made: Made) -> None:
    assert [seen.path for seen in made(FILES).list_files("offsets")] == ["offsets/0", "offsets/10", "offsets/9"]


def test_a_folder_that_does_not_exist_is_empty(made: Made) -> None:
    assert list(made(FILES).list_files("commits")) == []


def test_the_time_of_writing_has_a_time_zone(made: Made) -> None:
    checkpoint = made(FILES)

    if not isinstance(checkpoint, FakeCheckpointFiles):
        assert abs(datetime.now(UTC) - checkpoint.list_files()[0].modified_at) < timedelta(minutes=1)
    assert checkpoint.list_files()[0].modified_at.utcoffset() == timedelta(0)


@pytest.mark.parametrize(
    ("path", "text"), [("metadata", '{"id":"1"}'), ("sources/0/offsets/0", "é"), ("commits/0", None)]
)
def test_texts_are_read(made: Made, path: str, text: str | None) -> None:
    assert made(FILES).read_text(path) == text


def test_bytes_that_are_no_text_are_read_as_replacements(tmp_path: Path) -> None:
    (tmp_path / "metadata").write_bytes(b"\xff{")

    assert open_checkpoint_files(tmp_path.as_uri(), NOWHERE).read_text("metadata") == "\ufffd{"


def test_a_folder_that_may_not_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "offsets").write_text("a file where a folder belongs")

    with pytest.raises(CheckpointError, match="cannot be listed"):
        open_checkpoint_files(tmp_path.as_uri(), NOWHERE).list_files("offsets")


def test_a_store_that_does_not_answer_is_said() -> None:
    checkpoint = open_checkpoint_files("s3a://landing/checkpoints/silver/1", NOWHERE)

    with pytest.raises(CheckpointError, match=r"s3a://landing/checkpoints/silver/1 cannot be listed"):
        checkpoint.list_files()


def test_another_scheme_is_refused() -> None:
    with pytest.raises(CheckpointError, match="has the scheme ftp; supported are file, s3 and s3a"):
        open_checkpoint_files("ftp://somewhere/checkpoints", NOWHERE)


def test_a_written_file_is_read_and_listed(made: Made) -> None:
    files = made(FILES)

    files.write_text("offsets/11", "v1\né")
    files.write_text("offsets/10", "v2")

    assert (files.read_text("offsets/11"), files.read_text("offsets/10")) == ("v1\né", "v2")
    assert [seen.path for seen in files.list_files("offsets")] == ["offsets/0", "offsets/10", "offsets/11", "offsets/9"]


def test_a_file_is_written_into_a_checkpoint_that_does_not_exist(made: Made) -> None:
    files = made({})

    files.write_text("sources/0/offsets/0", "first")

    assert files.read_text("sources/0/offsets/0") == "first"


def test_a_removed_file_is_gone_and_may_be_removed_again(made: Made) -> None:
    files = made(FILES)

    for _ in range(2):
        files.remove("offsets/10")
    files.remove("commits/0")

    assert [seen.path for seen in files.list_files("offsets")] == ["offsets/0", "offsets/9"]


def test_folders_without_files_are_removed_and_those_with_some_stay(made: Made) -> None:
    checkpoint = made(FILES)
    checkpoint.remove_folders()
    assert len(checkpoint.list_files()) == len(FILES)
    for seen in checkpoint.list_files():
        checkpoint.remove(seen.path)
    checkpoint.remove_folders()
    checkpoint.remove_folders()
    assert list(checkpoint.list_files()) == []
    if isinstance(checkpoint, LocalCheckpointFiles):
        assert not Path(unquote(urlsplit(checkpoint.location).path)).exists()


@pytest.mark.parametrize(
    ("location", "path"),
    [
        ("file:///ck/flights/1", "flights/2"),
        ("file:///ck/../other/1", "../other/1"),
        ("file:///ck/flights//1", "flights//1"),
        ("file:///other/flights/1", "flights/1"),
        ("s3a://bucket/other/flights/1", "flights/1"),
        ("file:///ck/", ""),
    ],
)
def test_a_folder_that_lies_elsewhere_is_not_taken_for_that_of_a_checkpoint(location: str, path: str) -> None:
    root = "file:///ck" if location.startswith("file") else "s3a://bucket/ck"
    require_below(f"{root}/flights/1", root, path="flights/1")
    with pytest.raises(CheckpointError, match="is not the folder"):
        require_below(location, root, path=path)
