"""Kafka topics as an input.

Source of the options: https://spark.apache.org/docs/4.1.0/streaming/structured-streaming-kafka-integration.html
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from datetime import datetime

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as fn

from sluice.backfill.read_bounds import OffsetRange
from sluice.declarations.source_declarations import KafkaSource
from sluice.settings import KafkaConnection
from sluice.sources.kafka_clients import spark_options


def read_stream(spark: SparkSession, source: KafkaSource, connection: KafkaConnection) -> DataFrame:
    """Read records as they arrive. Offsets are kept in the checkpoint, never in a consumer group."""
    options = {**_options(source, connection), **_limits(source)}
    if isinstance(source.starting, datetime):
        options["startingOffsetsByTimestampStrategy"] = "latest"  # a partition without records since then begins there
    return spark.readStream.format("kafka").options(**options).load()


def read_now(spark: SparkSession, source: KafkaSource, connection: KafkaConnection) -> DataFrame:
    """Read the existing records from where a new checkpoint would begin; all records when that is the end."""
    options = _options(source, connection)
    if source.starting == "latest":
        options["startingOffsets"] = "earliest"
    return spark.read.format("kafka").options(**options).load()


def read_ranges(
    spark: SparkSession,
    source: KafkaSource,
    connection: KafkaConnection,
    ranges: Mapping[str, Mapping[int, OffsetRange]],
    *,
    left_out: Mapping[str, Mapping[int, tuple[OffsetRange, ...]]],
) -> DataFrame:
    """Read the records between offsets, by topic and partition. It fails when one was removed meanwhile.

    Parameters
    ----------
    left_out: the parts that are not read.
    """

    def offsets(edge: Callable[[OffsetRange], int]) -> str:
        of_topics = {topic: {str(part): edge(one) for part, one in parts.items()} for topic, parts in ranges.items()}
        return json.dumps(of_topics)

    options = {
        **spark_options(connection),
        "kafka.isolation.level": source.isolation,
        "includeHeaders": str(source.headers).lower(),
        "failOnDataLoss": "true",
        "assign": json.dumps({topic: list(parts) for topic, parts in ranges.items()}),
        "startingOffsets": offsets(lambda one: one.first),
        "endingOffsets": offsets(lambda one: one.end),
    }
    records = spark.read.format("kafka").options(**options).load()
    for topic, partitions in left_out.items():
        for number, parts in partitions.items():
            for part in parts:
                records = records.where(~_is_within(topic, number, part))
    return records


def _is_within(topic: str, partition: int, part: OffsetRange) -> Column:
    of_partition = (fn.col("topic") == topic) & (fn.col("partition") == partition)
    return of_partition & (fn.col("offset") >= part.first) & (fn.col("offset") < part.end)


def _options(source: KafkaSource, connection: KafkaConnection) -> dict[str, str]:
    return {
        **spark_options(connection),
        "kafka.isolation.level": source.isolation,
        "includeHeaders": str(source.headers).lower(),
        "failOnDataLoss": str(source.on_data_loss == "fail").lower(),
        **_subscription(source),
        **_start(source),
    }


def _subscription(source: KafkaSource) -> dict[str, str]:
    if source.topics is not None:
        return {"subscribe": ",".join(source.topics)}
    if source.topic_pattern is not None:
        return {"subscribePattern": source.topic_pattern}
    return {"assign": json.dumps({topic: list(partitions) for topic, partitions in (source.assignment or {}).items()})}


def _start(source: KafkaSource) -> dict[str, str]:
    match source.starting:
        case datetime() as instant:
            return {"startingTimestamp": str(round(instant.timestamp() * 1000))}
        case dict() as offsets:
            by_topic = {topic: {str(part): at for part, at in parts.items()} for topic, parts in offsets.items()}
            return {"startingOffsets": json.dumps(by_topic)}
        case end:
            return {"startingOffsets": end}


def _limits(source: KafkaSource) -> dict[str, str]:
    limits = {
        "maxOffsetsPerTrigger": source.max_offsets_per_batch,
        "minOffsetsPerTrigger": source.min_offsets_per_batch,
    }
    return {name: str(value) for name, value in limits.items() if value is not None}
