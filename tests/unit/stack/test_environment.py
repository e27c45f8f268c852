"""The settings of everything that runs in the stack."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
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
from sluice.stack.surroundings import surroundings_of


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
    assert settings.ledger_driver_url is not None
    assert settings.ledger_driver_url.get_secret_value() == (
        f"postgresql+psycopg://sluice_drivers:{plan.credentials.ledger_driver_password}"
        f"@127.0.0.1:{plan.ports['postgres']}/sluice"
    )
    assert plan.credentials.ledger_driver_password != plan.credentials.ledger_password
    assert settings.catalog.warehouse == "s3://lakehouse"
    assert settings.object_store.endpoint == f"http://127.0.0.1:{plan.ports['s3']}"
    kafka = KafkaConnection(
        kind="kafka",
        bootstrap_servers=f"127.0.0.1:{plan.ports['kafka']}",
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        username="sluice",
        password=SecretStr(plan.credentials.kafka_password),
    )
    assert settings.connections == {
        "flights_kafka": kafka,
        "local_kafka": kafka,
        "landing": FilesConnection(kind="files", root="s3a://landing"),
    }


def test_shuffles_and_uploads_are_kept_in_the_stack_s_own_folder(plan: StackPlan) -> None:
    folders = {plan.environment["SPARK_LOCAL_DIRS"], plan.environment["LOCAL_DIRS"]}

    assert folders == {str(plan.folder.scratch)}
    assert stat.S_IMODE(plan.folder.scratch.stat().st_mode) == 0o700


def test_what_a_user_adds_in_the_shell_is_passed_on(plan: StackPlan, tmp_path: Path) -> None:
    shell = {
        "SLUICE_CONNECTIONS__ORDERS__KIND": "kafka",
        "AIRFLOW_CONN_SPARK_DEFAULT": "spark://elsewhere",
        "AIRFLOW_VAR_TEAM": "flights",
        "SLUICE_PIPELINES": str(tmp_path),
    }
    stale = {"SLUICE_CONNECTIONS__FLIGHTS_KAFKA__BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    others = {
        "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
        "SLUICE_LEDGER_URL": "postgresql://elsewhere",
        "EDITOR": "vi",
    }
    here = surroundings_of({**shell, **others, **stale}, working_folder=Path("/"))

    environment = build_environment(plan, surroundings=here)

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


ODD = {"A": "1", "JSON": '{"a": "b=c", "d": 1}', "EMPTY": "", "LINES": "a\nb", "ODD": 'it\'s $HOME `x` \\ "y" #z ä'}


def test_the_file_is_private_and_read_as_it_was_written(folder: StackFolder) -> None:
    write_environment(folder.environment, ODD)

    assert stat.S_IMODE(folder.environment.stat().st_mode) == 0o600
    assert load_environment(folder.data) == {**ODD, STACK_MARK: str(folder.data)}
    assert STACK_MARK not in folder.environment.read_text()


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_shell_that_sources_the_file_has_every_value(plan: StackPlan, shell: str) -> None:
    written = {**plan.environment, **ODD}
    write_environment(plan.folder.environment, written)
    printed = f"{sys.executable} -c 'import json, os; print(json.dumps(dict(os.environ)))'"
    asked = f"set -a; . {plan.folder.environment}; exec {printed}"

    sourced = subprocess.run(  # noqa: S603  # our own command
        [f"/bin/{shell}", "-c", asked], env={"PATH": "/bin"}, capture_output=True, text=True, check=True
    )

    assert sourced.stderr == ""
    seen = json.loads(sourced.stdout)
    assert {name: seen.get(name) for name in written} == written


@pytest.mark.parametrize("text", ["A='1\n", "A=1 b\n", "1A=2\n"])
def test_a_damaged_file_is_refused(folder: StackFolder, text: str) -> None:
    folder.environment.write_text(text)

    with pytest.raises(StackError, match="is damaged") as refused:
        load_environment(folder.data)

    assert "sluice stack up --declarations-from-here" in refused.value.next_step


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
