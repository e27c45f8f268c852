"""Which Java is taken."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sluice.setup.command_runner import CommandRunner
from sluice.setup.java_runtime import (
    JavaRuntime,
    JavaSearch,
    ask_java,
    java_programs,
    parse_java_properties,
    search_java,
)

ANSWER = """\
Property settings:
    file.encoding = UTF-8
    java.home = {home}
    java.version = {version}
    java.version.date = 2025-04-15

openjdk version "{version}" 2025-04-15
"""


def pretend_java(home: Path, version: str) -> Path:
    """A program that answers as a Java of that version does."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{ANSWER.format(home=home, version=version)}END\n")
    program.chmod(0o755)
    return program


@pytest.mark.parametrize(
    ("version", "feature_version", "is_supported"),
    [
        ("1.8.0_402", 8, False),
        ("11.0.22", 11, False),
        ("17", 17, True),
        ("17.0.15", 17, True),
        ("21-ea", 21, True),
        ("21.0.6+7-LTS", 21, True),
        ("23.0.2", 23, True),
        ("24", 24, False),
        ("25.0.3", 25, False),
    ],
)
def test_versions_are_read_as_java_writes_them(version: str, feature_version: int, is_supported: bool) -> None:
    java = JavaRuntime(home=Path("/java"), version=version)

    assert (java.feature_version, java.is_supported()) == (feature_version, is_supported)


def test_home_and_version_are_read_from_the_answer() -> None:
    answer = ANSWER.format(home="/usr/lib/jvm/java 17", version="17.0.15")

    assert parse_java_properties(answer) == JavaRuntime(home=Path("/usr/lib/jvm/java 17"), version="17.0.15")


@pytest.mark.parametrize("answer", ["", "java: not found", 'openjdk version "17.0.15"', "    java.home = /x\n"])
def test_other_output_is_not_a_java(answer: str) -> None:
    assert parse_java_properties(answer) is None


def test_java_home_comes_before_path_and_path_before_the_folders(tmp_path: Path) -> None:
    chosen = pretend_java(tmp_path / "chosen", "17.0.1")
    on_path = pretend_java(tmp_path / "on-path", "17.0.2")
    installed = [pretend_java(tmp_path / "jvm" / name, "17.0.3") for name in ("java-17", "java-21")]

    programs = java_programs(
        environment={"JAVA_HOME": str(tmp_path / "chosen"), "PATH": str(on_path.parent)},
        folders=[str(tmp_path / "jvm")],
    )

    assert programs == (chosen, on_path, *installed)


def test_one_java_behind_several_names_is_asked_once(tmp_path: Path) -> None:
    program = pretend_java(tmp_path / "jvm" / "java-17", "17.0.1")
    (tmp_path / "jvm" / "default").symlink_to("java-17")

    assert java_programs(environment={"PATH": ""}, folders=[str(tmp_path / "jvm")]) == (program,)


def test_too_old_and_too_new_javas_are_skipped(tmp_path: Path) -> None:
    pretend_java(tmp_path / "old", "11.0.2")
    new = pretend_java(tmp_path / "new", "25.0.3")
    pretend_java(tmp_path / "jvm" / "right", "21.0.6")

    search = search_java(
        environment={"JAVA_HOME": str(tmp_path / "old"), "PATH": str(new.parent)},
        runner=CommandRunner(),
        folders=[str(tmp_path / "jvm")],
    )

    assert search.supported() == JavaRuntime(home=tmp_path / "jvm" / "right", version="21.0.6")


def test_a_program_that_does_not_run_is_not_a_java(tmp_path: Path) -> None:
    program = tmp_path / "java"
    program.write_text("#!/bin/sh\nexit 1\n")

    assert ask_java(program, runner=CommandRunner()) is None
    program.chmod(0o755)
    assert ask_java(program, runner=CommandRunner()) is None


def test_message_holds_what_was_found_and_the_next_step() -> None:
    search = JavaSearch(found=(JavaRuntime(home=Path("/opt/java25"), version="25.0.3"),))

    error = search.missing("SLUICE_NO_INSTALL forbids to install it")

    assert error.message == (
        "Sluice needs Java 17 to 23 and found only Java 25.0.3 in /opt/java25; SLUICE_NO_INSTALL forbids to install it."
    )
    assert error.next_step.startswith("Install Java 17 ")
    assert JavaSearch(found=()).missing("so").message == "Sluice needs Java 17 to 23 and found none; so."


@pytest.mark.skipif(shutil.which("java") is None, reason="asks the real Java, which is not on PATH here")
def test_real_java_answers() -> None:
    java = ask_java(Path(str(shutil.which("java"))).resolve(), runner=CommandRunner())

    assert java is not None
    assert (java.home / "bin" / "java").exists()
