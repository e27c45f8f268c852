"""The bootstrap as a person runs it: one sentence and an exit code for each machine that lacks something."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.errors import PrerequisiteError
from sluice.setup.command_runner import CommandRunner, Progress
from sluice.setup.installation import PACKAGE_MANAGERS, Installation, cache_folder
from sluice.setup.java_runtime import ARCHIVE_NAME
from sluice.setup.python_environment import environment_stamp

ROOT = Path(__file__).resolve().parents[3]
BOOTSTRAP = Path("include") / "sluice" / "stack" / "bootstrap.py"
HIDE_JAVA = "mount -t tmpfs none /usr/lib/jvm && exec "


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """What the bootstrap needs of the project, in a folder of its own: the environment of this one stays as it is."""
    root = tmp_path / "project"
    for name in ("__init__.py", "errors.py", "failure_reasons.py", "messages.py", "setup"):
        source = ROOT / "include" / "sluice" / name
        copy = shutil.copytree if source.is_dir() else shutil.copy2
        (root / "include" / "sluice" / "stack").mkdir(parents=True, exist_ok=True)
        copy(source, root / "include" / "sluice" / name)
    shutil.copy2(ROOT / BOOTSTRAP, root / BOOTSTRAP)
    for name in ("pyproject.toml", "uv.lock", "ivy.xml", "ivy.lock"):
        shutil.copy2(ROOT / name, root / name)
    return root


def start(command: list[str], **environment: str) -> subprocess.Popen[str]:
    """Start a program whose output is read."""
    return subprocess.Popen(  # noqa: S603  # our own command
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], **environment},
    )


def may_mount() -> bool:
    """Whether this process may hide a folder from its children."""
    try:
        command = ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", f"{HIDE_JAVA} true"]
        return subprocess.run(command, capture_output=True).returncode == 0  # noqa: S603  # our own command
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not may_mount(), reason="the installed Java can be hidden only by root, in a mount namespace")
def test_machine_without_java_gets_one_sentence(project: Path, tmp_path: Path) -> None:
    words = [sys.executable, str(project / BOOTSTRAP)]

    process = start(
        ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", f'{HIDE_JAVA} "$@"', "sh", *words],
        XDG_CACHE_HOME=str(tmp_path),
        SLUICE_NO_INSTALL="1",
    )
    output, errors = process.communicate(timeout=30)

    assert (process.returncode, output) == (1, "")
    assert errors == (
        "bootstrap: Sluice needs Java 17 to 23 and found none; SLUICE_NO_INSTALL forbids to install it. "
        "Install Java 17 (Debian, Ubuntu: apt install openjdk-17-jre-headless; Fedora: dnf install "
        "java-21-openjdk-headless) or set JAVA_HOME to one, then run the command again.\n"
    )
    assert not (project / ".venv").exists()


@pytest.mark.skipif(
    not may_mount() or not any(map(shutil.which, PACKAGE_MANAGERS)),
    reason="the installed Java can be hidden only by root, and a question needs a package manager",
)
def test_a_person_at_a_terminal_is_asked_and_no_means_no(project: Path, tmp_path: Path) -> None:
    words = [sys.executable, str(project / BOOTSTRAP)]
    ours, its = pty.openpty()
    os.write(ours, b"\n")  # neither yes nor no

    process = subprocess.run(  # noqa: S603  # our own command
        ["/usr/bin/unshare", "--mount", "/bin/sh", "-c", f'{HIDE_JAVA} "$@"', "sh", *words],
        stdin=its,
        stdout=its,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path)},
        timeout=60,
        check=False,
    )

    asked = os.read(ours, 4096).decode()
    assert "Java is missing. Install it with the rights of root: " in asked
    assert asked.rstrip().endswith("? [y/N]")
    assert process.returncode == 1
    assert "found none; you did not agree to install it." in process.stderr
    assert not (project / ".venv").exists()


def test_nothing_is_fetched_on_a_machine_that_can_get_no_java(tmp_path: Path) -> None:
    installation = Installation(
        root=ROOT,
        cache=tmp_path,
        environment={"PATH": "", "SLUICE_NO_INSTALL": "1"},
        runner=CommandRunner(),
        progress=Progress(),
        java_folders=(),
    )

    with pytest.raises(PrerequisiteError, match="found none; SLUICE_NO_INSTALL forbids to install it"):
        installation.provide()

    assert list(tmp_path.iterdir()) == []


def test_old_python_gets_one_sentence(project: Path) -> None:
    script = str(project / BOOTSTRAP)
    pretend = f"import runpy, sys; sys.version_info = (3, 9, 18); runpy.run_path({script!r}, run_name='__main__')"

    process = start([sys.executable, "-c", pretend])
    _, errors = process.communicate(timeout=30)

    assert process.returncode == 1
    assert errors == (
        f"bootstrap: Sluice needs Python 3.11 or newer and {sys.executable} is 3.9. Install one, then name it: "
        "make PYTHON=/path/to/python3 …\n"
    )


def test_folder_that_may_not_be_written_gets_one_sentence(project: Path, tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()

    process = start([sys.executable, str(project / BOOTSTRAP)], XDG_CACHE_HOME=str(in_the_way))
    _, errors = process.communicate(timeout=30)

    assert process.returncode == 1
    assert errors == f"bootstrap: [Errno 20] Not a directory: '{in_the_way}/sluice'\n"


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_ends_with_its_own_exit_code(project: Path, tmp_path: Path, signal_number: signal.Signals) -> None:
    (project / ".sluice").mkdir()
    with (project / ".sluice" / "setup.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = start([sys.executable, str(project / BOOTSTRAP)], XDG_CACHE_HOME=str(tmp_path))
        assert process.stdout is not None
        line = process.stdout.readline()

        process.send_signal(signal_number)
        _, errors = process.communicate(timeout=30)

    assert line.endswith("Waiting for another bootstrap of this folder\n")
    assert (process.returncode, errors) == (130, "bootstrap: interrupted; run the command again to continue.\n")


@pytest.mark.parametrize(
    ("environment", "folder"),
    [
        ({"XDG_CACHE_HOME": "/x/cache"}, Path("/x/cache/sluice")),
        ({"XDG_CACHE_HOME": ""}, Path.home() / ".cache/sluice"),
    ],
)
def test_cache_follows_the_desktop_standard(environment: dict[str, str], folder: Path) -> None:
    assert cache_folder(environment) == folder


def test_class_archive_is_made_when_it_is_asked_for(project: Path, tmp_path: Path) -> None:
    (project / "jobs").mkdir()
    (project / "jobs" / "load_classes.py").write_text("the job")
    python = project / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho recorded > "$3"\n')
    python.chmod(0o755)
    (project / ".venv" / "lib").symlink_to(ROOT / ".venv" / "lib")  # the Ivy of pyspark
    (project / ".venv" / "sluice-stamp").write_text(environment_stamp(project))
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "jars").symlink_to(cache_folder(os.environ) / "jars")
    installation = Installation(
        root=project,
        cache=cache,
        environment=os.environ,
        runner=CommandRunner(),
        progress=Progress(),
    )

    installation.provide(has_class_archive=False)
    assert not (project / ".venv" / ARCHIVE_NAME).exists()

    installation.provide()
    assert (project / ".venv" / ARCHIVE_NAME).read_text() == "recorded\n"


def test_record_says_where_java_and_jars_are() -> None:
    record = ROOT / ".sluice" / "bootstrap.json"
    if not record.exists():
        pytest.skip("this environment was made by hand, not by `make setup`")

    found = json.loads(record.read_text())

    assert (Path(found["java_home"]) / "bin" / "java").exists()
    assert any((Path(found["jars"]) / "kafka").glob("*.jar"))
