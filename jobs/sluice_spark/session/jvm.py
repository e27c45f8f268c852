"""The JVM behind a Spark session, for the few things that PySpark has no words for."""

from __future__ import annotations

from typing import Any

from pyspark.sql import SparkSession

from sluice.errors import SluiceError

_REMEMBERED = (
    "java.lang",
    "org.apache.commons.io",
    "org.apache.hadoop.fs.Path",
    "org.apache.spark.api.python.PythonUtils",
    "org.apache.spark.sql.catalyst",
    "org.apache.spark.sql.classic",
    "org.apache.spark.sql.streaming",
    "py4j.reflection.TypeUtil",
    "PythonSQLUtils",
    "PythonUtils",
    "functions",
)
"""What PySpark and Sluice ask for in every batch."""


def remember_names(spark: SparkSession) -> None:
    """Let Python remember what some names mean in the JVM, where py4j asks for each part of a name each time.

    The JVM then looks for a class of that name in every jar of the class path, and for a bare name in every imported
    package too: 2-3 ms for `org` alone. PySpark asks 13 times what kind of exception ends a Java iterator, which took
    21 ms and takes 5 with what is remembered here.
    """
    for name in _REMEMBERED:
        place = jvm_of(spark)
        for part in name.split("."):
            setattr(place, part, getattr(place, part))
            place = getattr(place, part)


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
