"""Every file below the folder of an input is read once, whatever its name is and whoever writes the rows."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from tests.fixtures.drill import first_of
from tests.fixtures.workshop import Workshop

from sluice.declarations.source_declarations import FilesSource
from sluice.settings import FilesConnection
from sluice.sources.unread_input import present_files

COLUMNS = [{"name": "id", "type": "long"}]
NAMES = ("a", "b", "x{1}", "[?]*", "day=5/a", "day=5/x{1}", "of/no/partition")
LATER = ("c", "y[1]", "day=6/a")


@pytest.mark.parametrize("delivery", first_of("staged", "direct"))
def test_each_file_is_read_once(workshop: Workshop, tmp_path: Path, delivery: str) -> None:
    here = _with_folder(workshop, tmp_path)
    stream = f"s{here.namespace}"
    files = {"connection": "here", "path": "in", "format": "json", "columns": COLUMNS}
    here.declare_stream(
        stream,
        sql="SELECT id FROM lines",
        inputs={"lines": {"stream": {"files": files}}},
        outputs={"main": {"iceberg": {"table": here.declare_table("target", {"id": "long"}), "delivery": delivery}}},
    )

    for number, name in enumerate(NAMES):
        _write(tmp_path / "in" / name, number)
    here.run(stream)
    for number, name in enumerate(LATER, len(NAMES)):
        _write(tmp_path / "in" / name, number)
    here.run(stream)

    assert sorted(int(row["id"]) for row in here.rows("target")) == list(range(len(NAMES) + len(LATER)))


@pytest.mark.parametrize("form", ["json", pytest.param("csv", marks=pytest.mark.full)])
def test_files_are_read_whole_however_they_are_compressed(workshop: Workshop, tmp_path: Path, form: str) -> None:
    """And a file of several gz members, as some loggers append them."""
    here = _with_folder(workshop, tmp_path)
    stream = f"s{here.namespace}"
    here.declare_stream(
        stream,
        sql="SELECT id FROM lines",
        inputs={
            "lines": {"stream": {"files": {"connection": "here", "path": "in", "format": form, "columns": COLUMNS}}}
        },
        outputs={"main": {"iceberg": {"table": here.declare_table("target", {"id": "long"})}}},
    )
    lines = [f'{{"id": {number}}}\n' if form == "json" else f"{number}\n" for number in range(60)]
    head = "id\n" if form == "csv" else ""
    parts: dict[str, Callable[[bytes], bytes]] = {
        "gz": gzip.compress,
        "bz2": bz2.compress,
        "deflate": zlib.compress,
        "zst": _zstd,
    }
    (tmp_path / "in").mkdir()
    for number, (ending, compress) in enumerate(parts.items()):
        part = "".join([head, *lines[10 * number : 10 * number + 10]])
        (tmp_path / "in" / f"a.{form}.{ending}").write_bytes(compress(part.encode()))
    members = gzip.compress("".join([head, *lines[40:50]]).encode()) + gzip.compress("".join(lines[50:]).encode())
    (tmp_path / "in" / f"members.{form}.gz").write_bytes(members)

    (batch,) = here.run(stream).batches

    assert sorted(int(row["id"]) for row in here.rows("target")) == list(range(60))
    assert batch.input_rows == 60


HIDDEN = ("_x", ".x", "_SUCCESS", "_day=5/x", "_day=6", "of/_temporary/x", "x._COPYING_", "y._COPYING_/x", "_metadata")


@pytest.mark.full  # every run has the rule (`test_unread_input.py`)
def test_the_files_that_are_counted_are_those_that_spark_reads(workshop: Workshop, tmp_path: Path) -> None:
    here = _with_folder(workshop, tmp_path)
    stream, names = f"s{here.namespace}", (*NAMES, *HIDDEN)
    files = {"connection": "here", "path": "in", "format": "json", "columns": COLUMNS}
    here.declare_stream(
        stream,
        sql="SELECT id FROM lines",
        inputs={"lines": {"stream": {"files": files}}},
        outputs={"main": {"iceberg": {"table": here.declare_table("target", {"id": "long"})}}},
    )
    for number, name in enumerate(names):
        _write(tmp_path / "in" / name, number)
    here.run(stream)

    source, root = FilesSource.model_validate(files), f"file://{tmp_path}"
    listed = present_files(source, root=root, object_store=here.settings.object_store)
    assert {one.removeprefix(f"{root}/in/") for one in listed} == {names[row["id"]] for row in here.rows("target")}


def _with_folder(workshop: Workshop, root: Path) -> Workshop:
    folder = FilesConnection(kind="files", root=f"file://{root}")
    settings = workshop.settings.model_copy(update={"connections": {**workshop.settings.connections, "here": folder}})
    return replace(workshop, settings=settings)


def _zstd(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as compressed:
        compressed.write(content)
    return sink.getvalue().to_pybytes()


def _write(file: Path, number: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'{{"id": {number}}}\n')
