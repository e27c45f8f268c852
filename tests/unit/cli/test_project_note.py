"""Which declarations a command uses, and how it says so."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sluice.cli.app import main
from sluice.settings import project_root

TABLE = "table: gold.x\ndescription: x\nowner: me\ncolumns: [{name: a, type: int}]\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of one table, and a shell without any variable of Sluice in a folder inside it."""
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("SLUICE_DATA", str(tmp_path / "no stack"))
    folder = tmp_path / "project"
    (folder / "pipelines").mkdir(parents=True)
    (folder / "tests" / "deep").mkdir(parents=True)
    (folder / "sluice.yaml").write_text("pipelines: pipelines\n")
    (folder / "pipelines" / "gold.x.table.yaml").write_text(TABLE)
    monkeypatch.chdir(folder / "tests" / "deep")
    monkeypatch.setenv("SLUICE_PIPELINES", "")  # so that what the command sets is undone
    return folder


def validate(*words: str) -> object:
    """Run `sluice validate` in this process; its exit code."""
    with pytest.raises(SystemExit) as left:
        main(["validate", *words])
    return left.value.code


def test_the_project_is_found_upwards_and_named(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert validate() == 0

    output, errors = capsys.readouterr()
    assert "0 streams and 1 table are valid" in output
    assert errors == f"Declarations: {project}/pipelines (of {project}/sluice.yaml)\n"


def test_a_variable_is_stronger_and_needs_no_word(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SLUICE_PIPELINES", str(project_root() / "include" / "pipelines"))

    assert validate() == 0
    assert capsys.readouterr().err == ""


def test_outside_of_a_project_the_demo_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project.parent)

    assert validate() == 0
    assert "(the demo's; there is no sluice.yaml here or above)" in capsys.readouterr().err


def test_in_the_products_own_folder_there_is_nothing_to_say(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(project_root() / "docs")

    assert validate() == 0
    assert capsys.readouterr().err == ""


def test_a_program_gets_no_word_beside_the_answer(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert validate("--json") == 0
    assert capsys.readouterr().err == ""


def test_a_wrong_project_file_is_one_sentence(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (project / "sluice.yaml").write_text("folder: x\n")

    assert validate() == 2
    assert capsys.readouterr().err.startswith(f"sluice: {project}/sluice.yaml is wrong: folder: Extra inputs")
