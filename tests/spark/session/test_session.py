"""The session: what it is told of the deployment, and that unequal versions are found at once."""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from py4j.java_gateway import JVMView
from pyspark.errors import NumberFormatException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as fn

from sluice.declarations.run_declaration import ALLOWED_OPTIONS, EngineDeclaration, StateDeclaration
from sluice.launching.launch_settings import launch_conf
from sluice.settings import CatalogSettings, ObjectStoreSettings, Settings, project_root
from sluice_spark.session.jvm import FoundVersions, find_mismatch, jvm_of
from sluice_spark.session.session import catalog_conf, deployment_conf, engine_conf
from sluice_spark.session.state_settings import choose_shuffle_partitions

FITTING = {
    "Iceberg": "iceberg-spark-runtime-4.1_2.13-1.12.0.jar",
    "Kafka source": "spark-sql-kafka-0-10_2.13-4.1.3.jar",
    "Hadoop S3A": "hadoop-aws-3.4.2.jar",
}


def found(*, spark: str = "4.1.3", **jars: str) -> FoundVersions:
    """What is on a class path, with some jars replaced."""
    replaced = {name.replace("_", " "): jar for name, jar in jars.items()}
    return FoundVersions(pyspark="4.1.3", spark=spark, hadoop="3.4.2", jars={**FITTING, **replaced})


@pytest.mark.parametrize(
    ("versions", "sentence"),
    [
        (found(), ""),
        (found(spark="4.2.0"), "pyspark has version 4.1.3, and its Spark has version 4.2.0."),
        (
            found(Iceberg="iceberg-spark-runtime-4.0_2.13-1.12.0.jar"),
            "The Iceberg on the class path is iceberg-spark-runtime-4.0_2.13-1.12.0.jar; Spark "
            "4.1.3 needs iceberg-spark-runtime-4.1_.",
        ),
        (
            found(Kafka_source="spark-sql-kafka-0-10_2.13-4.1.2.jar"),
            "The Kafka source on the class path is spark-sql-kafka-0-10_2.13-4.1.2.jar; Spark 4.1.3 needs -4.1.3.jar.",
        ),
        (
            found(Hadoop_S3A=""),
            "The class path has no Hadoop S3A: org.apache.hadoop.fs.s3a.S3AFileSystem is missing.",
        ),
    ],
)
def test_unequal_versions_are_reported(versions: FoundVersions, sentence: str) -> None:
    assert find_mismatch(versions) == sentence


def test_a_catalog_without_secrets_gets_none() -> None:
    catalog = CatalogSettings(name="lakehouse", uri="https://catalog", warehouse="s3://w")

    assert catalog_conf(catalog, ObjectStoreSettings()) == {
        "spark.sql.catalog.lakehouse": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lakehouse.type": "rest",
        "spark.sql.catalog.lakehouse.uri": "https://catalog",
        "spark.sql.catalog.lakehouse.warehouse": "s3://w",
        "spark.sql.catalog.lakehouse.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "spark.sql.catalog.lakehouse.cache-enabled": "false",
        "spark.sql.catalog.lakehouse.client.region": "us-east-1",
    }


@pytest.mark.parametrize(
    ("checkpoints", "manager"),
    [
        ("file:///data/checkpoints", "FileSystemBasedCheckpointFileManager"),
        ("s3a://landing/checkpoints", "AbortableStreamBasedCheckpointFileManager"),
        ("hdfs://name/checkpoints", ""),
    ],
)
def test_checkpoints_are_written_as_their_place_asks_for(settings: Settings, checkpoints: str, manager: str) -> None:
    conf = deployment_conf(settings.model_copy(update={"checkpoints": checkpoints}))
    assert conf.get("spark.sql.streaming.checkpointFileManagerClass", "").rpartition(".")[2] == manager


def test_the_declared_state_store_is_used() -> None:
    conf = engine_conf(StateDeclaration(provider="hdfs"))
    assert conf["spark.sql.streaming.stateStore.providerClass"].endswith("HDFSBackedStateStoreProvider")


def test_a_session_is_set_for_the_machine_and_for_utc(spark: SparkSession) -> None:
    choose_shuffle_partitions(spark, StateDeclaration())  # the ring's one session has been in other hands
    assert spark.conf.get("spark.sql.shuffle.partitions") == str(spark.sparkContext.defaultParallelism)
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.ansi.enabled") == "true"


def test_the_end_of_a_java_iterator_asks_the_jvm_for_no_name(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark asks for the same class 13 times there."""
    asked: list[str] = []
    ask = JVMView.__getattr__

    def noted(view: JVMView, name: str) -> object:
        asked.append(name)
        return ask(view, name)

    monkeypatch.setattr(JVMView, "__getattr__", noted)

    assert list(jvm_of(spark).java.util.ArrayList()) == []

    assert [name for name in asked if name in ("java", "py4j")] == []


def test_a_setting_that_may_be_declared_is_none_that_the_platform_sets_itself() -> None:
    engine = EngineDeclaration(cores=2, executors=1, most_executors=3, executor_memory="1GiB", spot_nodes=True)
    ours = launch_conf(home=Path("/h"), jars=Path("/j"), engine=engine, is_bounded=False, master="yarn")
    names = [option.name for option in ALLOWED_OPTIONS]
    assert not set(names) & (set(ours) | set(engine_conf(StateDeclaration())))
    assert len(names) == len(set(names))


@pytest.mark.parametrize(("reason", "told"), [(None, ""), ("the branch has changed", ": the branch has changed")])
def test_each_event_of_the_jvms_log_is_a_line_of_its_own(reason: str | None, told: str, spark: SparkSession) -> None:
    jvm = jvm_of(spark)
    core = jvm.org.apache.logging.log4j.core
    settings = jvm.java.net.URI((project_root() / "jobs" / "log4j2.properties").as_uri())
    configuration = core.config.ConfigurationFactory.getInstance().getConfiguration(None, "a test", settings)
    configuration.initialize()
    event = core.impl.Log4jLogEvent.newBuilder().setLoggerName("org.apache.iceberg.util.Tasks")
    event = event.setLevel(jvm.org.apache.logging.log4j.Level.WARN)
    event = event.setMessage(jvm.org.apache.logging.log4j.message.SimpleMessage("Retrying task"))
    if reason is not None:
        event = event.setThrown(jvm.java.lang.IllegalStateException(reason))
    line: str = configuration.getAppender("stderr").getLayout().toSerializable(event.build())
    moment, space, rest = line.partition(" ")
    assert datetime.fromisoformat(moment)
    assert space + rest == f" WARN Tasks: Retrying task{told}\n"


@pytest.mark.full  # of time alone
def test_a_task_in_python_begins_without_reading_archives_and_leaves_modules_out_of_its_search_for_garbage(
    spark: SparkSession,
) -> None:
    """What both cost in each task, whatever it does: `sluice_spark.session.worker_daemon`."""

    def looked_at(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        archives = [path for path in sys.path_importer_cache if ".zip" in path]
        found = {"archives": archives, "pyspark": pyspark.__file__, "frozen": gc.get_freeze_count()}
        for _ in blocks:
            yield pa.RecordBatch.from_pylist([found])

    schema = "archives array<string>, pyspark string, frozen long"
    worker = spark.range(1, numPartitions=1).mapInArrow(looked_at, schema).collect()[0]

    assert worker.archives == []
    assert worker.pyspark == pyspark.__file__
    assert worker.frozen > 50_000


def test_a_worker_acknowledges_at_once_what_spark_sends_for_a_task(spark: SparkSession) -> None:
    """A delayed acknowledgement is 40 ms of each task: `sluice_spark.session.worker_daemon`. The first task of
    a worker has it: Spark authenticates itself in between."""

    def acknowledging(blocks: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        opened = [int(entry.name) for entry in Path("/proc/self/fd").iterdir() if entry.is_socket()]
        connections = [socket.socket(fileno=os.dup(number)) for number in opened]
        at_once = [one.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) for one in connections]
        for _ in blocks:
            yield pa.RecordBatch.from_pylist([{"worker": os.getpid(), "at_once": at_once}])

    def task() -> Row:
        rows = spark.range(1, numPartitions=1).mapInArrow(acknowledging, "worker long, at_once array<long>")
        return rows.collect()[0]

    tasks = [task() for _ in range(8)]
    later = [two.at_once for one, two in pairwise(tasks) if one.worker == two.worker]

    assert later
    assert {option for options in later for option in options} == {1}


def test_an_error_in_a_session_without_call_sites_names_no_line_of_ours(spark: SparkSession) -> None:
    """To know the line, PySpark looks for it whenever a column is made."""
    with pytest.raises(NumberFormatException) as refused:
        spark.range(1).select(fn.lit("one").cast("int")).collect()

    assert "CAST_INVALID_INPUT" in str(refused.value)
    assert __file__ not in str(refused.value)
