"""Items of one application: each has settings, views and catalogs of its own, and ends without its neighbours."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from tests.fixtures.drivers import await_condition
from tests.fixtures.spark_submit import submit_arguments
from tests.fixtures.stack import Stack
from tests.fixtures.workshop import Workshop

from sluice.declarations.run_declaration import StateDeclaration
from sluice.settings import Settings
from sluice.work.pools import lines_of_item
from sluice_spark.session.item_sessions import ItemSessions, call_sites, choose_call_sites_by_context
from sluice_spark.session.jvm import jvm_of


@pytest.fixture
def sessions(spark: SparkSession) -> ItemSessions:
    """The ring's application."""
    return ItemSessions(name="tests", spark=spark)


def _files_of_catalog(spark: SparkSession, settings: Settings, table: str) -> Any:
    """The properties with which the session's own Iceberg catalog reads and writes files."""
    spark.table(f"{settings.catalog.name}.{table}").count()
    manager = spark._jsparkSession.sessionState().catalogManager()
    catalog = manager.catalog(settings.catalog.name).icebergCatalog()
    identifier = jvm_of(spark).org.apache.iceberg.catalog.TableIdentifier.parse(table)
    return catalog.loadTable(identifier).io()


def test_items_at_the_same_time_have_settings_of_their_own(sessions: ItemSessions, workshop: Workshop) -> None:
    table, meeting = workshop.declare_table("rows", {"id": "long"}), threading.Barrier(2, timeout=60)

    def item(*, deletes_files: bool, partitions: int) -> tuple[str, str]:
        state = StateDeclaration(shuffle_partitions=partitions)
        with sessions.session(workshop.settings, state=state, deletes_files=deletes_files) as spark:
            meeting.wait()  # both sessions are open
            files = _files_of_catalog(spark, workshop.settings, table)
            meeting.wait()
            found = files.properties().get("s3.delete-enabled"), str(spark.conf.get("spark.sql.shuffle.partitions"))
            meeting.wait()
            return found

    with ThreadPoolExecutor(2) as pool:
        stream = pool.submit(item, deletes_files=False, partitions=3)
        maintenance = pool.submit(item, deletes_files=True, partitions=5)

    assert stream.result() == ("false", "3")
    assert maintenance.result() == ("true", "5")


def test_the_end_of_an_item_takes_nothing_from_its_neighbour(sessions: ItemSessions, workshop: Workshop) -> None:
    table = workshop.declare_table("rows", {"id": "long"})
    workshop.append("rows", [{"id": 1}])
    with sessions.session(workshop.settings) as staying:
        staying.table(f"{workshop.settings.catalog.name}.{table}").createOrReplaceTempView("mine")
        kept = staying.range(3).persist()
        assert staying.table("mine").count() == 1

        def neighbour() -> None:
            with sessions.session(workshop.settings) as other:
                assert other.table(f"{workshop.settings.catalog.name}.{table}").count() == 1
                with pytest.raises(AnalysisException):
                    other.table("mine")

        with ThreadPoolExecutor(1) as pool:
            pool.submit(neighbour).result()

        assert staying.table("mine").count() == 1
        assert kept.count() == 3
        assert kept.storageLevel.useMemory
    assert staying.sparkContext._jsc.getPersistentRDDs().size() == 0


def test_the_catalog_of_an_item_is_closed_at_its_end(sessions: ItemSessions, workshop: Workshop) -> None:
    table = workshop.declare_table("rows", {"id": "long"})
    with sessions.session(workshop.settings) as spark:
        files = _files_of_catalog(spark, workshop.settings, table)
    is_closed = type(files)(files._target_id, files._gateway_client)
    field = jvm_of(sessions.spark or spark).java.lang.Class.forName("org.apache.iceberg.aws.s3.S3FileIO")
    closed = field.getDeclaredField("isResourceClosed")
    closed.setAccessible(True)
    await_condition(lambda: bool(closed.get(is_closed).get()))  # Iceberg closes it in another thread


def test_call_sites_are_named_item_by_item(monkeypatch: pytest.MonkeyPatch) -> None:
    import pyspark.errors.utils

    monkeypatch.setattr(pyspark.errors.utils, "is_debugging_enabled", pyspark.errors.utils.is_debugging_enabled)
    choose_call_sites_by_context()

    with call_sites(named=True):
        assert pyspark.errors.utils.is_debugging_enabled()
        with ThreadPoolExecutor(1) as other:
            assert not other.submit(pyspark.errors.utils.is_debugging_enabled).result()
    assert not pyspark.errors.utils.is_debugging_enabled()


ITEMS = [UUID(int=0xAAAAAAAA << 96), UUID(int=0xBBBBBBBB << 96)]

APPLICATION = """
import logging, os, signal, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID
from sluice.settings import load_settings
from sluice_spark.run.job import run_job
from sluice_spark.run.stop_request import SIGNALS, StopRequest, stopped_by_signals
from sluice_spark.session.item_sessions import hand_context_on, in_item
from sluice_spark.session.item_sessions import ItemSessions

hand_context_on()
log = logging.getLogger("application")

def work():
    settings, meeting = load_settings(), threading.Barrier(2)
    SIGNALS.take_in_python()
    sessions = ItemSessions(name="items", opened=SIGNALS.take_in_jvm)
    log.info("the application begins")

    def item(number):
        with in_item(UUID(int=number << 96)), sessions.session(settings) as spark:
            log.info("%x begins", number)
            stop, quiet = StopRequest(), threading.Event()
            meeting.wait(60)
            thread = threading.Thread(target=lambda: log.warning("%x beside", number))
            thread.start(); thread.join()
            with ThreadPoolExecutor(1) as pool:
                pool.submit(log.warning, "%x in a pool", number).result()
            warn = spark.sparkContext._jvm.org.apache.logging.log4j.LogManager.getLogger("x").warn
            warn(f"{number:x} in the JVM")
            plan = spark.range(1).selectExpr(f"raise_error('{number:x} in a task') AS failed")
            try:
                plan.collect()
            except Exception as error:
                log.error("%x failed", number, exc_info=True)
            with stopped_by_signals(spark, stop):
                if meeting.wait(60) == 0:
                    os.kill(int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()), signal.SIGTERM)
                assert stop.wait(30), "the signal reaches every item"
            meeting.wait(60)

    with ThreadPoolExecutor(2) as pool:
        for ended in [pool.submit(item, number) for number in (0xAAAAAAAA, 0xBBBBBBBB)]:
            ended.result()
    log.info("the application ends")
    sessions.stop()

sys.exit(run_job(work))
"""


@pytest.mark.full  # every run without a JVM: `test_item_log.py` and `test_stop_signals.py`
def test_a_log_is_read_item_by_item_and_a_signal_reaches_every_item(
    services: Stack, settings: Settings, tmp_path: Path
) -> None:
    script = tmp_path / "application.py"
    script.write_text(APPLICATION)
    environment = os.environ | services.environment() | {"PYSPARK_SUBMIT_ARGS": submit_arguments(settings)}

    ran = subprocess.run(  # noqa: S603  # our own interpreter and script
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300, check=False
    )

    lines = ran.stderr.splitlines()
    assert ran.returncode == 0, ran.stderr
    for item in ITEMS:
        number = item.hex[:8]
        own = "\n".join(lines_of_item(lines, item))
        for said in ("begins", "beside", "in a pool", "in the JVM", "in a task", "failed", "Traceback"):
            assert said in own, ran.stderr
        others = [other.hex[:8] for other in ITEMS if other != item]
        assert not [line for line in own.splitlines() if any(other in line for other in others)]
        assert number in own
    unnamed = [line for line in lines if "[" not in line]
    assert any("the application begins" in line for line in unnamed)
