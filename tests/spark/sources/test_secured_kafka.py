"""A cluster with TLS and a password is read through its connection, and the password is shown nowhere.

It starts a broker of its own: every test run looks for the password of a database (`test_sources.py`) in what
Spark shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession
from tests.fixtures.deployment import PLANTED_SECRET
from tests.fixtures.secured_kafka import secured_kafka
from tests.fixtures.stack import Stack
from tests.fixtures.streaming import drained, open_declared
from tests.fixtures.streams import continuous_stream

from sluice.ledger.progress_samples import LagObservation
from sluice.settings import Settings
from sluice.sources.kafka_clients import client_settings
from sluice.sources.source_heads import SourceHeads


@pytest.mark.full
def test_a_secured_cluster_is_read_and_its_password_is_never_shown(
    spark: SparkSession, settings: Settings, services: Stack, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "kafka"
    folder.mkdir()
    java = Path(services.environment()["JAVA_HOME"]) / "bin" / "java"
    with secured_kafka(folder, java=java, jars=settings.jars / "kafka") as connection:
        configuration: dict[str, Any] = {**client_settings(connection)}
        admin = AdminClient(configuration)
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result()
        producer = Producer(configuration)
        producer.produce("orders", value="secured")
        assert producer.flush(60) == 0
        secured = settings.model_copy(update={"connections": {"secured": connection}})
        source = {"kafka": {"connection": "secured", "topics": ["orders"]}}

        rows = open_declared(spark, secured, stream=source)
        rows.explain(mode="extended")
        assert [row["value"].decode() for row in drained(spark, rows, tmp_path)] == ["secured"]
        with pytest.raises(Exception, match="made to fail") as failure:
            drained(spark, rows.selectExpr("raise_error('made to fail')"), tmp_path)
        reader = continuous_stream(inputs={"records": {"stream": source}})
        assert SourceHeads(secured).observe_lag(reader.declaration, None) == LagObservation(rows=1)

    told = capfd.readouterr()
    assert "sasl.jaas.config" in told.out
    assert PLANTED_SECRET not in told.out + told.err
    assert PLANTED_SECRET not in repr(secured) + str(failure.value) + repr(failure.value)
