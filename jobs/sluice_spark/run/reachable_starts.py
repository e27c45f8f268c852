"""Checks, before a new checkpoint begins, that Kafka and Delta still have what the declared start asks for.

Left to themselves, their sources begin with the oldest that is left, and do not say that it is not what was declared.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from pyspark.sql import SparkSession

from sluice.declarations.source_declarations import DeltaSource, KafkaSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import DeclarationError
from sluice.settings import FilesConnection, KafkaConnection, Settings
from sluice.sources.topic_starts import missing_offsets, missing_times
from sluice_spark.run.run_checkpoint import RunCheckpoint
from sluice_spark.sources.delta import oldest_commit


def require_reachable_starts(spark: SparkSession, checkpoint: RunCheckpoint, settings: Settings) -> None:
    """Check the inputs of a checkpoint without a planned batch. With `on_data_loss: count` a loss is counted.

    Raises
    ------
    DeclarationError: when records or commits are gone, or may be: which, and what can be declared.
    LakehouseError: when Kafka does not answer.
    """
    if checkpoint.state.newest_planned >= 0:
        return
    declaration = checkpoint.stream.declaration
    for name, topics in _bound_topics(declaration):
        if missing := tuple(_missing_records(topics, settings)):
            ways = "`starting: earliest` or a later start, or `on_data_loss: count` to begin with what is left"
            raise _refused(checkpoint, ("inputs", name, "stream", "kafka", "starting"), "; ".join(missing), ways)
    for name, table in _bound_delta_tables(declaration):
        if missing := tuple(_missing_commits(spark, table, settings)):
            ways = "a later time, or leave it out to read every row of the table"
            raise _refused(checkpoint, ("inputs", name, "stream", "delta", "from_timestamp"), "; ".join(missing), ways)


def _refused(checkpoint: RunCheckpoint, key: tuple[str, ...], problem: str, ways: str) -> DeclarationError:
    return DeclarationError(
        f"Input {key[1]} cannot begin as declared: {problem}.",
        location=checkpoint.stream.location(key),
        next_step=f"Declare {ways}.",
    )


def _bound_topics(declaration: StreamDeclaration) -> Iterator[tuple[str, KafkaSource]]:
    for name, declared in declaration.inputs.items():
        source = declared.declared_source.source
        if not declared.is_stream or not isinstance(source, KafkaSource) or source.on_data_loss != "fail":
            continue
        if isinstance(source.starting, dict | datetime):
            yield name, source


def _missing_records(source: KafkaSource, settings: Settings) -> Iterator[str]:
    from sluice.sources.kafka_topics import KafkaTopics  # a native library, which other inputs do not load

    topics = KafkaTopics(settings.connection(source.connection, KafkaConnection))
    partitions = topics.partitions_of(source)
    bounds = topics.bounds_of(partitions, isolation="read_uncommitted")
    if isinstance(source.starting, dict):
        yield from missing_offsets(source.starting, bounds)
    elif isinstance(source.starting, datetime):
        yield from missing_times(source.starting, topics.offsets_since(partitions, source.starting), bounds)


def _bound_delta_tables(declaration: StreamDeclaration) -> Iterator[tuple[str, DeltaSource]]:
    for name, declared in declaration.inputs.items():
        source = declared.declared_source.source
        if declared.is_stream and isinstance(source, DeltaSource) and source.from_timestamp is not None:
            yield name, source


def _missing_commits(spark: SparkSession, source: DeltaSource, settings: Settings) -> Iterator[str]:
    oldest = oldest_commit(spark, source, settings.connection(source.connection, FilesConnection))
    declared = source.from_timestamp
    if declared is not None and oldest.version > 0 and oldest.committed_at > declared:
        yield (
            f"the oldest commit in the log of {source.path} is version {oldest.version}, of "
            f"{oldest.committed_at.isoformat()}, and {declared.isoformat()} is declared"
        )
