"""Ending processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

import pytest
from tests.fixtures.drivers import await_condition

from sluice.processes.host_processes import LivingProcess, find_process, observe_processes, with_descendants
from sluice.stack.environment import STACK_MARK
from sluice.stack.starting import exit_code, start_process
from sluice.stack.stopping import TREE_SECONDS, StopRule, decide_signal, end_processes

RULE = StopRule(signal=signal.SIGINT, patience_seconds=10)


@pytest.mark.parametrize(
    ("is_root", "waited_seconds", "expected"),
    [
        (True, 0, signal.SIGINT),
        (True, 10, signal.SIGINT),
        (True, 10.1, signal.SIGKILL),
        (False, 0, None),
        (False, 10, None),
        (False, 10.1, signal.SIGTERM),
        (False, 10 + TREE_SECONDS, signal.SIGTERM),
        (False, 10.1 + TREE_SECONDS, signal.SIGKILL),
    ],
)
def test_which_signal_a_process_is_sent(is_root: bool, waited_seconds: float, expected: signal.Signals | None) -> None:
    assert decide_signal(RULE, is_root=is_root, waited_seconds=waited_seconds) is expected


def start(script: str, folder: Path) -> int:
    """Start a shell and wait until it prints that it is ready."""
    log = folder / "log"
    pid = start_process(
        ["/bin/sh", "-c", script], environment={"PATH": os.environ["PATH"]}, working_folder=folder, log=log
    )
    await_condition(lambda: "ready" in log.read_text(), within_seconds=5)
    return pid


def tree_of(pid: int) -> Collection[LivingProcess]:
    everything = observe_processes()
    session = [process for process in everything.values() if process.session_id == pid]
    return with_descendants(session, everything).values()


def test_a_process_that_ends_on_sigterm(tmp_path: Path) -> None:
    pid = start("echo ready; exec sleep 60", tmp_path)

    ended = end_processes(lambda: tree_of(pid), rules={}, otherwise=StopRule(patience_seconds=5))

    assert ended == 1
    assert find_process(pid) is None


def test_its_own_signal_is_used(tmp_path: Path) -> None:
    pid = start(
        "trap 'echo asked politely; exit 0' INT; trap '' TERM; echo ready; while :; do sleep 0.05; done", tmp_path
    )

    end_processes(lambda: tree_of(pid), rules={pid: RULE}, otherwise=StopRule(patience_seconds=5))

    assert "asked politely" in (tmp_path / "log").read_text()


def test_a_process_that_refuses_is_killed(tmp_path: Path) -> None:
    pid = start("trap '' TERM; echo ready; while :; do sleep 0.05; done", tmp_path)

    end_processes(lambda: tree_of(pid), rules={}, otherwise=StopRule(patience_seconds=0.3))

    assert tree_of(pid) == [] or not list(tree_of(pid))
    assert exit_code(pid) in (None, -signal.SIGKILL)


def test_children_that_outlive_their_parent_are_ended_too(tmp_path: Path) -> None:
    pid = start("(trap '' HUP; echo ready; exec sleep 60) & wait", tmp_path)

    ended = end_processes(lambda: tree_of(pid), rules={}, otherwise=StopRule(patience_seconds=5))

    assert ended == 2
    assert not tree_of(pid)


_THREAD_OUTLIVES_ITS_FIRST = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
print("ready", flush=True)
ctypes.CDLL(None).syscall({exit}, 0)  # ends this thread alone
"""


def test_a_process_lives_as_long_as_one_of_its_threads(tmp_path: Path) -> None:
    number = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
    pid = start_process(
        [sys.executable, "-c", _THREAD_OUTLIVES_ITS_FIRST.format(exit=number)],
        environment={STACK_MARK: "/data"},
        working_folder=tmp_path,
        log=tmp_path / "log",
    )
    await_condition(lambda: "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text(), within_seconds=10)

    seen = find_process(pid)
    ended = end_processes(lambda: tree_of(pid), rules={}, otherwise=StopRule(patience_seconds=5))

    assert seen is not None
    assert (seen.pid, seen.variable(STACK_MARK)) == (pid, "/data")
    assert ended == 1


def test_the_exit_code_of_a_child_is_kept(tmp_path: Path) -> None:
    """Also when another thread looks at all processes between the child's end and the question."""
    pid = start("echo ready; exit 3", tmp_path)
    await_condition(lambda: pid not in observe_processes(), within_seconds=5)

    assert exit_code(pid) == 3


def test_a_finished_child_is_not_living(tmp_path: Path) -> None:
    child = subprocess.Popen([sys.executable, "-c", "pass"], cwd=tmp_path)
    await_condition(lambda: find_process(child.pid) is None, within_seconds=5)  # it is a zombie until it is waited for

    assert child.wait() == 0
