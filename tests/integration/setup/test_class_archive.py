"""The archive of Spark's classes: made once, put in place whole, never needed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sluice.setup.command_runner import CommandRunner, Progress
from sluice.setup.java_runtime import ARCHIVE_NAME, JavaRuntime, provide_class_archive

JAVA = JavaRuntime(home=Path("/java"), version="17.0.15")
JARS = Path("/jars")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose Python writes its arguments into the archive instead of recording one."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "load_classes.py").write_text("the job")
    replace_python(tmp_path, 'echo "$2 $JAVA_HOME $SLUICE_JARS" > "$3"; echo made >> made')
    return tmp_path


def replace_python(root: Path, script: str) -> None:
    """Let the environment's Python be a shell script."""
    python = root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True, exist_ok=True)
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)


def provide(root: Path, *, java: JavaRuntime = JAVA) -> None:
    """Provide the archive of a project."""
    provide_class_archive(root, java=java, jars=JARS, runner=CommandRunner(), progress=Progress())


def times_made(root: Path) -> int:
    """How often something was recorded."""
    return len((root / "made").read_text().splitlines())


def test_archive_is_made_once(project: Path) -> None:
    provide(project)
    provide(project)

    recorded = (project / ".venv" / ARCHIVE_NAME).read_text()
    assert recorded == "sluice.launching.record_class_archive /java /jars\n"
    assert times_made(project) == 1


def test_archive_is_made_again_for_another_java_and_another_job(project: Path) -> None:
    provide(project)
    provide(project, java=JavaRuntime(home=Path("/java"), version="17.0.16"))
    (project / "jobs" / "load_classes.py").write_text("another job")
    provide(project, java=JavaRuntime(home=Path("/java"), version="17.0.16"))

    assert times_made(project) == 3


def test_failure_is_reported_once_and_leaves_no_archive(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    provide(project)
    replace_python(project, 'echo part > "$3"; echo "Error: no memory"; exit 1')
    (project / "jobs" / "load_classes.py").write_text("another job")

    provide(project)
    provide(project)

    printed = capsys.readouterr().out
    assert printed.count("Spark's classes could not be archived, so Spark starts slower: Error: no memory") == 1
    assert "Remove .venv/spark-classes.stamp to try it again" in printed
    assert sorted(path.name for path in (project / ".venv").iterdir()) == ["bin", "spark-classes.stamp"]


def test_what_a_killed_bootstrap_left_is_removed(project: Path) -> None:
    (project / ".venv" / "spark-classes.partial-1.jsa").touch()

    provide(project)

    assert list((project / ".venv").glob("*partial*")) == []


@pytest.mark.skipif(shutil.which("java") is None, reason="asks the real Java, which is not on PATH here")
@pytest.mark.parametrize("content", [None, b"", b"no archive" * 1000])
def test_java_ignores_an_archive_that_does_not_fit(tmp_path: Path, content: bytes | None) -> None:
    archive = tmp_path / ARCHIVE_NAME
    if content is not None:
        archive.write_bytes(content)

    options = [f"-XX:SharedArchiveFile={archive}", "-Xshare:auto", "-Xlog:cds*=off"]
    plain = subprocess.run(["java", "-version"], capture_output=True, text=True, check=True)  # noqa: S607  # the Java of PATH is meant
    answer = subprocess.run(["java", *options, "-version"], capture_output=True, text=True, check=True)  # noqa: S603, S607  # as above

    assert answer.stdout == ""
    assert answer.stderr.splitlines()[:2] == plain.stderr.splitlines()[:2]
