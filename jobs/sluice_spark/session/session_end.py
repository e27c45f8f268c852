"""Ends a Spark session whose application continues: closes what Spark keeps of it.

Spark closes a session only with its application. What it keeps of each until then: the Iceberg catalogs that the
session has loaded, each with threads, HTTP clients and S3 clients of its own, and the session's bus of streaming
events, to which every event of the application is passed. Threads of Spark's pools hold whichever session was active
where they were made, for as long as they live, and with it all that it has planned. So an ended session is emptied.

A query of a stream works in a copy of its session, with catalogs of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from sluice_spark.session.jvm import jvm_of, private_field

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_log = logging.getLogger(__name__)

_CATALOG_MANAGER = "org.apache.spark.sql.connector.catalog.CatalogManager"
_CACHING_CATALOG = "org.apache.iceberg.CachingCatalog"
_ICEBERG = "org.apache.iceberg.spark.source.HasIcebergCatalog"
_SESSION = "org.apache.spark.sql.classic.SparkSession"
_STREAMS = "org.apache.spark.sql.classic.StreamingQueryManager"


def end_session(spark: SparkSession) -> None:
    """Close what the application would keep of a session.

    A step that fails is logged, and the others follow: the outcome of the session's work is known by then.

    Parameters
    ----------
    spark: it is not used any more.
    """
    _take(_STEPS, jvm_of(spark), spark._jsparkSession)


def end_copy_of_query(spark: SparkSession, query: StreamingQuery) -> None:
    """Close what the application would keep of the copy of a session in which a query has worked.

    Parameters
    ----------
    spark: the session of the query. query: it has ended.
    """
    _take(_STEPS_OF_COPY, jvm_of(spark), query._jsq.streamingQuery().sparkSessionForStream())


Step = Callable[[Any, "JavaObject"], None]
"""Takes the packages of the JVM and a session of Java."""


def _take(steps: tuple[Step, ...], jvm: Any, session: JavaObject) -> None:
    for step in steps:
        try:
            step(jvm, session)
        except (Py4JError, PySparkException):
            _log.exception("a session could not be closed completely (%s)", step.__name__.strip("_"))


def _stop_queries(_jvm: Any, session: JavaObject) -> None:
    for query in session.streams().active():
        _log.warning("the query %s still ran at the end of its session", query.id())
        query.stop()


def _leave_event_bus(jvm: Any, session: JavaObject) -> None:
    """Take the session's bus of streaming events off the application's one."""
    bus = private_field(jvm, _STREAMS, "listenerBus").get(session.sessionState().streamingQueryManager())
    session.sparkContext().listenerBus().removeListener(bus)


def _close_catalogs(jvm: Any, session: JavaObject) -> None:
    """Close the Iceberg catalogs of the session. What sessions share, Iceberg counts, and closes with the last one."""
    catalogs = private_field(jvm, _CATALOG_MANAGER, "catalogs").get(session.sessionState().catalogManager())
    is_iceberg = jvm.java.lang.Class.forName(_ICEBERG).isInstance
    for plugin in list(jvm.scala.jdk.javaapi.CollectionConverters.asJava(catalogs).values()):
        if is_iceberg(plugin):
            _close(jvm, plugin.icebergCatalog())


def _close(jvm: Any, catalog: JavaObject) -> None:
    if catalog.getClass().getName() == _CACHING_CATALOG:  # it does not close what it wraps
        catalog = private_field(jvm, _CACHING_CATALOG, "catalog").get(catalog)
    if jvm.java.lang.Class.forName("java.lang.AutoCloseable").isInstance(catalog):
        catalog.close()


def _empty(jvm: Any, session: JavaObject) -> None:
    """Let go of all that the session has resolved, planned and loaded: its views, functions, settings and catalogs.

    It gets those of the application's first session instead: threads of pools read settings of the session that was
    active where they were made, whosever work they do.
    """
    first = jvm.org.apache.spark.sql.classic.SparkSession.getDefaultSession().get()
    if not first.equals(session):
        for name in ("sessionState", "conf"):
            private_field(jvm, _SESSION, name).set(session, getattr(first, name)())
        private_field(jvm, _SESSION, "parentSessionState").set(session, jvm.scala.Option.empty())


_STEPS: tuple[Step, ...] = (_stop_queries, _leave_event_bus, _close_catalogs, _empty)
_STEPS_OF_COPY: tuple[Step, ...] = (_close_catalogs, _empty)
