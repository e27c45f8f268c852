"""A batch with a file whose name Spark takes for a pattern is stopped, before any row of it is written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.fixtures.workshop import Workshop

from sluice.errors import DeliveryError
from sluice.settings import FilesConnection

COLUMNS = [{"name": "id", "type": "long"}]


@pytest.mark.parametrize("name", ["x{1}.json", "[?].json"])
def test_a_file_that_spark_takes_for_a_pattern_doubles_no_rows(workshop: Workshop, tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1}\n')
    (tmp_path / "in" / name).write_text('{"id": 2}\n')
    folder = FilesConnection(kind="files", root=f"file://{tmp_path}")
    settings = workshop.settings.model_copy(update={"connections": {**workshop.settings.connections, "here": folder}})
    here = replace(workshop, settings=settings)
    stream = f"s{here.namespace}"
    table = here.declare_table("target", {"id": "long"})
    here.declare_stream(
        stream,
        sql="SELECT id FROM lines",
        inputs={
            "lines": {"stream": {"files": {"connection": "here", "path": "in", "format": "json", "columns": COLUMNS}}}
        },
        outputs={"main": {"iceberg": {"table": table}}},
    )

    with pytest.raises(DeliveryError, match="has a character of patterns"):
        here.run(stream)
    assert here.rows("target") == []
