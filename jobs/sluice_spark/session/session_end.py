"""Ends a Spark session whose application goes on: closes what Spark keeps of it.

Spark closes a session only with its application. What it keeps of each until then: the Iceberg catalogs that the
session has loaded, each with threads, HTTP clients and S3 clients of its own, and the session's bus of streaming
events, to which every event of the application is passed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sluice_spark.session.jvm import close_idle_callbacks, jvm_of, private_field

_log = logging.getLogger(__name__)

_CATALOG_MANAGER = "org.apache.spark.sql.connector.catalog.CatalogManager"
_STREAMS = "org.apache.spark.sql.classic.StreamingQueryManager"
_ICEBERG = "org.apache.iceberg.spark.source.HasIcebergCatalog"


def end_session(spark: SparkSession) -> None:
    """Close what the application would keep of a session, which is not used any more, and of its calls to Python.

    A step that fails is logged, and the others follow: the outcome of the session's work is known by then.
    """
    for step in _STEPS:
        try:
            step(spark)
        except (Py4JError, PySparkException, OSError):
            _log.exception("a session could not be closed completely (%s)", step.__name__.strip("_"))


def _stop_queries(spark: SparkSession) -> None:
    for query in spark.streams.active:
        _log.warning("the query %s still ran at the end of its session", query.id)
        query.stop()


def _leave_event_bus(spark: SparkSession) -> None:
    """Take the session's bus of streaming events off the application's one."""
    jvm, context = jvm_of(spark), spark._jsparkSession.sparkContext()
    streams = spark._jsparkSession.sessionState().streamingQueryManager()
    context.listenerBus().removeListener(private_field(jvm, _STREAMS, "listenerBus").get(streams))


def _drop_views(spark: SparkSession) -> None:
    spark._jsparkSession.sessionState().catalog().clearTempTables()


def _close_catalogs(spark: SparkSession) -> None:
    """Close the Iceberg catalogs of the session. What sessions share, Iceberg counts, and closes with the last one."""
    jvm = jvm_of(spark)
    manager = spark._jsparkSession.sessionState().catalogManager()
    is_iceberg = jvm.java.lang.Class.forName(_ICEBERG).isInstance
    is_closeable = jvm.java.lang.Class.forName("java.lang.AutoCloseable").isInstance
    for plugin in _values(jvm, private_field(jvm, _CATALOG_MANAGER, "catalogs").get(manager)):
        if is_iceberg(plugin) and is_closeable(catalog := plugin.icebergCatalog()):
            catalog.close()


def _leave_thread(spark: SparkSession) -> None:
    """Let this thread, whose connection to the JVM may live on, hold the session no longer."""
    jvm_of(spark).org.apache.spark.sql.classic.SparkSession.clearActiveSession()


def _values(jvm: Any, scala_map: Any) -> Iterable[Any]:
    return list(jvm.scala.jdk.javaapi.CollectionConverters.asJava(scala_map).values())


_STEPS: tuple[Callable[[SparkSession], None], ...] = (
    _stop_queries,
    _leave_event_bus,
    _drop_views,
    _close_catalogs,
    _leave_thread,
    close_idle_callbacks,
)
