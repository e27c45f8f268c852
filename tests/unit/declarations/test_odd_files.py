"""Files that are none, files that would be overlooked, and the largest files: each is answered, in bounded time."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sluice.declarations.declaration_files import UnreadableFileError, read_bounded

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder

QUEUE = "it is no regular file but a queue, a device or a socket"
LONGEST_SECONDS = 60.0
"""Of the largest files; they take seconds on a busy machine, and what grows with their square takes many minutes."""

TABLE = "table: a.b\ndescription: d\nowner: o\ncolumns:\n  - {name: c, type: int}\n"


@pytest.mark.timeout(30)
def test_what_is_no_file_is_refused_before_it_is_opened(valid: Folder) -> None:
    os.mkfifo(valid.path / "queue.stream.yaml")
    (valid.path / "endless.table.yaml").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(valid.path / "s.table.yaml"))
    sentence = f"1: {QUEUE.replace('it ', 'the file ', 1)}."
    assert valid.problems() == [
        f"endless.table.yaml:{sentence}", f"queue.stream.yaml:{sentence}", f"s.table.yaml:{sentence}"
    ]  # fmt: skip
    assert set(valid.load().streams) == {"silver_flights"}


@pytest.mark.timeout(30)
@pytest.mark.parametrize("line", ["python: code.py:f", "sql: code.sql"])
def test_code_that_is_no_file_is_refused(valid: Folder, line: str) -> None:
    name = line.split()[1].partition(":")[0]
    os.mkfifo(valid.path / name)
    stream = (valid.path / "silver_flights.stream.yaml").read_text()
    stream = stream.replace("python: transformations.py:silver_flights", line).replace("quarantine: true", "")
    valid.write("silver_flights.stream.yaml", stream)
    (problem,) = valid.problems()
    assert QUEUE in problem


def test_a_file_behind_a_link_is_read(valid: Folder) -> None:
    # As in a folder that Kubernetes makes of a ConfigMap.
    valid.write("..data/x.table.yaml", TABLE.replace("a.b", "a.linked"))
    (valid.path / "a.linked.table.yaml").symlink_to("..data/x.table.yaml")
    assert valid.problems() == []
    assert "a.linked" in valid.load().tables


def test_what_would_be_overlooked_is_reported(valid: Folder, tmp_path_factory: pytest.TempPathFactory) -> None:
    (valid.path / "linked").symlink_to(tmp_path_factory.mktemp("elsewhere"))
    (valid.path / "a.folder.table.yaml").mkdir()
    for name in ("A.STREAM.YAML", "b.Table.Yaml", "c.stream.yml", "stream.yaml", "table.yml", "d.tables.yaml"):
        valid.write(name, "x")
    overlooked = "1: a declaration's file ends in .stream.yaml or .table.yaml; under this name it would be overlooked."
    assert valid.problems() == [
        f"A.STREAM.YAML:{overlooked} Rename the file.",
        "a.folder.table.yaml:1: this is a folder, and its name is that of a declaration's file. Rename it.",
        f"b.Table.Yaml:{overlooked} Rename the file.",
        f"c.stream.yml:{overlooked} Rename the file.",
        f"d.tables.yaml:{overlooked} Rename the file.",
        "linked:1: this folder is a link, which is not followed: what it declares would be overlooked. "
        "Link or copy the files into a folder here.",
        f"stream.yaml:{overlooked} Rename the file.",
        f"table.yml:{overlooked} Rename the file.",
    ]
    assert set(valid.load().streams) == {"silver_flights"}


def test_a_name_with_control_characters_is_shown_with_escapes(valid: Folder) -> None:
    valid.write("a\x1b[31m\nb.stream.yaml", "x")
    assert valid.problems() == [
        "a\\x1b[31m\\nb.stream.yaml:1: a declaration is a mapping of keys to values, got a single value."
    ]


def test_a_stream_that_names_another_ones_breaks_its_own_file_only(valid: Folder) -> None:
    stream = (valid.path / "silver_flights.stream.yaml").read_text()
    valid.write("imitator.stream.yaml", stream)
    assert [problem.partition(":")[0] for problem in valid.problems()] == ["imitator.stream.yaml"]
    assert set(valid.load().streams) == {"silver_flights"}


@pytest.mark.parametrize("size", [0, 100, 101])
def test_a_file_is_read_up_to_its_limit(tmp_path: Path, size: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * size)
    if size <= 100:
        assert len(read_bounded(file, most_bytes=100)) == size
    else:
        with pytest.raises(UnreadableFileError, match="larger than 100 bytes"):
            read_bounded(file, most_bytes=100)


@pytest.mark.parametrize(
    "more",
    [
        "".join(f"  - {{name: d{number}, type: int}}\n" for number in range(25_000)),
        "".join(f"  - {{name: d{number}, type: intt}}\n" for number in range(25_000)),
        "  - {name: d, type: 'struct<" + ", ".join(f"f{number}: int" for number in range(60_000)) + ">'}\n",
        "partitioning:\n" + "  - {column: c}\n" * 50_000,
        "sort_order:\n" + "  - {column: absent}\n" * 40_000,
        "".join(f"k{number}: 1\n" for number in range(80_000)),
        "".join(f"  - {{name: d{number}, type: int}}\n" for number in range(12_000))
        + "quality: {expectations: [{type: expect_x, kwargs: {column_list: ["
        + ",".join(f"x{number}" for number in range(60_000))
        + "]}}]}\n",
        "properties: {" + ",".join(f"p{number}: a" for number in range(60_000)) + "}\n",
        "maintenance: " + "[" * 40 + "]" * 40 + "\n",
    ],
    ids=["columns", "wrong", "struct", "parts", "orders", "keys", "expectations", "properties", "deep"],
)
def test_the_largest_declarations_take_seconds(folder: Folder, more: str) -> None:
    folder.write("a.b.table.yaml", TABLE + more)
    began = time.monotonic()
    problems = folder.problems()
    assert time.monotonic() - began < LONGEST_SECONDS
    assert len(problems) <= 101


def test_a_file_that_has_grown_since_its_size_was_asked_is_read_whole_or_refused() -> None:
    """The files of /proc say that they have no byte."""
    file = Path("/proc/self/status")
    assert b"VmRSS" in read_bounded(file, most_bytes=1024**2)
    with pytest.raises(UnreadableFileError, match="larger than 10 bytes"):
        read_bounded(file, most_bytes=10)
