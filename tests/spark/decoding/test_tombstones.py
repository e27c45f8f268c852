"""Records without a value: in the quarantine, or left out and counted, so that the rows of a batch add up."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.fixtures.backfills import backfill, delete_days
from tests.fixtures.drill import first_of
from tests.fixtures.workshop import Workshop
from tests.spark.decoding.test_decoding import COLUMNS, CONTINUOUS, declared, refused_offsets, sent
from tests.unit.record_values.test_avro_values import record
from tests.unit.record_values.test_avro_values import written as avro

from sluice.ledger.batches import BatchObservation
from sluice.settings import KafkaConnection
from sluice.sources.kafka_clients import client_settings
from sluice_spark.query.stream_preview import preview

IGNORING = {"format": "json", "columns": COLUMNS, "tombstones": "ignore"}
VALUES: list[bytes | None] = [b'{"id": 1}', None, b"{", None, b'{"id": 2}', None]
TWO_OUTPUTS = """
    def transform(orders):
        ids = orders.select("id")
        return {"a": ids, "b": ids.where("id > 1")}
"""
DAY = datetime(2026, 1, 31, 12, tzinfo=UTC)


def adds_up(batch: BatchObservation) -> bool:
    """Whether every row that was read is published or rejected."""
    return batch.input_rows == sum(batch.published_rows.values()) + batch.refused_rows


@pytest.mark.parametrize("how", first_of({}, CONTINUOUS), ids=["incremental", "continuous"])
def test_tombstones_are_left_out_and_counted_and_a_preview_decides_the_same(
    workshop: Workshop, how: dict[str, Any]
) -> None:
    topic = sent(workshop, VALUES)
    stream = declared(workshop, topic, how=how, value=IGNORING)

    (batch,) = workshop.run(stream, stop_after_batches=1 if how else None).batches

    assert [row["id"] for row in workshop.rows(stream)] == [1, 2]
    assert refused_offsets(workshop, stream) == [2]
    assert batch.skipped_input == {"orders": {"tombstones": 3}}
    assert batch.input_rows == 3
    assert adds_up(batch)
    seen = preview(workshop.spark, workshop.stream(stream), workshop.settings, sample=100, shown=100)
    assert (seen.outputs[0].rows, sum(seen.refused.values())) == (2, 1)


@pytest.mark.full  # every run: one output, beside other records
def test_a_batch_of_tombstones_alone_is_empty_and_two_outputs_count_them_once(workshop: Workshop) -> None:
    """Beside the count of lost records, of which there are none."""
    topic = sent(workshop, [None, None])
    name = f"s{workshop.namespace}"
    targets = [workshop.declare_table(table, {"id": "long"}) for table in ("first", "second")]
    source = {"connection": "flights_kafka", "topics": [topic], "value": IGNORING, "on_data_loss": "count"}
    workshop.declare_stream(
        name,
        python=TWO_OUTPUTS,
        inputs={"orders": {"stream": {"kafka": source}}},
        outputs={key: {"iceberg": {"table": table}} for key, table in zip("ab", targets, strict=True)},
        quarantine=True,
    )

    (batch,) = workshop.run(name).batches
    sent(workshop, VALUES, topic)
    (other,) = workshop.run(name).batches

    assert (batch.input_rows, batch.skipped_input) == (0, {"orders": {"tombstones": 2}})
    assert (other.input_rows, other.refused_rows, other.skipped_input) == (3, 1, {"orders": {"tombstones": 3}})
    assert (workshop.rows("first"), workshop.rows("second")) == ([{"id": 1}, {"id": 2}], [{"id": 2}])


@pytest.mark.full  # the same filter before another decoder
def test_tombstones_of_avro(workshop: Workshop) -> None:
    instant = {"type": "long", "logicalType": "timestamp-micros"}
    words = record(("id", "long"), ("word", "string"), ("ordered_at", instant))
    (workshop.folder / "words.avsc").write_text(words)
    values = [avro(words, {"id": 1, "word": "one", "ordered_at": DAY}), None]
    stream = declared(
        workshop,
        sent(workshop, values),
        value={"format": "avro", "schema_file": "words.avsc", "tombstones": "ignore"},
    )

    (batch,) = workshop.run(stream).batches

    assert [row["word"] for row in workshop.rows(stream)] == ["one"]
    assert (batch.input_rows, batch.skipped_input) == (1, {"orders": {"tombstones": 1}})


@pytest.mark.full  # the reading of a backfill; what is left out is asked above
def test_tombstones_that_a_table_stores_are_left_out_by_a_backfill_too(workshop: Workshop) -> None:
    name = f"s{workshop.namespace}"
    source = workshop.declare_table("source", {"value": "binary", "at": "timestamptz"})
    target = workshop.declare_table("target", {"id": "long", "at": "timestamptz"})
    workshop.declare_stream(
        name,
        sql="SELECT id, record.at FROM orders",
        inputs={"orders": {"stream": {"iceberg": {"table": source, "value": IGNORING}}}},
        outputs={"main": {"iceberg": {"table": target}}},
        quarantine=True,
        backfill={
            "column": "at",
            "interval": "day",
            "balance": "rows",
            "margin": "1 minute",
            "reads": {"orders": "at"},
        },
    )
    workshop.append("source", [{"value": value, "at": DAY} for value in VALUES])
    (batch,) = workshop.run(name).batches
    delete_days(workshop, "target", "2026-01-31", "2026-02-01")

    result = backfill(workshop, name, start="2026-01-31", end="2026-02-01")

    assert (batch.input_rows, batch.skipped_input) == (3, {"orders": {"tombstones": 3}})
    assert result.state == "published"
    assert [row["id"] for row in workshop.rows("target")] == [1, 2]
    assert len(workshop.rows(f"quarantine.{name}")) == 1


@pytest.mark.full  # a change feed is in every run
def test_without_a_decoded_value_a_tombstone_deletes_the_row_of_its_key(workshop: Workshop) -> None:
    """As the guide says of topics that delete with tombstones alone."""
    topic, name = sent(workshop, [b"without a key"]), f"s{workshop.namespace}"
    producer = Producer({**client_settings(workshop.settings.connection("flights_kafka", KafkaConnection))})
    for key, value in (("a", "1"), ("b", "2"), ("a", None)):
        producer.produce(topic, key=key, value=value)
    assert producer.flush(60) == 0
    target = workshop.declare_table("target", {"id": "string", "word": "string", "offset": "long"})
    workshop.declare_stream(
        name,
        sql="""SELECT string(key) id, string(value) word, offset, IF(value IS NULL, 'd', 'u') op FROM orders
            WHERE key IS NOT NULL""",
        inputs={"orders": {"stream": {"kafka": {"connection": "flights_kafka", "topics": [topic]}}}},
        outputs={
            "main": {
                "iceberg": {
                    "table": target,
                    "mode": "merge",
                    "keys": ["id"],
                    "operation_column": "op",
                    "ordering_columns": ["offset"],
                }
            }
        },
    )

    workshop.run(name)

    assert workshop.rows("target") == [{"id": "b", "word": "2", "offset": 2}]
