"""Lines that fit become rows; a malformed one is in the quarantine with its file, its text and the reason."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest
from tests.fixtures.drill import sampled
from tests.fixtures.workshop import Workshop

from sluice.errors import LakehouseError, SluiceError
from sluice.pages.quarantine_page import QuarantineReading
from sluice.record_values.rejection import LARGEST_VALUE_BYTES, too_large
from sluice.settings import FilesConnection

COLUMNS = [
    {"name": "id", "type": "long", "required": True},
    {"name": "word", "type": "string"},
    {"name": "number", "type": "int"},
]
CONTENTS = {
    "json": (
        b'{"id": 1, "word": "one"}\n\n{"id": 2, "number": "x"}\n{\n{"word": "nameless", "more": 1}\n\xff\xfe\n'
        b'{"id": 3, "number": 3}\n',
        {
            '{"id": 2, "number": "x"}': "the value does not fit the declared columns: Expected `int | null`, got "
            "`str`, at `$.number`",
            "{": "the value is not JSON: Input data was truncated",
            '{"word": "nameless", "more": 1}': "the value lacks required columns: id",
            "0xFFFE": "the value is not UTF-8 text",
        },
    ),
    "csv": (
        b"id,word,number\n1,one,\n2,two,x\n9\n,nameless,5\n3,,3\n",
        {
            "2,two,x": "the value does not fit the declared columns: expected a whole number of 32 bits, at `number`",
            "9": "the value does not fit the declared columns: the line has 1 fields, not 3",
            ",nameless,5": "the value lacks required columns: id",
        },
    ),
}
"""What a file holds by its format, and which of its lines are refused for which reason."""


def delete_with_delete_files(workshop: Workshop, table: str) -> None:
    """Delete a row of a table as an engine does that rewrites no data file."""
    name = f"{workshop.settings.catalog.name}.{table}"
    workshop.spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    workshop.spark.sql(f"DELETE FROM {name} WHERE kind = 'lacking'")  # noqa: S608  # the test's own table


def with_folder(workshop: Workshop, root: Path) -> Workshop:
    """The workshop with a connection `folder`."""
    folder = FilesConnection(kind="files", root=f"file://{root}")
    connections = {**workshop.settings.connections, "folder": folder}
    return replace(workshop, settings=workshop.settings.model_copy(update={"connections": connections}))


@pytest.mark.parametrize("form", sampled(CONTENTS, ["csv"], full=["json"]))
def test_a_malformed_line_is_put_aside_with_its_file_and_the_reason(
    workshop: Workshop, tmp_path: Path, form: str
) -> None:
    """And a file of which no line fits is known with its batch, beside the good lines of other files."""
    content, malformed = CONTENTS[form]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"alien.{form}").write_bytes(b'{"id": "none"}\n' * 2 if form == "json" else b"id\nnone\nnone\n")
    (tmp_path / "in" / f"lines.{form}").write_bytes(content)
    workshop = with_folder(workshop, tmp_path)
    stream = f"m{uuid4().hex[:12]}"
    table = workshop.declare_table(stream, {"id": "long", "word": "string"})
    source = {"connection": "folder", "path": "in", "format": form, "columns": COLUMNS, "on_malformed": "quarantine"}
    workshop.declare_stream(
        stream,
        sql="SELECT id, word FROM lines",  # not `number`: what is not asked for must be sound all the same
        inputs={"lines": {"stream": {"files": source}}},
        outputs={"main": {"iceberg": {"table": table}}},
        quarantine=True,
    )

    batches = workshop.run(stream).batches

    assert workshop.rows(stream) == [{"id": 1, "word": "one"}, {"id": 3, "word": None}]
    every = workshop.rows(f"quarantine.{stream}")
    refused = [row for row in every if "none" not in row["payload"]]
    assert {row["payload"]: row["reason"] for row in refused} == malformed
    assert {json.loads(row["position"])["file"].rsplit("/", 1)[1] for row in refused} == {f"lines.{form}"}
    assert sum(batch.refused_rows for batch in batches) == len(every) == len(malformed) + 2
    assert [batch.rejected_files for batch in batches] == [(f"file:{tmp_path}/in/alien.{form}",)]
    page = QuarantineReading(settings=workshop.settings).load(workshop.stream(stream).declaration, {})
    assert {(sample.value, sample.reason) for sample in page.samples} >= set(malformed.items())
    assert {(sample.source, sample.batch) for sample in page.samples} == {("lines", "1:0")}
    delete_with_delete_files(workshop, f"quarantine.{stream}")
    with pytest.raises(LakehouseError, match="has delete files"):
        QuarantineReading(settings=workshop.settings).load(workshop.stream(stream).declaration, {})
    undeclared = [dict(batch.undeclared_fields) for batch in batches if batch.undeclared_fields]
    assert undeclared == ([{"lines": {"more": 1}}] if form == "json" else [])


@pytest.mark.full  # every run: a record of Kafka (`test_decoding.py`)
@pytest.mark.parametrize("form", list(CONTENTS))
def test_a_line_that_is_ahead_of_the_clock_is_put_aside_as_it_was_sent(
    workshop: Workshop, tmp_path: Path, form: str
) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    times = [now, now + timedelta(days=2)]
    lines = {
        "json": [f'{{"at": "{at.isoformat()}", "word": "a, b"}}' for at in times],
        "csv": [f'{at.isoformat()},"a, b"' for at in times],
    }[form]
    header = ["at,word"] if form == "csv" else []
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"lines.{form}").write_text("\n".join([*header, *lines]))
    workshop = with_folder(workshop, tmp_path)
    stream = f"m{uuid4().hex[:12]}"
    table = workshop.declare_table(stream, {"word": "string"})
    columns = [{"name": "at", "type": "timestamptz"}, {"name": "word", "type": "string"}]
    source = {"connection": "folder", "path": "in", "format": form, "columns": columns, "on_malformed": "quarantine"}
    workshop.declare_stream(
        stream,
        sql="SELECT word FROM lines",
        inputs={"lines": {"stream": {"files": source}, "watermark": {"column": "at", "delay": "1 hour"}}},
        outputs={"main": {"iceberg": {"table": table}}},
        quarantine=True,
    )

    workshop.run(stream)

    assert workshop.rows(stream) == [{"word": "a, b"}]
    assert [row["payload"] for row in workshop.rows(f"quarantine.{stream}")] == lines[1:]


@pytest.mark.full  # every run bounds them without Spark (`test_csv_values.py`)
def test_what_follows_a_quotation_mark_that_nothing_closes_is_put_aside(workshop: Workshop, tmp_path: Path) -> None:
    rest = "\n".join(f"{number},word" for number in range(LARGEST_VALUE_BYTES // 8))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "broken.csv").write_text(f'id,number,word\n1,1,one\n2,2,"{rest}')
    (tmp_path / "in" / "sound.csv").write_text("id,word,number\n3,three,3\n")
    workshop = with_folder(workshop, tmp_path)
    stream = f"m{uuid4().hex[:12]}"
    table = workshop.declare_table(stream, {"id": "long", "word": "string"})
    source = {"connection": "folder", "path": "in", "format": "csv", "columns": COLUMNS, "on_malformed": "quarantine"}
    workshop.declare_stream(
        stream,
        sql="SELECT id, word FROM lines",
        inputs={"lines": {"stream": {"files": source}}},
        outputs={"main": {"iceberg": {"table": table}}},
        quarantine=True,
    )

    workshop.run(stream)

    assert workshop.rows(stream) == [{"id": 1, "word": "one"}, {"id": 3, "word": "three"}]
    (refused,) = workshop.rows(f"quarantine.{stream}")
    size = len("22") + len(rest)
    assert refused["reason"] == too_large(size).sentence
    assert refused["payload"] == f'2,2,"{rest}"'


@pytest.mark.parametrize("form", ["json", pytest.param("csv", marks=pytest.mark.full)])
def test_a_file_whose_upload_was_cut_stops_the_stream_by_its_name_and_is_read_once_it_is_whole(
    workshop: Workshop, tmp_path: Path, form: str
) -> None:
    lines = [f'{{"id": {number}, "word": "w{number}"}}' for number in range(2_000)]
    if form == "csv":
        lines = ["id,word,number", *(f"{number},w{number}," for number in range(2_000))]
    whole = gzip.compress("\n".join(lines).encode())
    (tmp_path / "in").mkdir()
    cut = tmp_path / "in" / f"cut.{form}.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    workshop = with_folder(workshop, tmp_path)
    stream = f"m{uuid4().hex[:12]}"
    table = workshop.declare_table(stream, {"id": "long", "word": "string"})
    source = {"connection": "folder", "path": "in", "format": form, "columns": COLUMNS, "on_malformed": "quarantine"}

    def declare(**more: str) -> None:
        workshop.declare_stream(
            stream,
            sql="SELECT id, word FROM lines",
            inputs={"lines": {"stream": {"files": source | more}}},
            outputs={"main": {"iceberg": {"table": table}}},
            quarantine=True,
        )

    declare()
    with pytest.raises(SluiceError, match=rf"cut\.{form}\.gz"):
        workshop.run_supervised(stream)
    assert (workshop.rows(stream), workshop.rows(f"quarantine.{stream}")) == ([], [])

    cut.write_bytes(whole)
    declare(on_changed="ignore")
    workshop.run_supervised(stream)

    assert [row["id"] for row in workshop.rows(stream)] == list(range(2_000))
