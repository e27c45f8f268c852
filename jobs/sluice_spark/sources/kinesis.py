"""A Kinesis stream as an input: a data source in Python, because there is no published connector for Spark 4.

Offsets have the form `{"kinesis": <stream>, "shards": {<shard>: <position>}}`. Spark 4.1 asks a Python source for its
latest offset without passing the position of the stream, so the source reads it from the checkpoint when it starts. The
offset of the first batch also contains its start (`begins`): when the batch runs again, "latest" must not be evaluated
again.

Source: https://spark.apache.org/docs/4.1.0/api/python/tutorial/sql/python_data_source.html
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.declarations.source_declarations import KinesisSource
from sluice.settings import KinesisConnection, ObjectStoreSettings
from sluice.sources.kinesis_shards import AT_TIMESTAMP, TRIM_HORIZON, KinesisShards, kinesis_client

_FORMAT = "sluice_kinesis"
_SCHEMA = "data binary, partition_key string, stream string, shard string, sequence_number string, arrived_at timestamp"


@dataclass(frozen=True, slots=True, kw_only=True)
class KinesisReading:
    """The parameters of a reader. They are pickled for Spark's workers, so that no secret is an option of the source.

    checkpoint: the checkpoint of the stream; None for a preview.
    """

    source: KinesisSource
    connection: KinesisConnection
    checkpoint: str | None
    object_store: ObjectStoreSettings

    def shards(self) -> KinesisShards:
        """The shards, with a new client."""
        return KinesisShards(kinesis_client(self.connection), self.source.stream)


def read_stream(spark: SparkSession, reading: KinesisReading) -> DataFrame:
    """Read records as they arrive: data, partition key, stream, shard, sequence number and time of arrival."""

    class KinesisDataSource(DataSource):
        """The data source of one input. Spark creates an instance whenever it plans."""

        @classmethod
        def name(cls) -> str:
            return f"{_FORMAT}_{reading.source.stream}".replace("-", "_").replace(".", "_")

        def schema(self) -> str:
            return _SCHEMA

        def streamReader(self, schema: StructType) -> KinesisReader:  # noqa: N802  # Spark's name
            return KinesisReader(reading)

    spark.dataSource.register(KinesisDataSource)
    return spark.readStream.format(KinesisDataSource.name()).load()


@dataclass(frozen=True)
class ShardRange(InputPartition):
    """The range of a shard that one task reads: after `start`, up to and including `end`."""

    shard: str
    start: str
    end: str


class KinesisReader(DataSourceStreamReader):
    """Plans and reads batches. It exists as long as the query, in a process beside the driver; `read` runs in tasks.

    Parameters
    ----------
    reading: the parameters of the reader.
    """

    def __init__(self, reading: KinesisReading) -> None:
        self._reading = reading
        self._begins: dict[str, str] | None = None
        self._planned: dict[str, str] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """The start of a new checkpoint."""
        if self._begins is None:
            self._begins = self._reading.shards().beginning(_first_position(self._reading.source.starting))
        return self._offset(self._begins)

    def latestOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """The end of the next batch: the newest record, or the declared limit of a batch."""
        begins = None
        if self._planned is None:
            self._planned = self._found_in_checkpoint()
        if self._planned is None:
            begins = self._planned = dict(self.initialOffset()["shards"])
        most = self._reading.source.max_records_per_batch
        self._planned = self._reading.shards().advanced(self._planned, most_records=most)
        offset = self._offset(self._planned)
        return offset if begins is None else {**offset, "begins": begins}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """One partition per shard that has records between two offsets."""
        begun = end.get("begins", start["shards"])
        return [
            ShardRange(shard=shard, start=begun.get(shard, TRIM_HORIZON), end=position)
            for shard, position in end["shards"].items()
            if begun.get(shard) != position
        ]

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes, str, str, str, str, datetime]]:
        """The records of one partition, in order."""
        if not isinstance(partition, ShardRange):
            raise TypeError(type(partition))
        shards = self._reading.shards()
        for record in shards.records_between(partition.shard, start=partition.start, end=partition.end):
            yield (
                record.data,
                record.partition_key,
                self._reading.source.stream,
                record.shard,
                record.sequence_number,
                record.arrived_at,
            )

    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: the checkpoint keeps the positions."""

    def stop(self) -> None:
        """Do nothing: no connection is open."""

    def _offset(self, shards: dict[str, str]) -> dict[str, Any]:
        return {"kinesis": self._reading.source.stream, "shards": shards}

    def _found_in_checkpoint(self) -> dict[str, str] | None:
        """The positions at the end of the newest planned batch; None before the first."""
        if self._reading.checkpoint is None:
            return None
        files = open_checkpoint_files(self._reading.checkpoint, self._reading.object_store)
        numbers = [
            int(name) for seen in files.list_files("offsets") if (name := seen.path.rpartition("/")[2]).isdigit()
        ]
        text = files.read_text(f"offsets/{max(numbers)}") if numbers else None
        for line in (text or "").splitlines():
            offset = json.loads(line) if line.startswith("{") else {}
            if offset.get("kinesis") == self._reading.source.stream:
                return dict(offset["shards"])
        return None


def _first_position(starting: object) -> str:
    if starting == "trim_horizon":
        return TRIM_HORIZON
    at_seconds = starting.timestamp() if isinstance(starting, datetime) else time.time()
    return f"{AT_TIMESTAMP}{round(at_seconds * 1000)}"
