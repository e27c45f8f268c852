"""Appends an empty snapshot to a table, for a stream that needs one to begin with (decision 0045)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from sluice.errors import LakehouseError
from sluice.stored_keys import START_OF
from sluice_spark.session.columns import quoted_table
from sluice_spark.session.jvm import first_line, jvm_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject


def append_start_snapshot(spark: SparkSession, table: str, *, catalog: str, start_of: str, cleans: bool) -> None:
    """Append a snapshot without files. No row changes.

    Parameters
    ----------
    start_of: who needs it, for those who read the history.
    cleans: rewrite the manifests that list removed files before, in the same commit.

    Raises
    ------
    LakehouseError: when the catalog refuses.
    """
    jvm = jvm_of(spark)
    try:
        opened = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(
            spark._jsparkSession, quoted_table(catalog, table)
        )
        opened.refresh()
        transaction = opened.newTransaction()
        if cleans:
            _rewrite_unclean(spark, opened, transaction)
        transaction.newFastAppend().set(START_OF, start_of).commit()
        transaction.commitTransaction()
    except Py4JJavaError as error:
        raise LakehouseError(
            f"An empty snapshot cannot be appended to {table}: {first_line(error)}",
            next_step=f"A stream can begin after a snapshot that appends: append a row to {table}, or declare "
            "`starting: latest`.",
        ) from error


def _rewrite_unclean(spark: SparkSession, table: JavaObject, transaction: JavaObject) -> None:
    """Rewrite the manifests that list removed files, into one for each partition spec. The live files stay listed."""
    jvm = jvm_of(spark)
    unclean = [one for one in table.currentSnapshot().dataManifests(table.io()) if one.deletedFilesCount()]
    # Of a map with a default, every look-up has the same answer: all files belong into one manifest.
    same = jvm.scala.collection.immutable.HashMap().withDefaultValue("start")
    chosen = jvm.org.apache.iceberg.relocated.com.google.common.base.Predicates.__getattr__("in")(
        jvm.java.util.ArrayList(unclean)
    )
    rewrite = transaction.rewriteManifests()
    rewrite.clusterBy(jvm.scala.jdk.javaapi.FunctionConverters.asJavaFunction(same))
    rewrite.rewriteIf(chosen)
    rewrite.commit()
