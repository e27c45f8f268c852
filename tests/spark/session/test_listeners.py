"""What a driver listens on gives another user of the machine nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Executor

import psutil
import pytest
from pyspark.sql import SparkSession
from tests.fixtures.strangers import ONLY_ROOT, call_python, spark_block, stranger
from tests.integration.stack.traces import listening_ports

pytestmark = ONLY_ROOT

PLANTED = "a row that nobody else may read"


class Callback:
    """An object that the JVM may call, as it calls the function of `foreachBatch`."""

    class Java:
        """What py4j asks of such an object."""

        implements = ("java.lang.Runnable",)

    def __init__(self) -> None:
        self.calls = 0

    def run(self) -> None:
        """Count."""
        self.calls += 1


@pytest.fixture(scope="module")
def other_user() -> Iterator[Executor]:
    """A process of another user."""
    with stranger() as process:
        yield process


@pytest.fixture
def jvm_ports(spark: SparkSession) -> list[int]:
    """What the driver's JVM listens on."""
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    started = psutil.Process(gateway.proc.pid)
    ports = [port for process in (started, *started.children(recursive=True)) for port in listening_ports(process)]
    assert len(ports) >= 3  # for Python, for calls and for blocks
    return ports


def test_spark_gives_no_block_away(spark: SparkSession, jvm_ports: list[int], other_user: Executor) -> None:
    broadcast = spark.sparkContext._jsc.broadcast(PLANTED)
    block = f"broadcast_{broadcast.id()}_piece0"

    given = {port: other_user.submit(spark_block, port, block).result() for port in jvm_ports}

    assert broadcast.value() == PLANTED
    assert given == dict.fromkeys(jvm_ports, b"")


def test_python_takes_calls_of_its_own_jvm_only(spark: SparkSession, other_user: Executor) -> None:
    callback = Callback()
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    spark.sparkContext._jvm.java.lang.Thread(callback).run()  # type: ignore[union-attr]  # the session is open
    assert callback.calls == 1, "the JVM itself reaches it"
    name = gateway.gateway_property.pool.put(callback)

    own = listening_ports(psutil.Process(os.getpid()))
    for port in own:
        other_user.submit(call_python, port, name, "run").result()

    assert own
    assert callback.calls == 1
