"""Lines from a socket as an input, for experiments: lines that were sent before a restart are lost."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from sluice.declarations.source_declarations import SocketSource


def read_stream(spark: SparkSession, source: SocketSource) -> DataFrame:
    """Read rows of `value`, one per line, and `timestamp`, the time of arrival."""
    options = {"host": source.host, "port": str(source.port), "includeTimestamp": "true"}
    return spark.readStream.format("socket").options(**options).load()
