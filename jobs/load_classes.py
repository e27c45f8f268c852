"""Loads the classes that nearly every job needs, by running small examples of what jobs do.

The bootstrap runs it once in a JVM that archives its classes at exit. It needs no service: its tables are in a folder,
and the clients of the catalog, the object store and Kafka are used until their connection is refused.

    spark-submit … jobs/load_classes.py FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from sluice.declarations.run_declaration import StateDeclaration
from sluice_spark.session.jvm import jvm_of
from sluice_spark.session.session import engine_conf

REFUSING = "127.0.0.1:9"
"""The port of the discard service, which no machine runs any more: connections are refused at once."""


def open_session(warehouse: str) -> SparkSession:
    """Open a session like the jobs do, with one catalog in a folder and one that is unreachable."""
    catalogs = {
        "scratch": "org.apache.iceberg.spark.SparkCatalog",
        "scratch.type": "hadoop",
        "scratch.warehouse": f"{warehouse}/tables",
        "scratch.cache-enabled": "false",  # a micro-batch writes in a session of its own
        "remote": "org.apache.iceberg.spark.SparkCatalog",
        "remote.type": "rest",
        "remote.uri": f"http://{REFUSING}",
        "remote.rest.client.max-retries": "0",
    }
    named = {f"spark.sql.catalog.{name}": value for name, value in catalogs.items()}
    conf = {**engine_conf(StateDeclaration()), **named, "spark.sql.shuffle.partitions": "2"}
    return SparkSession.builder.config(map={**conf}).getOrCreate()


def stream_and_maintain(spark: SparkSession, warehouse: str) -> None:
    """Create a table, stream into it, merge into it, compact it and read it."""
    spark.sql(
        "CREATE TABLE scratch.a.rows (value BIGINT, at TIMESTAMP, text STRING) USING iceberg PARTITIONED BY (days(at))"
    )

    def append(batch: DataFrame, batch_id: int) -> None:
        batch.selectExpr("value", "at", "to_json(struct(value)) AS text").writeTo("scratch.a.rows").append()

    spark.range(200).selectExpr("id AS value", "current_timestamp() AS at").write.json(f"{warehouse}/arrivals")
    rows = spark.readStream.schema("value BIGINT, at TIMESTAMP").json(f"{warehouse}/arrivals")
    distinct = rows.withWatermark("at", "1 minute").dropDuplicatesWithinWatermark(["value"])
    sink = distinct.writeStream.foreachBatch(append).option("checkpointLocation", f"{warehouse}/checkpoint")
    sink.trigger(availableNow=True).start().awaitTermination()
    spark.sql(
        "MERGE INTO scratch.a.rows t USING (SELECT value, at, text FROM scratch.a.rows WHERE value < 10) s "
        "ON t.value = s.value WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    spark.sql("CALL scratch.system.rewrite_data_files(table => 'a.rows', options => map('rewrite-all', 'true'))")
    spark.sql("SELECT date(at), count(*), max(text) FROM scratch.a.rows GROUP BY 1").collect()


def ask_for_catalog(spark: SparkSession) -> None:
    """Use the client of the REST catalog."""
    spark.sql("SHOW NAMESPACES IN remote").collect()


def ask_for_object(spark: SparkSession) -> None:
    """Use the client of the object store."""
    files = jvm_of(spark).org.apache.iceberg.aws.s3.S3FileIO()
    options = {"s3.endpoint": f"http://{REFUSING}", "s3.path-style-access": "true", "client.region": "us-east-1"}
    keys = {"s3.access-key-id": "none", "s3.secret-access-key": "none", "s3.retry.num-retries": "0"}
    files.initialize({**options, **keys})
    files.newInputFile("s3://nowhere/nothing").exists()


def ask_for_offsets(spark: SparkSession) -> None:
    """Use the client of Kafka."""
    rows = spark.read.format("kafka").option("kafka.bootstrap.servers", REFUSING).option("subscribe", "nothing")
    limits = {"kafka.default.api.timeout.ms": "1000", "kafka.request.timeout.ms": "900", "fetchOffset.numRetries": "0"}
    rows.options(**limits).load().count()


def until_refused(use: Callable[[SparkSession], None], spark: SparkSession) -> None:
    """Use a client until its connection is refused; its classes are loaded by then."""
    try:
        use(spark)
    except (Py4JJavaError, PySparkException):
        return


if __name__ == "__main__":
    session = open_session(sys.argv[1])
    stream_and_maintain(session, sys.argv[1])
    for client in (ask_for_catalog, ask_for_object, ask_for_offsets):
        until_refused(client, session)
    session.stop()
