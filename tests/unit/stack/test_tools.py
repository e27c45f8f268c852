"""Finding Java and the jars."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.errors import PrerequisiteError, StackError
from sluice.stack.stack_plan import find_tools, package_folder, program


def make_java(folder: Path, version: str) -> Path:
    """A program that answers as `java -XshowSettings:properties -version` does."""
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '    java.home = {folder}' >&2\necho '    java.version = {version}' >&2\n")
    java.chmod(0o755)
    return folder


def make_jars(folder: Path) -> Path:
    for class_path in ("spark", "kafka"):
        (folder / class_path).mkdir(parents=True)
        (folder / class_path / "one.jar").touch()
    return folder


@pytest.fixture(autouse=True)
def _bare_shell(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JAVA_HOME", "SLUICE_JARS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


def test_what_the_variables_name_wins_over_the_bootstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = {"java_home": str(make_java(tmp_path / "a", "17")), "jars": str(make_jars(tmp_path / "jars_a"))}
    (tmp_path / ".sluice").mkdir()
    (tmp_path / ".sluice" / "bootstrap.json").write_text(json.dumps(recorded))

    found = find_tools(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "b", "17")))
    monkeypatch.setenv("SLUICE_JARS", str(make_jars(tmp_path / "jars_b")))
    asked = find_tools(tmp_path)

    assert (found.java_home, found.jars) == (tmp_path / "a", tmp_path / "jars_a")
    assert (asked.java_home, asked.jars) == (tmp_path / "b", tmp_path / "jars_b")
    assert asked.java == tmp_path / "b" / "bin" / "java"


def test_java_on_the_path_is_found_behind_its_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = make_java(tmp_path / "jdk", "17.0.15")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    monkeypatch.setenv("SLUICE_JARS", str(make_jars(tmp_path / "jars")))

    assert find_tools(tmp_path).java_home == home


def test_an_unsupported_chosen_java_is_replaced_by_the_one_of_the_bootstrap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = {"java_home": str(make_java(tmp_path / "new", "21.0.4")), "jars": str(make_jars(tmp_path / "jars"))}
    (tmp_path / ".sluice").mkdir()
    (tmp_path / ".sluice" / "bootstrap.json").write_text(json.dumps(recorded))
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "old", "1.8.0_392")))

    assert find_tools(tmp_path).java_home == tmp_path / "new"


def test_no_java(tmp_path: Path) -> None:
    with pytest.raises(PrerequisiteError, match="needs Java 17 to 23 and found none"):
        find_tools(tmp_path)


def test_only_an_unsupported_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "jdk", "25")))

    with pytest.raises(PrerequisiteError, match=f"found only Java 25 in {tmp_path / 'jdk'}"):
        find_tools(tmp_path)


def test_no_jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(make_java(tmp_path / "jdk", "17")))
    with pytest.raises(StackError, match="neither SLUICE_JARS nor the bootstrap names their folder"):
        find_tools(tmp_path)

    monkeypatch.setenv("SLUICE_JARS", str(tmp_path))
    with pytest.raises(StackError, match="spark holds no jar"):
        find_tools(tmp_path)


def test_a_package_or_program_that_is_not_installed_is_named() -> None:
    with pytest.raises(StackError, match="The Python package no_such_package is not installed"):
        package_folder("no_such_package")
    with pytest.raises(StackError, match="The program no-such-program is not installed beside"):
        program("no-such-program")
