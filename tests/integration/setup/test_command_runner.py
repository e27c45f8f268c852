"""Programs end when the bootstrap does."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.fixtures.drivers import await_condition

from sluice.setup.command_runner import CommandResult, CommandRunner


def test_exit_code_and_all_output_come_back() -> None:
    result = CommandRunner().run(["sh", "-c", "echo out; echo err >&2; exit 3"])

    assert (result.exit_code, result.output, result.is_success()) == (3, "out\nerr\n", False)


def test_variables_are_added_to_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "kept")

    result = CommandRunner().run(["sh", "-c", 'echo "$KEPT $ADDED"'], environment={"ADDED": "added"})

    assert result.output == "kept added\n"


def test_stop_ends_a_program_and_what_it_started(tmp_path: Path) -> None:
    runner = CommandRunner()
    child_file = tmp_path / "child"
    script = f"sleep 300 & echo $! > {child_file}.new; mv {child_file}.new {child_file}; wait"
    ended = threading.Thread(target=runner.run, args=(["sh", "-c", script],))
    ended.start()
    child = psutil.Process(int(await_text(child_file)))

    runner.stop()

    assert not is_running(child)
    ended.join(timeout=10)
    assert not ended.is_alive()


def test_stop_ends_what_outlives_the_program_that_started_it(tmp_path: Path) -> None:
    runner = CommandRunner(grace_seconds=0.2)
    child_file = tmp_path / "child"
    stubborn = f"trap : TERM; echo $$ > {child_file}.new; mv {child_file}.new {child_file}; while :; do sleep 1; done"
    ended = threading.Thread(target=runner.run, args=(["sh", "-c", f"sh -c '{stubborn}' & wait"],))
    ended.start()
    child = psutil.Process(int(await_text(child_file)))

    runner.stop()
    ended.join(timeout=10)

    assert not is_running(child)


def test_stop_does_not_wait_for_an_orphan_whose_exit_code_is_not_collected(tmp_path: Path) -> None:
    runner = CommandRunner(grace_seconds=60)
    child_file = tmp_path / "child"
    script = f"sleep 300 & echo $! > {child_file}.new; mv {child_file}.new {child_file}; wait"
    with adopting_orphans():
        ended = threading.Thread(target=runner.run, args=(["sh", "-c", script],))
        ended.start()
        child = int(await_text(child_file))
        stopped = threading.Thread(target=runner.stop, daemon=True)

        stopped.start()
        stopped.join(timeout=10)

        assert not stopped.is_alive()
        assert psutil.Process(child).status() == psutil.STATUS_ZOMBIE
        os.waitpid(child, 0)
    ended.join(timeout=10)


def test_nothing_is_started_after_a_stop() -> None:
    runner = CommandRunner()
    runner.stop()

    with pytest.raises(InterruptedError):
        runner.run(["true"])


def test_program_that_hangs_is_ended() -> None:
    began = time.monotonic()

    result = CommandRunner().run(["sleep", "300"], silence_seconds=0.4)

    assert not result.is_success()
    assert result.explanation() == "error: stopped, because nothing moved for 0.4 s"
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "work",
    [
        "for i in 1 2 3 4 5 6; do echo; sleep 0.3; done",
        pytest.param("sh -c 'i=0; while [ $i -lt 4000000 ]; do i=$((i+1)); done'; :", marks=pytest.mark.full),
    ],
    ids=["it writes", "its child computes"],
)
def test_program_that_moves_may_take_as_long_as_it_needs(work: str) -> None:
    began = time.monotonic()

    result = CommandRunner().run(["sh", "-c", work], silence_seconds=1.2)

    assert result.is_success()
    assert time.monotonic() - began > 1.2


def test_package_manager_is_never_stopped(tmp_path: Path) -> None:
    runner = CommandRunner()
    started, ended = tmp_path / "started", tmp_path / "ended"
    script = f"echo yes > {started}; sleep 0.5; echo yes > {ended}"
    thread = threading.Thread(target=lambda: runner.run(["sh", "-c", script], is_stoppable=False))
    thread.start()
    await_text(started)

    runner.stop()
    thread.join(timeout=10)

    assert ended.exists()


@pytest.mark.parametrize(
    ("output", "explanation"),
    [
        (
            "Resolved 3\nerror: Failed to install\n  Caused by: No space left\n",
            "error: Failed to install; Caused by: No space left",
        ),
        ("Reading…\nE: Unable to locate package\n", "E: Unable to locate package"),
        (
            'Exception in thread "main" java.lang.Error\n\tat a.b(C.java:1)\nCaused by: no network\n\t... 17 more\n',
            'Exception in thread "main" java.lang.Error; Caused by: no network',
        ),
        ("error: No\nhint: do that\n", "error: No"),
        (f"error: {'a' * 300}\nCaused by: {'b' * 300}\n", f"error: {'a' * 193} … {'b' * 200}"),
        ("one\ntwo\n\n", "two"),
        ("", "exit code 1 without a message"),
    ],
)
def test_explanation_is_one_line(output: str, explanation: str) -> None:
    assert CommandResult(exit_code=1, output=output).explanation() == explanation


@contextlib.contextmanager
def adopting_orphans() -> Iterator[None]:
    """Adopt the orphans of this process, and collect no exit code, as the first process of some containers does.

    Source: https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html
    """
    set_child_subreaper = 36
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(set_child_subreaper, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        libc.prctl(set_child_subreaper, 0, 0, 0, 0)


def is_running(process: psutil.Process) -> bool:
    """Whether it runs; one that has ended may stay until the machine's first process collects its exit code."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def await_text(path: Path) -> str:
    """The content of a file as soon as it has one, within ten seconds."""
    await_condition(lambda: path.exists() and path.stat().st_size > 0, within_seconds=10)
    return path.read_text()
