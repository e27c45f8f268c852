"""Kafka topics as an output.

*Guarantee*: at least once. Spark's writer uses an idempotent producer, so that a retry does not duplicate a record.
A batch that runs again is sent again, with equal keys and values.

Source of the columns and options:
https://spark.apache.org/docs/4.1.0/streaming/structured-streaming-kafka-integration.html#writing-data-to-kafka
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from sluice.declarations.output_declaration import KafkaOutput
from sluice.ledger.batches import PublicationKey
from sluice.settings import KafkaConnection
from sluice.sources.kafka_clients import spark_options
from sluice_spark.session.columns import JSON_TEXT, quoted

_HEADERS = MapType(StringType(), StringType())


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaSink:
    """Writes records to one topic, or to the topic that each row names."""

    output: str
    declared: KafkaOutput
    connection: KafkaConnection

    @property
    def place(self) -> str:
        """The destination of the rows, for messages."""
        topic = self.declared.topic or f"named by {self.declared.topic_column}"
        return f"Kafka {self.declared.connection}, topic {topic}"

    @property
    def replaces(self) -> bool:
        """Whether a batch replaces what is there."""
        return False

    def write(self, rows: DataFrame, *, key: PublicationKey) -> None:
        """Write each row as a record."""
        self.records(rows).write.format("kafka").options(**self.options()).save()

    def options(self) -> dict[str, str]:
        """The options of Spark's Kafka writer, for a batch or a streaming query."""
        options = {
            **spark_options(self.connection),
            "kafka.acks": "all",
            "kafka.enable.idempotence": "true",
        }
        return options if self.declared.topic is None else {**options, "topic": self.declared.topic}

    def records(self, rows: DataFrame) -> DataFrame:
        """The rows with the columns of Spark's Kafka writer: value, and key, headers and topic where declared."""
        declared = self.declared
        columns = [self._value(rows.schema).alias("value")]
        if declared.key_column is not None:
            columns.append(_text_or_bytes(declared.key_column, rows.schema).alias("key"))
        if declared.headers_column is not None:
            columns.append(_headers(declared.headers_column).alias("headers"))
        if declared.topic_column is not None:
            columns.append(fn.col(quoted(declared.topic_column)).alias("topic"))
        return rows.select(*columns)

    def _value(self, schema: StructType) -> Column:
        if self.declared.value_column is not None:
            return _text_or_bytes(self.declared.value_column, schema)
        aside = (self.declared.topic_column, self.declared.headers_column)
        fields = fn.struct(*(fn.col(quoted(name)) for name in schema.names if name not in aside))
        return fn.to_json(fields, dict(JSON_TEXT))

    def mismatches(self, rows: StructType) -> Iterator[str]:
        """Report why rows of this schema cannot be written."""
        declared = self.declared
        for role in ("topic_column", "key_column", "value_column", "headers_column"):
            name = getattr(declared, role)
            if name is not None and name not in rows.names:
                yield f"{role} {name} is not one of its columns, which are {', '.join(rows.names)}"
            elif name is not None and (problem := _type_problem(role, rows[name].dataType)):
                yield f"{role} {name} is {rows[name].dataType.simpleString()}, {problem}"
        if twice := sorted({name for name in rows.names if rows.names.count(name) > 1}):
            yield f"column {', '.join(twice)} occurs twice"


def _type_problem(role: str, kind: DataType) -> str:
    if role == "headers_column":
        return "" if kind.simpleString() == _HEADERS.simpleString() else f"and headers are {_HEADERS.simpleString()}"
    if role == "topic_column":
        return "" if isinstance(kind, StringType) else "and a topic's name is a string"
    return "which has no text" if kind.typeName() in ("struct", "array", "map", "variant") else ""


def _text_or_bytes(name: str, schema: StructType) -> Column:
    column = fn.col(quoted(name))
    return column if isinstance(schema[name].dataType, BinaryType) else column.cast("string")


def _headers(name: str) -> Column:
    """The entries of a map as the writer expects them: an array of key and bytes."""
    return fn.transform(
        fn.map_entries(fn.col(quoted(name))),
        lambda entry: fn.struct(entry["key"].alias("key"), entry["value"].cast("binary").alias("value")),
    )
