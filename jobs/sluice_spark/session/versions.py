"""Compares the versions of pyspark, Spark and the jars at start-up. A mismatch would fail later, far from its cause."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import pyspark
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from sluice.errors import SettingsError
from sluice_spark.session.jvm import jvm_of

_PROBED = {
    "Iceberg": "org.apache.iceberg.spark.SparkCatalog",
    "Kafka source": "org.apache.spark.sql.kafka010.KafkaSourceProvider",
    "Hadoop S3A": "org.apache.hadoop.fs.s3a.S3AFileSystem",
}
"""One class of each component that must match Spark. The name of its jar contains the version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundVersions:
    """The versions on the class path. jars: the file name of each component's jar; empty when it is missing."""

    pyspark: str
    spark: str
    hadoop: str
    jars: Mapping[str, str]


def require_matching_jars(spark: SparkSession) -> None:
    """Check that everything on the class path was built for this pyspark.

    Raises
    ------
    SettingsError: when something is missing or has another version.
    """
    if mismatch := find_mismatch(_find_versions(spark)):
        raise SettingsError(mismatch, next_step="Run `make jars`, and check that SPARK_HOME names no other Spark.")


def find_mismatch(found: FoundVersions) -> str:
    """Describe the first mismatch in one sentence; empty when there is none."""
    if found.spark != found.pyspark:
        return f"pyspark has version {found.pyspark}, and its Spark has version {found.spark}."
    minor = found.pyspark.rpartition(".")[0]
    needed = {
        "Iceberg": f"iceberg-spark-runtime-{minor}_",
        "Kafka source": f"-{found.pyspark}.jar",
        "Hadoop S3A": f"hadoop-aws-{found.hadoop}.jar",
    }
    for part, jar in found.jars.items():
        if not jar:
            return f"The class path has no {part}: {_PROBED[part]} is missing."
        if needed[part] not in jar:
            return f"The {part} on the class path is {jar}; Spark {found.spark} needs {needed[part]}."
    return ""


def _find_versions(spark: SparkSession) -> FoundVersions:
    jvm = jvm_of(spark)
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    jars = {}
    for part, name in _PROBED.items():
        try:
            source = loader.loadClass(name).getProtectionDomain().getCodeSource()
        except Py4JJavaError:  # ClassNotFoundException: reported as missing
            jars[part] = ""
        else:
            jars[part] = re.sub(r".*/", "", source.getLocation().toString())
    return FoundVersions(
        pyspark=pyspark.__version__,
        spark=spark.version,
        hadoop=jvm.org.apache.hadoop.util.VersionInfo.getVersion(),
        jars=jars,
    )
