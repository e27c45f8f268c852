"""Text that is not UTF-8 is never published: it goes to the quarantine where there is one, and stops the batch else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.workshop import Workshop

from sluice.errors import DeliveryError
from sluice.settings import FilesConnection
from sluice_spark.session.valid_text import has_invalid_text, valid_or_error

VALUES = [b'{"a":1}', "caf\u00e9".encode("latin-1"), b"\xff\xfe", "caf\u00e9".encode()]


def declare(workshop: Workshop, columns: dict[str, str], **parts: Any) -> str:
    """A stream that casts bytes to text; its name."""
    stream = f"s{workshop.namespace}"
    source = workshop.declare_table("source", {"id": "long", "value": "binary"})
    target = workshop.declare_table("target", columns)
    workshop.declare_stream(
        stream,
        inputs={"r": {"stream": {"iceberg": {"table": source}}}},
        outputs={"main": {"iceberg": {"table": target}}},
        **parts,
    )
    workshop.append("source", [{"id": number, "value": value} for number, value in enumerate(VALUES)])
    return stream


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("SELECT id, CAST(value AS STRING) v FROM r", "string"),
        pytest.param(
            "SELECT id, array(named_struct('x', CAST(value AS STRING))) v FROM r",
            "list<struct<x: string>>",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "SELECT id, map('k', CAST(value AS STRING)) v FROM r", "map<string, string>", marks=pytest.mark.full
        ),
    ],
    ids=["text", "nested", "map"],
)
def test_without_a_quarantine_the_batch_stops_with_the_column(workshop: Workshop, sql: str, kind: str) -> None:
    stream = declare(workshop, {"id": "long", "v": kind}, sql=sql)

    with pytest.raises(DeliveryError, match="text that is not UTF-8 in v"):
        workshop.run(stream)

    assert workshop.rows("target") == []


def test_all_batches_of_an_output_have_one_expression(workshop: Workshop) -> None:
    """It is made of many calls of the JVM; of columns under other names it is another one."""
    first, again, other = (workshop.spark.sql(f"SELECT 'a' {name}, array('b') w").schema for name in "uuv")

    assert has_invalid_text(first) is has_invalid_text(again) is not has_invalid_text(other)
    assert valid_or_error(first, "a") is valid_or_error(again, "a") is not valid_or_error(other, "a")
    assert valid_or_error(first, "a") is not valid_or_error(first, "b")


PYTHON = """
def transform(r):
    rows = r.selectExpr("id", "CAST(value AS STRING) v"){distinct}
    return {{"main": rows.where("id < 9"), "quarantine": rows.where("id = 9").selectExpr(
        "'own' reason", "CAST(NULL AS STRING) position", "v payload")}}
"""


def require_rejected(workshop: Workshop, stream: str) -> None:
    """Two rows are in the target, and the two with invalid text in the quarantine."""
    assert workshop.rows("target") == [{"id": 0, "v": '{"a":1}'}, {"id": 3, "v": "caf\u00e9"}]
    rejected = workshop.rows(workshop.stream(stream).declaration.quarantine_table)
    assert [(row["kind"], row["reason"]) for row in rejected] == [("not_text", "the value is not UTF-8 text: v")] * 2
    assert all(row["payload"].startswith('{"id":') for row in rejected)


@pytest.mark.full
@pytest.mark.parametrize("distinct", ["", ".distinct()"], ids=["stateless", "stateful"])
def test_with_a_quarantine_the_rows_go_there(workshop: Workshop, distinct: str) -> None:
    stream = declare(workshop, {"id": "long", "v": "string"}, python=PYTHON.format(distinct=distinct), quarantine=True)

    (batch, *_) = workshop.run(stream).batches

    require_rejected(workshop, stream)
    assert (batch.published_rows["main"], batch.refused_rows) == (2, 2)


@pytest.mark.full  # every run rejects such rows below
def test_what_a_transformation_rejects_itself_stops_no_batch(workshop: Workshop) -> None:
    python = PYTHON.replace("id < 9", "id IN (0, 3)").replace("id = 9", "id IN (1, 2)")
    stream = declare(workshop, {"id": "long", "v": "string"}, python=python.format(distinct=""), quarantine=True)

    workshop.run(stream)

    assert [row["id"] for row in workshop.rows("target")] == [0, 3]
    rejected = workshop.rows(workshop.stream(stream).declaration.quarantine_table)
    assert sorted(row["payload"] for row in rejected) == ["caf\ufffd", "\ufffd\ufffd"]


@pytest.mark.full  # every run rejects such rows below
def test_a_change_of_an_unknown_operation_stops_no_batch(workshop: Workshop) -> None:
    stream = f"s{workshop.namespace}"
    source = workshop.declare_table("source", {"id": "long", "value": "binary"})
    target = workshop.declare_table("target", {"id": "long", "v": "string"})
    merged = {"iceberg": {"table": target, "mode": "merge", "keys": ["id"], "operation_column": "op"}}
    workshop.declare_stream(
        stream,
        sql="SELECT id, CAST(value AS STRING) v, IF(id = 1, 'x', 'u') op FROM r WHERE id IN (0, 1)",
        inputs={"r": {"stream": {"iceberg": {"table": source}}}},
        outputs={"main": merged},
        quarantine=True,
    )
    workshop.append("source", [{"id": number, "value": value} for number, value in enumerate(VALUES)])

    workshop.run(stream)

    assert [row["id"] for row in workshop.rows("target")] == [0]
    (rejected,) = workshop.rows(workshop.stream(stream).declaration.quarantine_table)
    assert "caf\ufffd" in rejected["payload"]


def test_a_batch_that_is_written_while_it_is_computed_is_written_again(workshop: Workshop, tmp_path: Path) -> None:
    """Its one output is staged as it comes; the first invalid text ends that, and the batch is taken apart."""
    folder = tmp_path / "in"
    folder.mkdir()
    lines = [{"id": number, "h": value.hex()} for number, value in enumerate(VALUES)]
    (folder / "a.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    here = FilesConnection(kind="files", root=folder.as_uri())
    workshop.settings.connections["here"] = here  # the settings are frozen, their mapping is the test's own
    columns = [{"name": "id", "type": "long"}, {"name": "h", "type": "string"}]
    stream, target = f"s{workshop.namespace}", workshop.declare_table("target", {"id": "long", "v": "string"})
    source = {"connection": "here", "format": "json", "columns": columns, "on_malformed": "quarantine"}
    workshop.declare_stream(
        stream,
        sql="SELECT id, CAST(unhex(h) AS STRING) v FROM r",
        inputs={"r": {"stream": {"files": source}}},
        outputs={"main": {"iceberg": {"table": target}}},
        quarantine=True,
    )

    workshop.run(stream)

    require_rejected(workshop, stream)
