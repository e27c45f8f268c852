"""The root of the command: what starts quickly, how errors read, whose environment is used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"airflow", "boto3", "great_expectations", "pandas", "psycopg", "pyarrow", "pyiceberg", "pyspark", "sqlalchemy"}

EXTRA_COMMANDS = """
import os
from sluice.cli import app as root
from sluice.errors import UnhealthyError

@root.app.command()
def unhealthy(as_json: bool = root.typer.Option(False, "--json")) -> None:
    raise UnhealthyError("Two streams are late.", next_step="Look at `sluice stream list`.")

@root.app.command()
def interrupted() -> None:
    raise KeyboardInterrupt

@root.app.command()
def defect() -> None:
    raise RuntimeError("this is a defect")

@root.app.command()
def show_environment() -> None:
    root.typer.echo({name: os.environ.get(name) for name in ("SLUICE_LEDGER_URL", "SLUICE_LOGS", "JAVA_HOME")})

root.main()
"""
"""The real command with further commands that do on purpose what others do by accident."""


def sluice(*words: str, data: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command on a stack's data folder, with nothing of this process's own settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    return subprocess.run(  # noqa: S603  # our own command
        [sys.executable, "-c", EXTRA_COMMANDS, *words],
        capture_output=True,
        text=True,
        env={**inherited, "SLUICE_DATA": str(data), "JAVA_HOME": "/of-the-shell", **environment},
    )


def test_help_lists_every_family_and_imports_nothing_heavy() -> None:
    look = (
        "import sys; from sluice.cli.app import main\n"
        f"try: main(['--help'])\nfinally: print({HEAVY!r} & set(sys.modules))"
    )

    answer = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)  # noqa: S603  # ours

    assert answer.stdout.splitlines()[-1] == "set()"
    for family in ("stack", "stream", "table", "checkpoint", "quality", "validate", "demo"):
        assert f" {family} " in answer.stdout


def test_error_is_a_sentence_and_the_next_step(tmp_path: Path) -> None:
    answer = sluice("unhealthy", data=tmp_path)

    assert (answer.returncode, answer.stdout) == (1, "")
    assert answer.stderr == "sluice: Two streams are late.\nLook at `sluice stream list`.\n"


def test_error_is_json_for_a_program(tmp_path: Path) -> None:
    answer = sluice("unhealthy", "--json", data=tmp_path)

    assert (answer.returncode, answer.stdout) == (1, "")
    assert json.loads(answer.stderr) == {
        "error": "UnhealthyError",
        "message": "Two streams are late.",
        "next_step": "Look at `sluice stream list`.",
    }


def test_interruption_has_its_own_exit_code(tmp_path: Path) -> None:
    assert sluice("interrupted", data=tmp_path).returncode == 130


def test_defect_keeps_its_traceback(tmp_path: Path) -> None:
    answer = sluice("defect", data=tmp_path)

    assert answer.returncode == 1
    assert answer.stderr.startswith("Traceback")
    assert answer.stderr.endswith("RuntimeError: this is a defect\n")


@pytest.mark.parametrize("words", [("no-such-command",), ("validate", "--no-such-option")])
def test_wrong_usage_has_its_own_exit_code(words: tuple[str, ...], tmp_path: Path) -> None:
    assert sluice(*words, data=tmp_path).returncode == 2


def write_stack(data: Path) -> None:
    """The environment file of a stack, as `sluice stack up` leaves it."""
    lines = ("SLUICE_LEDGER_URL=of-the-stack", "SLUICE_LOGS=/of-the-stack", "JAVA_HOME=/of-the-stack")
    (data / "environment").write_text("".join(f"{line}\n" for line in lines))


def test_environment_of_the_stack_is_taken_over_and_own_settings_win(tmp_path: Path) -> None:
    write_stack(tmp_path)

    answer = sluice("show-environment", data=tmp_path, SLUICE_LOGS="/of-the-shell")

    assert answer.stdout == (
        "{'SLUICE_LEDGER_URL': 'of-the-stack', 'SLUICE_LOGS': '/of-the-shell', 'JAVA_HOME': '/of-the-stack'}\n"
    )


def test_deployment_keeps_its_own_environment(tmp_path: Path) -> None:
    write_stack(tmp_path)

    answer = sluice("show-environment", data=tmp_path, SLUICE_LEDGER_URL="of-the-deployment")

    assert answer.stdout == (
        "{'SLUICE_LEDGER_URL': 'of-the-deployment', 'SLUICE_LOGS': None, 'JAVA_HOME': '/of-the-shell'}\n"
    )


def test_without_a_stack_nothing_is_taken_over(tmp_path: Path) -> None:
    answer = sluice("show-environment", data=tmp_path)

    assert answer.stdout == "{'SLUICE_LEDGER_URL': None, 'SLUICE_LOGS': None, 'JAVA_HOME': '/of-the-shell'}\n"
