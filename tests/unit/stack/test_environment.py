"""The settings of everything that runs in the stack."""

from __future__ import annotations

import stat
from dataclasses import astuple
from pathlib import Path

import pytest
from pydantic import SecretStr

from sluice.errors import StackError
from sluice.settings import FilesConnection, KafkaConnection, load_settings
from sluice.stack.environment import (
    FIXED_SETTINGS,
    STACK_MARK,
    START_MARK,
    build_environment,
    load_environment,
    process_environment,
    write_environment,
)
from sluice.stack.folder import StackFolder
from sluice.stack.services import all_services
from sluice.stack.stack_plan import Command, StackPlan


def test_every_setting_of_a_deployment_is_there(plan: StackPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in plan.environment.items():
        monkeypatch.setenv(name, value)

    settings = load_settings()

    assert settings.home == Path("/project")
    assert settings.jars == Path("/jars")
    assert settings.checkpoints == f"file://{plan.folder.data}/checkpoints"
    assert settings.ledger_url.get_secret_value() == (
        f"postgresql+psycopg://sluice:{plan.credentials.ledger_password}@127.0.0.1:{plan.ports['postgres']}/sluice"
    )
    assert settings.catalog.warehouse == "s3://lakehouse"
    assert settings.object_store.endpoint == f"http://127.0.0.1:{plan.ports['s3']}"
    assert settings.connections == {
        "flights_kafka": KafkaConnection(
            kind="kafka",
            bootstrap_servers=f"127.0.0.1:{plan.ports['kafka']}",
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            username="sluice",
            password=SecretStr(plan.credentials.kafka_password),
        ),
        "landing": FilesConnection(kind="files", root="s3a://landing"),
    }


def test_shuffles_and_uploads_are_kept_in_the_stack_s_own_folder(plan: StackPlan) -> None:
    folders = {plan.environment["SPARK_LOCAL_DIRS"], plan.environment["LOCAL_DIRS"]}

    assert folders == {str(plan.folder.scratch)}
    assert stat.S_IMODE(plan.folder.scratch.stat().st_mode) == 0o700


def test_what_a_user_adds_in_the_shell_is_passed_on(plan: StackPlan) -> None:
    shell = {
        "SLUICE_CONNECTIONS__ORDERS__KIND": "kafka",
        "AIRFLOW_CONN_SPARK_DEFAULT": "spark://elsewhere",
        "AIRFLOW_VAR_TEAM": "flights",
        "SLUICE_PIPELINES": "/mine",
    }
    stale = {"SLUICE_CONNECTIONS__FLIGHTS_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    others = {
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "SLUICE_LEDGER_URL": "postgresql://elsewhere",
        "EDITOR": "vi",
    }

    environment = build_environment(plan, caller={**shell, **others, **stale})

    assert {name: environment[name] for name in stale} == {name: plan.environment[name] for name in stale}
    assert {name: environment[name] for name in shell} == shell
    assert {name: environment.get(name) for name in others} == {
        "AIRFLOW__CORE__EXECUTOR": FIXED_SETTINGS["AIRFLOW__CORE__EXECUTOR"],
        "SLUICE_LEDGER_URL": plan.environment["SLUICE_LEDGER_URL"],
        "EDITOR": None,
    }


def test_a_process_gets_only_home_locale_and_time_zone_from_the_shell(folder: StackFolder) -> None:
    command = Command(argv=("x",), working_folder=folder.data, environment={"OWN": "1", "TZ": "UTC"})

    environment = process_environment(
        command,
        folder=folder,
        start_id="abc",
        caller={"HOME": "/the/home", "TZ": "CET", "PYTHONPATH": "/x", "OWN": "0"},
    )

    assert environment.pop("PATH").endswith("/usr/bin:/sbin:/bin")
    assert environment == {
        "HOME": "/the/home",
        "LANG": "C.UTF-8",
        "OWN": "1",
        "TZ": "UTC",
        STACK_MARK: str(folder.data),
        START_MARK: "abc",
    }


def test_the_file_is_private_and_read_as_it_was_written(folder: StackFolder) -> None:
    environment = {"A": "1", "JSON": '{"a": "b=c", "d": 1}', "EMPTY": ""}

    write_environment(folder.environment, environment)

    assert stat.S_IMODE(folder.environment.stat().st_mode) == 0o600
    assert load_environment(folder.data) == {**environment, STACK_MARK: str(folder.data)}
    assert STACK_MARK not in folder.environment.read_text()


def test_a_value_that_the_file_cannot_hold_is_refused(folder: StackFolder) -> None:
    with pytest.raises(StackError, match="AIRFLOW_VAR_X holds a line break"):
        write_environment(folder.environment, {"AIRFLOW_VAR_X": "a\nb"})


def test_there_is_no_environment_before_the_first_start(tmp_path: Path) -> None:
    with pytest.raises(StackError, match="There is no local stack in"):
        load_environment(tmp_path)


def _commands(plan: StackPlan, monkeypatch: pytest.MonkeyPatch) -> dict[str, Command]:
    monkeypatch.setattr("os.geteuid", lambda: 1000)  # how root runs PostgreSQL is not the question here
    return {name: service.command(plan) for name, service in all_services().items()}


def test_no_secret_is_in_a_command_line(plan: StackPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = astuple(plan.credentials)

    lines = [" ".join(command.argv) for command in _commands(plan, monkeypatch).values()]

    assert [secret for secret in secrets if any(secret in line for line in lines)] == []


def test_a_service_gets_only_the_secrets_that_it_needs(plan: StackPlan, monkeypatch: pytest.MonkeyPatch) -> None:
    commands = _commands(plan, monkeypatch)
    known = {
        name: {secret for secret in astuple(plan.credentials) if secret in command.environment.values()}
        for name, command in commands.items()
    }

    assert known["postgres"] == known["kafka"] == set()
    assert known["seaweedfs"] == {plan.credentials.access_key_id, plan.credentials.secret_access_key}
    assert plan.credentials.postgres_password not in known["airflow-scheduler"]
