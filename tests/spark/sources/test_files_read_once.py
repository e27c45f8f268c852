"""Every file below the folder of an input is read once, whatever its name is and whoever writes the rows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.workshop import Workshop

from sluice.settings import FilesConnection

COLUMNS = [{"name": "id", "type": "long"}]
NAMES = ("a", "b", "x{1}", "[?]*", "day=5/a", "day=5/x{1}", "of/no/partition")
LATER = ("c", "y[1]", "day=6/a")


@pytest.mark.parametrize("delivery", ["staged", "direct"])
def test_each_file_is_read_once(workshop: Workshop, tmp_path: Path, delivery: str) -> None:
    folder = FilesConnection(kind="files", root=f"file://{tmp_path}")
    settings = workshop.settings.model_copy(update={"connections": {**workshop.settings.connections, "here": folder}})
    here = replace(workshop, settings=settings)
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


def _write(file: Path, number: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'{{"id": {number}}}\n')
