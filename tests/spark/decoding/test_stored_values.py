"""Values that a table stores as bytes: which of its rows are rejected, and what stops the stream."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from tests.fixtures.workshop import Workshop


@pytest.mark.full  # it costs a wrong name on a page, and no row
def test_a_row_of_a_table_with_a_column_file_is_no_file(workshop: Workshop) -> None:
    name = f"s{workshop.namespace}"
    source = workshop.declare_table(f"documents_{uuid4().hex[:6]}", {"file": "string", "value": "binary"})
    target = workshop.declare_table("target", {"id": "long"})
    value = {"format": "json", "columns": [{"name": "id", "type": "long"}]}
    workshop.declare_stream(
        name,
        sql="SELECT id FROM documents",
        inputs={"documents": {"stream": {"iceberg": {"table": source, "value": value}}}},
        outputs={"main": {"iceberg": {"table": target}}},
        quarantine=True,
    )
    workshop.append(source, [{"file": "a.json", "value": b'{"id": 1}'}, {"file": "b.json", "value": b"{"}])

    (batch,) = workshop.run(name).batches

    assert (batch.input_rows, batch.refused_rows) == (2, 1)
    assert batch.rejected_files == ()


@pytest.mark.full  # every run: a position in `test_table_values.py`
def test_the_position_of_a_stored_record_is_its_place_in_the_topic_and_no_other_column(workshop: Workshop) -> None:
    name = f"s{workshop.namespace}"
    place = {"topic": "orders", "partition": 0, "offset": 7, "timestamp": datetime(2026, 1, 31, tzinfo=UTC)}
    kinds = {"topic": "string", "partition": "int", "offset": "long", "timestamp": "timestamptz"}
    source = workshop.declare_table("stored", {"customer": "string", "value": "binary", **kinds})
    target = workshop.declare_table("target", {"id": "long"})
    workshop.declare_stream(
        name,
        sql="SELECT id FROM orders",
        inputs={
            "orders": {
                "stream": {
                    "iceberg": {
                        "table": source,
                        "value": {"format": "json", "columns": [{"name": "id", "type": "long"}]},
                    }
                }
            }
        },
        outputs={"main": {"iceberg": {"table": target}}},
        quarantine=True,
    )
    workshop.append("stored", [{"customer": "a name", "value": b"{", **place}])

    workshop.run(name)

    (row,) = workshop.rows(f"quarantine.{name}")
    assert json.loads(row["position"]) == {**place, "timestamp": "2026-01-31T00:00:00.000Z"}


def test_a_stop_at_a_field_that_no_column_takes_names_it_without_a_position(workshop: Workshop) -> None:
    """A table of values alone gives no position, and Spark's `concat` with null is null."""
    name = f"s{workshop.namespace}"
    source = workshop.declare_table("source", {"value": "binary"})
    target = workshop.declare_table("target", {"id": "long"})
    value = {"format": "json", "columns": [{"name": "id", "type": "long"}], "on_unknown_field": "fail"}
    workshop.declare_stream(
        name,
        sql="SELECT id FROM orders",
        inputs={"orders": {"stream": {"iceberg": {"table": source, "value": value}}}},
        outputs={"main": {"iceberg": {"table": target}}},
        quarantine=True,
    )
    workshop.append("source", [{"value": b'{"id": 1, "colour": "red"}'}])

    with pytest.raises(Exception, match="colour"):
        workshop.run(name)
