"""Text that was decoded is not looked at again, and whatever else has come into its column is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.workshop import Workshop

from sluice.errors import DeliveryError
from sluice.settings import FilesConnection
from sluice_spark.query.stream_plan import plan_stream
from sluice_spark.session.valid_text import KNOWN_VALID, has_invalid_text

BYTES = [b'{"a":1}', "caf\u00e9".encode("latin-1")]
COLUMNS = {"id": "long", "h": "string"}


def declare(workshop: Workshop, folder: Path, python: str, **outputs: Any) -> str:
    """A stream that reads bytes in hexadecimal from a file of JSON; its name. outputs: beside the table."""
    folder.mkdir()
    lines = [{"id": number, "h": value.hex()} for number, value in enumerate(BYTES)]
    (folder / "a.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    here = FilesConnection(kind="files", root=folder.as_uri())
    workshop.settings.connections["here"] = here  # the settings are frozen, their mapping is the test's own
    stream, target = f"s{workshop.namespace}", workshop.declare_table("target", COLUMNS)
    fields = [{"name": name, "type": kind} for name, kind in COLUMNS.items()]
    workshop.declare_stream(
        stream,
        python=f"from pyspark.sql import functions as F\n\ndef transform(r):\n    {python}\n",
        inputs={"r": {"stream": {"files": {"connection": "here", "format": "json", "columns": fields}}}},
        outputs={"main": {"iceberg": {"table": target}}, **outputs},
    )
    return stream


@pytest.mark.parametrize(
    "python",
    [
        'return r.where("id >= 0").selectExpr("h AS x", "id").selectExpr("id", "x AS h")',
        'return r.dropDuplicates(["h"]).select("id", "h")',
    ],
    ids=["named otherwise", "distinct"],
)
def test_what_is_passed_on_is_not_looked_at_again(workshop: Workshop, tmp_path: Path, python: str) -> None:
    stream = workshop.stream(declare(workshop, tmp_path / "in", python))

    rows = plan_stream(workshop.spark, stream, workshop.settings).rows

    assert has_invalid_text(rows.schema) is None


@pytest.mark.parametrize(
    "python",
    [
        'return r.selectExpr("id", "CAST(unhex(h) AS STRING) h")',
        pytest.param(
            'return r.select("id", "h").union(r.selectExpr("id", "CAST(unhex(h) AS STRING)"))', marks=pytest.mark.full
        ),
        pytest.param(
            'return r.selectExpr("id", "CAST(unhex(h) AS STRING) h").to(r.select("id", "h").schema)',
            marks=pytest.mark.full,
        ),
        pytest.param(
            'return r.select("id", F.expr("CAST(unhex(h) AS STRING)").alias("h", metadata=r.schema["h"].metadata))',
            marks=pytest.mark.full,
        ),
        pytest.param(
            'return (r.selectExpr("id", "named_struct(\'h\', CAST(unhex(h) AS STRING)) s")'
            '.to(r.select("id", F.struct("h").alias("s")).schema).select("id", "s.h"))',
            marks=pytest.mark.full,
        ),
        pytest.param(
            'return r.selectExpr("id", "named_struct(\'h\', CAST(unhex(h) AS STRING)) _sluice_value")'
            '.select("id", F.col("_sluice_value.h").alias("h", metadata=r.schema["h"].metadata))',
            marks=pytest.mark.full,
        ),
        pytest.param(
            'return r.select("id", F.expr("explode(array(h, CAST(unhex(h) AS STRING)))").alias("h"))',
            marks=pytest.mark.full,
        ),
    ],
    ids=[
        "computed",
        "second side of a union",
        "schema of another",
        "metadata of another",
        "within a struct",
        "by our name",
        "one of several",
    ],
)
def test_what_is_not_is_looked_at(workshop: Workshop, tmp_path: Path, python: str) -> None:
    stream = declare(workshop, tmp_path / "in", python)

    with pytest.raises(DeliveryError, match="text that is not UTF-8 in h"):
        workshop.run(stream)

    assert workshop.rows("target") == []


def test_files_that_are_read_by_a_marked_schema_are_looked_at(workshop: Workshop, tmp_path: Path) -> None:
    other = (tmp_path / "other").as_uri()
    workshop.spark.sql("SELECT 1L id, CAST(unhex('636166e9') AS STRING) h").write.parquet(other)
    read = f"r.sparkSession.read.schema(r.select('id', 'h').schema).parquet('{other}')"
    stream = declare(workshop, tmp_path / "in", f"return r.select('id').join({read}, 'id')")

    with pytest.raises(DeliveryError, match="text that is not UTF-8 in h"):
        workshop.run(stream)


def test_files_of_a_sink_have_no_mark(workshop: Workshop, tmp_path: Path) -> None:
    """Whoever reads them takes their metadata, and something else may have written a file of that name by then."""
    out, (key,) = tmp_path / "out", KNOWN_VALID
    workshop.settings.connections["there"] = FilesConnection(kind="files", root=out.as_uri())
    sunk = {"files": {"connection": "there", "path": "rows", "format": "parquet"}}
    python = 'return {"main": r.select("id", "h"), "sunk": r.select("id", "h")}'

    workshop.run(declare(workshop, tmp_path / "in", python, sunk=sunk))

    files = list(out.rglob("*.parquet"))
    assert files
    assert all(key.encode() not in file.read_bytes() for file in files)
