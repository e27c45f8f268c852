"""Numbered rows at a constant rate as an input, for experiments."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from sluice.declarations.source_declarations import RateSource


def read_stream(spark: SparkSession, source: RateSource) -> DataFrame:
    """Read generated rows of `timestamp` and `value`."""
    return spark.readStream.format("rate").option("rowsPerSecond", source.rows_per_second).load()
