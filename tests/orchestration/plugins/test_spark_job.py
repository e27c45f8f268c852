"""Bounded jobs: the exact command line, and what a failed one says."""

from __future__ import annotations

import gc
import json
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.sdk import DAG, Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException
from sluice_airflow.operators.spark_job_operator import SparkJobOperator, job_failure
from tests.fixtures.deployment import PLANTED_SECRET, deployment_environment

from sluice.declarations.engine_declaration import EngineDeclaration
from sluice.failure_reasons import Failure, FailureReason, describe_failure, next_step
from sluice.launching.job_command import RunIncrement
from sluice.supervision.alert import Alert

SPARK_SUBMIT = """\
#!/bin/sh
python3 -c 'import json, os, sys
print(json.dumps({"argv": sys.argv[1:], "environment": dict(os.environ)}))' "$@" > "$SEEN"
echo "a line of the driver"
[ -z "$FAILS_WITH" ] || { echo "$FAILS_WITH" >&2; exit 1; }
"""


@pytest.fixture
def seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file into which a `spark-submit` that starts nothing writes its command line and environment."""
    program = tmp_path / "bin" / "spark-submit"
    program.parent.mkdir()
    program.write_text(SPARK_SUBMIT)
    program.chmod(0o755)
    (tmp_path / "jars" / "spark").mkdir(parents=True)
    for jar in ("b.jar", "a.jar"):
        (tmp_path / "jars" / "spark" / jar).touch()
    for name, value in deployment_environment(tmp_path, pipelines=tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("SEEN", str(tmp_path / "seen.json"))
    connection = {"conn_type": "spark", "host": "local[2]", "extra": {"deploy-mode": "client"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    yield tmp_path / "seen.json"
    with warnings.catch_warnings():  # the provider leaves the pipe of its process to the garbage collector
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


def _operator() -> SparkJobOperator:
    with DAG("daily_flights", schedule=None):
        return SparkJobOperator(
            task_id="run",
            command=RunIncrement(stream="daily_flights", launched_by="airflow: daily_flights, manual__1"),
            engine=EngineDeclaration.model_validate({"driver_memory": "1GiB"}),
        )


def test_the_command_line(seen: Path, tmp_path: Path) -> None:
    _operator().execute(Context())
    argv = json.loads(seen.read_text())["argv"]
    conf = dict(argv[place + 1].split("=", 1) for place, word in enumerate(argv) if word == "--conf")
    others = [word for place, word in enumerate(argv) if word != "--conf" and argv[place - 1] != "--conf"]
    assert others == [
        *("--master", "local[2]", "--name", "sluice run_increment daily_flights", "--deploy-mode", "client"),
        str(tmp_path / "jobs" / "run_increment.py"),
        *("--stream=daily_flights", "--launched-by=airflow: daily_flights, manual__1"),
    ]
    assert conf["spark.driver.extraClassPath"] == f"{tmp_path}/jars/spark/a.jar:{tmp_path}/jars/spark/b.jar"
    assert conf["spark.driver.memory"] == "1024m"
    assert "TieredStopAtLevel=1" in conf["spark.driver.extraJavaOptions"]


def test_secrets_travel_in_the_environment_and_in_no_argument_or_template(seen: Path) -> None:
    operator = _operator()
    operator.execute(Context())
    written = json.loads(seen.read_text())
    assert PLANTED_SECRET in written["environment"]["SLUICE_OBJECT_STORE__SECRET_ACCESS_KEY"]
    assert PLANTED_SECRET not in json.dumps(written["argv"])
    shown = ("application", "application_args", "conf", "env_vars", "name", "properties_file")
    assert PLANTED_SECRET not in repr([getattr(operator, field) for field in shown])


def test_a_job_gets_nothing_of_airflows_secrets(seen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("AIRFLOW__API_AUTH__JWT_SECRET", "AIRFLOW__API__SECRET_KEY", "AIRFLOW_CONN_OTHER", "_AIRFLOW_ANY")
    for name in names:
        monkeypatch.setenv(name, "Pl4nted-of-airflow")
    _operator().execute(Context())
    written = json.loads(seen.read_text())
    assert [name for name, value in written["environment"].items() if "Pl4nted-of-airflow" in value] == []
    assert [name for name in written["environment"] if "AIRFLOW" in name and written["environment"][name]] == []
    assert all(os.environ[name] for name in names), "the task itself needs them"


def test_a_failed_job_gives_its_own_reason(seen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILS_WITH", "sluice: failed: LakehouseError: The catalog does not answer.")
    with pytest.raises(AirflowException, match=r"^The catalog does not answer\.$") as failure:
        _operator().execute(Context())
    assert not isinstance(failure.value, AirflowFailException)


def test_a_missing_connection_is_one_sentence_and_starts_nothing(seen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark"}))
    with pytest.raises(AirflowFailException, match=r"^The Airflow connection spark_default cannot be used: it has no"):
        _operator().execute(Context())
    assert not seen.exists()


def test_missing_settings_are_named_and_start_nothing(seen: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLUICE_LEDGER_URL")
    with pytest.raises(AirflowFailException, match="SLUICE_LEDGER_URL: Field required"):
        _operator().execute(Context())
    assert not seen.exists()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ("LakehouseError", AirflowException),
        ("UnhealthyError", AirflowFailException),
        ("DeclarationError", AirflowFailException),
        ("NotYetError", AirflowFailException),
        ("SettingsError", AirflowFailException),
        ("NotAnErrorOfOurs", AirflowException),
    ],
)
def test_only_what_may_pass_is_tried_again(error: str, kind: type[AirflowException]) -> None:
    submission = (
        f"Cannot execute: spark-submit x. Error code is: 1.\nLast spark-submit output:\nsluice: failed: {error}: no"
    )
    raised = job_failure(submission, subject="flights")
    assert isinstance(raised, AirflowFailException) is (kind is AirflowFailException)
    assert str(raised) == "no"
    assert raised.alerts == (Alert(stream="flights", sentence="no"),)


def test_the_last_word_of_a_job_counts() -> None:
    words = "sluice: failed: LakehouseError: first\nsluice: failed: UnhealthyError: last"
    assert str(job_failure(words, subject="flights")) == "last"


def test_a_job_without_a_last_word_keeps_its_output() -> None:
    said = "Cannot execute: x. Error code is: 137."
    assert str(job_failure(said, subject="flights")) == said


@pytest.mark.parametrize(
    ("reason", "kind"), [("kafka_unreachable", AirflowException), ("column_missing", AirflowFailException)]
)
def test_a_failure_has_its_class_and_next_step_and_is_retried_only_where_that_helps(
    reason: str, kind: type[AirflowException]
) -> None:
    raised = job_failure(f"sluice: reason: {reason}\nsluice: failed: DeliveryError: no.", subject="flights")
    failure = Failure.of(FailureReason(reason))
    assert isinstance(raised, AirflowFailException) is (kind is AirflowFailException)
    assert raised.alerts == (Alert(stream="flights", reason=reason, sentence=str(raised)),)
    assert str(raised) == f"no. That is {describe_failure(failure)}. {next_step(failure.reason, stream='flights')}"


def test_an_error_of_ours_that_no_rule_explains_speaks_for_itself() -> None:
    said = "sluice: reason: unexplained\nsluice: failed: {}: 1 of 3 expectations do not hold."

    own = job_failure(said.format("UnhealthyError"), subject="silver.flights")
    foreign = job_failure(said.format("AnalysisException"), subject="silver.flights")

    assert str(own) == "1 of 3 expectations do not hold."
    assert "See the end of" in str(foreign)
