"""The JVM behind a Spark session, for the few things that PySpark has no words for."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from sluice.errors import SluiceError


def jvm_of(spark: SparkSession) -> Any:
    """The JVM's packages, as attributes: `jvm_of(spark).java.lang.System`. py4j has no types, hence `Any`.

    Raises
    ------
    SluiceError: when the session is closed, or is a Spark Connect session that has no JVM at hand.
    """
    jvm = spark.sparkContext._jvm
    if jvm is None:
        raise SluiceError("This Spark session has no JVM at hand: it is closed.")
    return jvm
