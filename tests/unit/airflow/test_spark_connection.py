"""Airflow's Spark connection is read as the Spark provider reads it."""

from __future__ import annotations

import json

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import Connection

from sluice.errors import SettingsError
from sluice.launching.spark_submit import SparkConnection
from sluice_airflow.adapters.spark_connection import read_spark_connection, spark_connection_of


@pytest.mark.parametrize(
    "value",
    [
        '{"conn_type": "spark", "host": "local[2]"}',
        '{"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}',
        '{"conn_type": "spark", "host": "local[2]", "extra": {"spark-binary": "spark3-submit"}}',
        '{"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}',
        '{"conn_type": "spark", "host": "spark://master", "port": 7077}',
        '{"conn_type": "spark", "host": "k8s://https://cluster", "port": 443, "extra": {"deploy-mode": "cluster"}}',
        "spark://master:7077",
        "spark://local%5B%2A%5D",
    ],
)
def test_streams_and_jobs_go_to_the_same_spark(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", value)
    ours = read_spark_connection()
    theirs = SparkSubmitHook()._connection if "k8s" not in value else None
    if theirs is not None:
        assert ours == SparkConnection(
            master=theirs["master"], deploy_mode=theirs["deploy_mode"], spark_binary=theirs["spark_binary"]
        )
    else:  # the provider itself refuses Kubernetes without its client library
        assert (ours.master, ours.deploy_mode) == ("k8s://https://cluster:443", "cluster")


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        ({"spark-binary": "/opt/evil"}, "its spark-binary is '/opt/evil'. Allowed are spark-submit, "),
        ({"deploy-mode": "remote"}, "its deploy-mode is 'remote'. Allowed are client and cluster."),
    ],
)
def test_what_cannot_be_used_is_said_with_what_is_allowed(extra: dict[str, str], problem: str) -> None:
    connection = Connection(
        conn_id="spark_default", conn_type="spark", host="local[2]", login="hidden", extra=json.dumps(extra)
    )
    with pytest.raises(SettingsError) as refused:
        spark_connection_of(connection)
    assert problem in str(refused.value)
    assert "hidden" not in str(refused.value)


def test_a_connection_without_a_host_is_refused() -> None:
    with pytest.raises(SettingsError, match="it has no host"):
        spark_connection_of(Connection(conn_id="spark_default", conn_type="spark"))
