"""Files of parquet, orc and avro are held to what is declared, before a row of them is read."""

from __future__ import annotations

import datetime as dt
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa
import pytest
from pyarrow import orc, parquet
from tests.fixtures.drill import first_of
from tests.fixtures.workshop import Workshop

from sluice.errors import SchemaError
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.source_schemas import source_schemas
from sluice.settings import FilesConnection
from sluice.sources.source_types import FileFormat
from sluice_spark.query.stream_preview import preview
from sluice_spark.sources.file_heads import FileHeads


class Folder:
    """A folder of files, and the stream that appends their rows."""

    def __init__(
        self,
        workshop: Workshop,
        place: Path,
        columns: dict[str, str],
        *,
        quarantine: bool = False,
        required: Sequence[str] = (),
        **source: Any,
    ) -> None:
        self.path, self.stream = place / "in", f"s{workshop.namespace}"
        self.path.mkdir()
        connections = {
            **workshop.settings.connections,
            "here": FilesConnection(kind="files", root=self.path.as_uri()),
        }
        settings = workshop.settings.model_copy(update={"connections": connections})
        self.workshop = Workshop(
            spark=workshop.spark, settings=settings, ledger=workshop.ledger, namespace=workshop.namespace
        )
        declared = [{"name": name, "type": kind, "required": name in required} for name, kind in columns.items()]
        self.target = workshop.declare_table("target", columns)
        workshop.declare_stream(
            self.stream,
            python="def transform(f):\n    return f\n",
            inputs={"f": {"stream": {"files": {"connection": "here", "columns": declared} | source}}},
            outputs={"main": {"iceberg": {"table": self.target}}},
            quarantine=quarantine,
        )

    def write(self, name: str, rows: pa.Table) -> None:
        """Add a file, by its ending."""
        match name.rpartition(".")[2]:
            case "parquet":
                parquet.write_table(rows, self.path / name)
            case "orc":
                orc.write_table(rows, self.path / name)
            case "avro":
                fields = [{"name": field.name, "type": ["null", "double"]} for field in rows.schema]
                schema = {"type": "record", "name": "r", "fields": fields}
                with (self.path / name).open("wb") as file:
                    fastavro.writer(file, schema, rows.to_pylist())

    def run(self) -> None:
        """Run the stream over what is there."""
        self.workshop.run(self.stream, is_recorded=True)

    def rows(self) -> list[dict[str, Any]]:
        """What the target holds."""
        return self.workshop.rows(self.target)


@pytest.mark.parametrize("kind", first_of("parquet", "orc", "avro"))
def test_a_file_without_a_declared_column_is_refused(workshop: Workshop, tmp_path: Path, kind: str) -> None:
    folder = Folder(workshop, tmp_path, {"id": "double", "amount": "double"}, format=kind)
    folder.write(f"right.{kind}", pa.table({"id": [0.0], "amount": [1.5]}))
    folder.run()
    folder.write(f"renamed.{kind}", pa.table({"id": [1.0], "amount_eur": [2.5]}))

    with pytest.raises(
        SchemaError, match=r"renamed\.\w+ does not have the declared columns \(it has amount_eur"
    ) as seen:
        folder.run()

    assert "amount: declared double, got nothing" in seen.value.message
    assert folder.rows() == [{"id": 0.0, "amount": 1.5}]
    (schema,) = source_schemas(workshop.ledger, folder.stream)
    assert {one.field for one in schema.changes} == {"amount", "amount_eur"}
    assert schema.answer == "It does not fit what is declared, and stops the stream before the batch."


@pytest.mark.full  # every run: a table's (`test_changed_fields.py`)
def test_a_column_that_became_optional_is_an_event(workshop: Workshop, tmp_path: Path) -> None:
    folder = Folder(workshop, tmp_path, {"id": "double"}, format="parquet")
    for number, is_optional in enumerate((False, True)):
        columns = pa.schema([pa.field("id", pa.float64(), nullable=is_optional)])
        folder.write(f"{number}.parquet", pa.table({"id": [float(number)]}, schema=columns))
        folder.run()

    (schema,) = source_schemas(workshop.ledger, folder.stream)
    assert [str(one) for one in schema.changes] == ["`id` was required double and is double"]
    assert folder.rows() == [{"id": 0.0}, {"id": 1.0}]


@pytest.mark.parametrize("kind", first_of("avro", "orc", "parquet"))
def test_files_from_before_a_column_are_read_beside_newer_ones(workshop: Workshop, tmp_path: Path, kind: str) -> None:
    folder = Folder(workshop, tmp_path, {"id": "double", "amount": "double"}, format=kind)
    folder.write(f"old.{kind}", pa.table({"id": [1.0]}))
    folder.write(f"new.{kind}", pa.table({"amount": [2.5], "id": [2.0]}))

    folder.run()

    assert folder.rows() == [{"id": 1.0, "amount": None}, {"id": 2.0, "amount": 2.5}]


TYPES = [
    ("int", pa.array([4_000_000_000], pa.uint32()), "an unsigned number of 32 bits"),
    ("long", pa.array([2**64 - 1], pa.uint64()), "an unsigned number of 64 bits"),
    ("int", pa.array([dt.date(1972, 9, 27)]), "date32"),
    ("string", pa.array([b"\xff\xfe"]), "bytes without the annotation of text"),
    ("timestamptz", pa.array([1], pa.timestamp("ns", tz="UTC")), "an instant in nanoseconds"),
    ("timestamptz", pa.array([1], pa.timestamp("us")), "a time without a zone in microseconds"),
]


@pytest.mark.parametrize(
    ("declared", "values", "got"),
    # Every run has the others without Spark (`test_source_types.py`).
    [TYPES[0], *(pytest.param(*one, marks=pytest.mark.full) for one in TYPES[1:])],
    ids=["uint32", "uint64", "date", "bytes", "nanoseconds", "zone"],
)
def test_the_physical_type_is_not_taken_for_the_value(
    workshop: Workshop, tmp_path: Path, declared: str, values: Any, got: str
) -> None:
    folder = Folder(workshop, tmp_path, {"id": declared}, format="parquet")
    folder.write("a b.parquet", pa.table({"id": values}))

    with pytest.raises(SchemaError, match=rf"a b\.parquet does not have .* id: declared {declared}, got {got}"):
        folder.run()
    with pytest.raises(SchemaError, match=r"a b\.parquet does not have"):
        preview(workshop.spark, folder.workshop.stream(folder.stream), folder.workshop.settings, sample=5, shown=5)

    assert folder.rows() == []


@pytest.mark.full  # every run has the types (`test_source_types.py`)
def test_a_union_of_avro_is_no_column(workshop: Workshop, tmp_path: Path) -> None:
    folder = Folder(workshop, tmp_path, {"id": "double"}, format="avro")
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": ["null", "double", "string"]}]}
    with (folder.path / "union.avro").open("wb") as file:
        fastavro.writer(file, schema, [{"id": 1.0}])

    with pytest.raises(SchemaError, match="id: declared double, got a union of types"):
        folder.run()


@pytest.mark.full  # it costs requests, and no row
def test_the_head_of_each_file_is_read_once(
    workshop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the batch that it belongs to: it costs each of many small files a request to the storage."""
    read, read_columns = Counter[str](), FileHeads.read_columns

    def counted(heads: FileHeads, uri: str, *, file_format: FileFormat) -> pa.Schema:
        read[uri.rpartition("/")[2]] += 1
        return read_columns(heads, uri, file_format=file_format)

    monkeypatch.setattr(FileHeads, "read_columns", counted)
    folder = Folder(workshop, tmp_path, {"id": "double"}, format="parquet", max_files_per_batch=2)
    for number in range(3):
        folder.write(f"{number}.parquet", pa.table({"id": [float(number)]}))
    folder.run()
    folder.write("3.parquet", pa.table({"id": [3.0]}))
    folder.run()

    assert read == {f"{number}.parquet": 1 for number in range(4)}
    assert sorted(row["id"] for row in folder.rows()) == [0.0, 1.0, 2.0, 3.0]


def test_a_damaged_file_is_named_and_written_again_in_its_place(workshop: Workshop, tmp_path: Path) -> None:
    folder = Folder(workshop, tmp_path, {"id": "long"}, format="parquet", on_changed="ignore")
    (folder.path / "cut.parquet").write_bytes(b"PAR1 no more")

    with pytest.raises(SchemaError, match=r"cut\.parquet cannot be read: it is no parquet file") as seen:
        folder.run()

    assert str(seen.value.next_step).startswith("Write the file again, which takes `on_changed: ignore`.")
    assert "out of the folder" not in str(seen.value.next_step)
    folder.write("cut.parquet", pa.table({"id": [1]}))
    folder.run()
    assert folder.rows() == [{"id": 1}]


def test_files_that_fit_are_read(workshop: Workshop, tmp_path: Path) -> None:
    folder = Folder(workshop, tmp_path, {"id": "long", "at": "timestamptz", "d": "decimal(20, 4)"}, format="parquet")
    at = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
    folder.write(
        "a.parquet",
        pa.table(
            {
                "d": pa.array([1], pa.decimal128(9, 2)),
                "id": pa.array([4_000_000_000], pa.uint32()),
                "at": pa.array([at], pa.timestamp("ms", tz="UTC")),
                "more": [1],
            }
        ),
    )
    folder.run()
    assert [(row["id"], row["at"], str(row["d"])) for row in folder.rows()] == [(4_000_000_000, at, "1.0000")]


@pytest.mark.full  # every run: a damaged one
def test_a_file_that_was_refused_is_written_again_in_its_place(workshop: Workshop, tmp_path: Path) -> None:
    """Its batch is planned: without the file it could not be read any more."""
    columns = {"id": "double", "amount": "double"}
    folder = Folder(workshop, tmp_path, columns, format="parquet", on_changed="ignore")
    folder.write("a.parquet", pa.table({"id": [1.0], "amount_eur": [2.5]}))
    with pytest.raises(
        SchemaError, match="write the file again with the declared columns, which takes `on_changed: ignore`"
    ):
        folder.run()

    folder.write("a.parquet", pa.table({"id": [1.0], "amount": [2.5]}))
    folder.write("b.parquet", pa.table({"id": [2.0], "amount": [3.5]}))
    folder.run()

    assert folder.rows() == [{"id": 1.0, "amount": 2.5}, {"id": 2.0, "amount": 3.5}]


@pytest.mark.full  # every run: headers that differ (`test_files_source.py`)
def test_the_first_lines_of_csv_are_seen_and_a_line_of_data_is_not_kept_as_one(
    workshop: Workshop, tmp_path: Path
) -> None:
    columns = {"id": "long", "amount": "double"}
    how: dict[str, Any] = {"format": "csv", "on_malformed": "quarantine", "max_files_per_batch": 1}
    folder = Folder(workshop, tmp_path, columns, quarantine=True, **how)
    files = ("id,amount\n1,1.5\n", "id,amount,colour\n2,2.5,red\n", "secret,3.5\n3,x\n", "id,amount\n4,4.5\n")
    for number, text in enumerate(files):
        (folder.path / f"{number}.csv").write_text(text)
        os.utime(folder.path / f"{number}.csv", (1_700_000_000 + 60 * number,) * 2)
    folder.run()

    assert sorted(row["id"] for row in folder.rows()) == [1, 2, 4]
    (schema,) = source_schemas(workshop.ledger, folder.stream)
    assert (schema.source, dict(schema.fields)) == ("csv files in the folder of here", {"id": "text", "amount": "text"})
    events = recent_events(workshop.ledger, EventSubject.STREAM, folder.stream, limit=50)
    (change,) = [one for one in events if one.action == "see_schema"]
    assert change.evidence["changes"] == [{"field": "colour", "was": "", "now": "text"}]
    assert change.evidence["answer"] == "1 of the 1 values with it in batch 1:1 are decoded."


@pytest.mark.parametrize("kind", first_of("orc", "avro", "parquet"))
def test_a_row_without_a_required_value_stops_the_stream_with_its_file(
    workshop: Workshop, tmp_path: Path, kind: str
) -> None:
    folder = Folder(workshop, tmp_path, {"id": "double", "amount": "double"}, format=kind, required=["amount"])
    folder.write(f"a.{kind}", pa.table({"id": [1.0, 2.0], "amount": pa.array([1.0, None], pa.float64())}))

    with pytest.raises(Exception, match=rf"A row has no value for amount in file:.*/a\.{kind}"):
        folder.run()

    assert folder.rows() == []
