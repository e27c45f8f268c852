"""The root of the command: error messages and exit codes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import typer

from sluice.cli.app import app, enter_local_stack, main
from sluice.errors import UnhealthyError


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> typer.Typer:
    """The command's own root; a test may register a command that fails on purpose."""
    monkeypatch.setattr(app, "registered_commands", list(app.registered_commands))
    return app


def exit_code(*words: str) -> object:
    """The code with which the command leaves this process."""
    with pytest.raises(SystemExit) as left:
        main(words)
    return left.value.code


def add_unhealthy(root: typer.Typer) -> None:
    """A command that fails as commands do."""

    @root.command()
    def unhealthy(as_json: bool = typer.Option(False, "--json")) -> None:
        raise UnhealthyError("Two streams are late.", next_step="Look at `sluice stream list`.")


def test_error_is_a_sentence_and_the_next_step(root: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    add_unhealthy(root)

    assert exit_code("unhealthy") == 1
    assert capsys.readouterr() == ("", "sluice: Two streams are late.\nLook at `sluice stream list`.\n")


def test_error_is_json_for_a_program(root: typer.Typer, capsys: pytest.CaptureFixture[str]) -> None:
    add_unhealthy(root)

    assert exit_code("unhealthy", "--json") == 1
    output, errors = capsys.readouterr()
    assert output == ""
    assert json.loads(errors) == {
        "error": "UnhealthyError",
        "message": "Two streams are late.",
        "next_step": "Look at `sluice stream list`.",
    }


def test_interruption_has_its_own_exit_code(root: typer.Typer) -> None:
    @root.command()
    def interrupted() -> None:
        raise KeyboardInterrupt

    assert exit_code("interrupted") == 130


@pytest.mark.parametrize("words", [("no-such-command",), ("validate", "--no-such-option")])
def test_wrong_usage_has_its_own_exit_code(words: tuple[str, ...]) -> None:
    assert exit_code(*words) == 2


@pytest.mark.parametrize(
    ("ledger", "is_marked"), [(None, True), ("postgresql://here", True), ("postgresql://there", False)]
)
def test_what_a_shell_with_the_stacks_variables_starts_belongs_to_the_stack(
    ledger: str | None, is_marked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "environment").write_text("SLUICE_LEDGER_URL=postgresql://here\n")
    environment = {"SLUICE_DATA": str(tmp_path)} | ({} if ledger is None else {"SLUICE_LEDGER_URL": ledger})
    monkeypatch.setattr(os, "environ", environment)

    enter_local_stack()

    assert (environment.get("SLUICE_STACK") == str(tmp_path.resolve())) is is_marked
