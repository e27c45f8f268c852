"""Values that another stream stored raw in a table are decoded as those of Kafka are, as often as one likes."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import pytest
from tests.fixtures.backfills import backfill
from tests.fixtures.registry import Registry
from tests.fixtures.workshop import Workshop
from tests.spark.decoding.test_decoding import COLUMNS, CONTINUOUS, VALUES
from tests.unit.record_values.test_avro_values import framed, record
from tests.unit.record_values.test_avro_values import written as avro

from sluice.errors import SchemaError
from sluice.ledger.source_schemas import source_schemas
from sluice.settings import Settings
from sluice_spark.query.stream_preview import preview

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)
RAW = {"raw": "binary", "note": "string", "number": "long", "at": "timestamptz", "tags": "list<string>"}


def with_raw(workshop: Workshop, values: list[bytes | None]) -> str:
    """A table of raw values as a bronze stream writes it; its name."""
    table = f"raw_{uuid4().hex[:8]}"
    workshop.declare_table(table, RAW)
    append(workshop, table, values)
    return table


def append(workshop: Workshop, table: str, values: list[bytes | None], *, first: int = 0) -> None:
    """Append raw values, numbered."""
    rows = [
        {"raw": value, "note": None if value is None else value.decode(errors="replace"), "number": number, "at": AT}
        for number, value in enumerate(values, first)
    ]
    workshop.append(table, [{**row, "tags": ["a"]} for row in rows])


def declared(
    workshop: Workshop,
    table: str,
    *,
    column: str = "raw",
    value: dict[str, Any] | None = None,
    parts: dict[str, Any] | None = None,
) -> str:
    """Declare a stream that decodes a column of the table; its name."""
    stream = f"d{uuid4().hex[:12]}"
    target = workshop.declare_table(stream, {"id": "long", "word": "string", "number": "long", "at": "timestamptz"})
    decoding = value or {"format": "json", "columns": COLUMNS}
    source = {"table": workshop.table_name(table), "value_column": column, "value": decoding}
    workshop.declare_stream(
        stream,
        sql="SELECT id, word, record.number, record.at FROM orders",
        inputs={"orders": {"stream": {"iceberg": source}}},
        outputs={"main": {"iceberg": {"table": target}}},
        quarantine=True,
        **(parts or {}),
    )
    return stream


def refused(workshop: Workshop, stream: str) -> dict[int, tuple[str, str | None]]:
    """Reason and payload of what is in the quarantine, by the number of its row."""
    rows = workshop.rows(f"quarantine.{stream}")
    return {json.loads(row["position"])["number"]: (row["reason"], row["payload"]) for row in rows}


def test_a_column_of_bytes_is_decoded_and_what_cannot_be_is_rejected_as_a_record_of_kafka_is(
    workshop: Workshop,
) -> None:
    stream = declared(workshop, with_raw(workshop, [value for value, _ in VALUES]))

    (batch,) = workshop.run(stream).batches

    assert [(row["id"], row["word"], row["number"]) for row in workshop.rows(stream)] == [(1, "one", 0), (2, None, 1)]
    found = refused(workshop, stream)
    assert {number: reason for number, (reason, _) in found.items()} == {
        number: reason for number, (_, reason) in enumerate(VALUES) if reason is not None
    }
    assert [found[number][1] for number in (3, 5, 6)] == ["{", "0xFFFE", None]
    (row,) = [row for row in workshop.rows(f"quarantine.{stream}") if row["kind"] == "not_text"]
    assert json.loads(row["position"]) == {"note": "��", "number": 5, "at": "2026-01-31T12:00:00.000Z"}
    assert (batch.input_rows, batch.refused_rows) == (7, 5)
    assert batch.undeclared_fields == {"orders": {"more": 1}}


@pytest.mark.full  # every run: a topic and its preview (`test_tombstones.py`)
def test_a_continuous_stream_and_a_preview_decide_the_same_and_text_is_decoded_too(workshop: Workshop) -> None:
    table = with_raw(workshop, [value for value, _ in VALUES if value != b"\xff\xfe"])
    stream = declared(workshop, table, column="note", parts=dict(CONTINUOUS))

    workshop.run(stream, stop_after_batches=1)
    append(workshop, table, [b'{"id": 9}', b"[]"], first=7)
    workshop.run(stream, stop_when=lambda batch: batch.key.batch > 0)

    assert [row["id"] for row in workshop.rows(stream)] == [1, 2, 9]
    assert sorted(refused(workshop, stream)) == [2, 3, 4, 5, 8]
    seen = preview(workshop.spark, workshop.stream(stream), workshop.settings, sample=100, shown=100)
    assert sorted(row["id"] for row in seen.outputs[0].first) == [1, 2, 9]
    assert sum(seen.refused.values()) == 5


@pytest.mark.full  # the decoder of Kafka's values, behind what the tests above ask
def test_values_with_the_id_of_a_schema(workshop: Workshop, registry: Registry) -> None:
    settings = with_registry(workshop.settings, registry)
    workshop = Workshop(spark=workshop.spark, settings=settings, ledger=workshop.ledger, namespace=workshop.namespace)
    old, new = record(("id", "long"), ("word", "string")), record(("id", "long"), ("word", "string"), ("more", "int"))
    subject = f"s{uuid4().hex}"
    first, second = registry.register(subject, old), registry.register(subject, new)
    values = [
        framed(first, avro(old, {"id": 1, "word": "a"})),
        framed(second, avro(new, {"id": 2, "word": "b", "more": 3})),
        b"{}",
    ]
    how = {"format": "avro", "registry": "registry", "subject": subject, "version": 1}
    stream = declared(workshop, with_raw(workshop, list(values)), value=how)

    workshop.run(stream)

    assert [(row["id"], row["word"]) for row in workshop.rows(stream)] == [(1, "a"), (2, "b")]
    assert list(refused(workshop, stream)) == [2]
    assert [one.input for one in source_schemas(workshop.ledger, stream)] == ["orders", "orders, its values"]


def with_registry(settings: Settings, registry: Registry) -> Settings:
    """The settings of a deployment that has the registry."""
    return settings.model_copy(update={"connections": {**settings.connections, "registry": registry.connection}})


def test_a_column_that_is_gone_is_refused_by_its_name(workshop: Workshop) -> None:
    table = with_raw(workshop, [b'{"id": 1}'])
    stream = declared(workshop, table)
    with workshop.table(table).update_schema() as update:
        update.delete_column("raw")

    with pytest.raises(SchemaError, match=rf"{table} cannot be decoded: raw: declared binary or string, got nothing"):
        workshop.run(stream)


@pytest.mark.full  # the reading of a backfill; what is decoded is asked above
def test_a_backfill_decodes_again_what_was_left_out(workshop: Workshop) -> None:
    table = with_raw(workshop, [b'{"id": 1, "word": "one"}', b"{", b'{"id": 2, "word": "two"}'])
    parts = {
        "backfill": {
            "column": "at",
            "interval": "day",
            "balance": "rows",
            "margin": "1 minute",
            "reads": {"orders": "at"},
        }
    }
    stream = declared(workshop, table, parts=parts)
    workshop.run(stream)
    quarantined = workshop.rows(f"quarantine.{stream}")
    (workshop.folder / f"{stream}.sql").write_text("SELECT id, upper(word) word, record.number, record.at FROM orders")

    result = backfill(workshop, stream, start="2026-01-31", end="2026-02-01")

    assert result.state == "published"
    assert [(row["id"], row["word"]) for row in workshop.rows(stream)] == [(1, "ONE"), (2, "TWO")]
    assert workshop.rows(f"quarantine.{stream}") == quarantined
