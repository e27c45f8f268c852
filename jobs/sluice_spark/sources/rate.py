"""Numbered rows at a steady rate as an input, for trying out."""

from __future__ import annotations

from pyspark.sql import DataFrame, SparkSession

from sluice.declarations.source_declarations import RateSource


def read_stream(spark: SparkSession, source: RateSource) -> DataFrame:
    """Rows of `timestamp` and `value`, as they are made up."""
    return spark.readStream.format("rate").option("rowsPerSecond", source.rows_per_second).load()
