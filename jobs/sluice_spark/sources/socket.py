"""Lines from a socket as an input, for trying out: what was sent before a restart is lost."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from sluice.declarations.source_declarations import SocketSource


def read_stream(spark: SparkSession, source: SocketSource) -> DataFrame:
    """Rows of `value`, one for each line, and `timestamp`, when it came."""
    options = {"host": source.host, "port": str(source.port), "includeTimestamp": "true"}
    return spark.readStream.format("socket").options(**options).load()
