"""Airflow's Spark connection is read as the Spark provider reads it."""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path

import pytest
from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook
from airflow.sdk import Connection

from sluice.errors import LaunchError, SettingsError
from sluice.launching.spark_submit import SparkConnection, connection_in
from sluice.launching.submission import Submission
from sluice_airflow.adapters.spark_connection import read_spark_connection, spark_connection_of, submit_by_provider


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


def test_a_connection_of_another_name_says_where_yarn_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    extra = {
        "deploy-mode": "cluster",
        "queue": "streams",
        "yarn_resourcemanager_webapp_address": "http://rm1:8088, http://rm2:8088",
    }
    written = {"conn_type": "spark", "host": "yarn", "login": "airflow", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_YARN", json.dumps(written))
    expected = SparkConnection(
        master="yarn",
        deploy_mode="cluster",
        queue="streams",
        resource_managers=("http://rm1:8088", "http://rm2:8088"),
        user="airflow",
    )
    assert read_spark_connection("spark_yarn") == expected
    assert connection_in(os.environ, "spark_yarn") == expected  # as a command reads it


def test_what_is_wrong_with_a_connection_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AIRFLOW_CONN_SPARK_YARN", '{"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "x"}}'
    )
    with pytest.raises(SettingsError, match="The Airflow connection spark_yarn cannot be used") as refused:
        read_spark_connection("spark_yarn")
    assert "AIRFLOW_CONN_SPARK_YARN" in refused.value.next_step
    with pytest.raises(SettingsError, match="Airflow has no connection spark_absent"):
        read_spark_connection("spark_absent")


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # the provider leaves its pipe to the collector
def test_the_provider_gets_the_settings_in_a_file_and_none_in_the_argv(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "spark-submit"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {tmp_path}/argv\n")
    program.chmod(0o755)
    extra = {"deploy-mode": "cluster", "queue": "streams"}
    written = {"conn_type": "spark", "host": "yarn", "extra": extra}
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_YARN", json.dumps(written))
    submission = Submission(
        connection="spark_yarn",
        name="sluice flights",
        application="/sluice/jobs/run_stream.py",
        arguments=("--stream=flights", "--run-id=run-1"),
        properties_file=tmp_path / "properties",
        log_file=tmp_path / "log",
    )
    submit_by_provider(submission)
    assert (tmp_path / "argv").read_text().splitlines() == [
        *("--master", "yarn", "--properties-file", str(tmp_path / "properties"), "--name", "sluice flights"),
        *("--queue", "streams", "--deploy-mode", "cluster"),
        *("/sluice/jobs/run_stream.py", "--stream=flights", "--run-id=run-1"),
    ]
    program.write_text("#!/bin/sh\necho 'the queue does not exist'\nexit 3\n")
    with pytest.raises(LaunchError, match="through the connection spark_yarn: the queue does not exist"):
        submit_by_provider(submission)
    program.unlink()
    with pytest.raises(LaunchError, match="No such file"):
        submit_by_provider(submission)
    gc.collect()  # here, where the pipes are expected
