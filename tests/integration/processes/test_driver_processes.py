"""Recognising and ending the processes of drivers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace

import psutil
import pytest
from tests.fixtures.drivers import await_condition

from sluice.processes.host_processes import ask_to_end, identity_of, kill_group, observe_process
from sluice.processes.process_identity import RUN_ID_VARIABLE, ProcessIdentity, ProcessState

IN_A_CONTAINER = [
    "unshare",
    *(["--user", "--map-root-user"] if os.geteuid() else []),
    *("--pid", "--fork", "--mount-proc"),
]
"""Runs a program in a pid namespace of its own, with the name of this machine."""


def recorded_before(identity: ProcessIdentity) -> ProcessIdentity:
    """The identity as a version before boot ids and namespaces recorded it."""
    return replace(identity, boot_id=None, pid_namespace=None, start_ticks=None)


def test_a_process_is_recognised_by_its_start() -> None:
    me = identity_of(os.getpid())
    assert None not in (me.boot_id, me.pid_namespace, me.start_ticks)
    assert observe_process(me) is ProcessState.ALIVE
    assert observe_process(replace(me, started_at_seconds=0.0)) is ProcessState.ALIVE
    assert observe_process(replace(me, start_ticks=0)) is ProcessState.GONE


def test_a_process_that_is_missing_in_another_containers_namespace_is_not_gone() -> None:
    """Two containers with the network of their machine share its name; each has process ids of its own."""
    script = "import os, json; from dataclasses import asdict; from sluice.processes import host_processes as d; "
    script += "print(json.dumps([asdict(d.identity_of(os.getpid())), d.observe_process(d.ProcessIdentity(**{}))]))"
    with subprocess.Popen(["sleep", "60"]) as driver:  # noqa: S607
        try:
            known = identity_of(driver.pid)
            printed = subprocess.run(  # noqa: S603  # our own script
                [*IN_A_CONTAINER, sys.executable, "-c", script.replace("**{}", f"**{asdict(known)}")],
                check=True,
                capture_output=True,
            ).stdout
            identity_there, seen_from_there = json.loads(printed)
        finally:
            driver.kill()
    there = ProcessIdentity(**identity_there)
    assert (there.host, there.boot_id) == (known.host, known.boot_id)
    assert there.pid_namespace != known.pid_namespace
    assert seen_from_there == ProcessState.UNKNOWN
    assert observe_process(there) is ProcessState.UNKNOWN, "it is process 1 or 2 there, and another process here"
    assert observe_process(replace(there, pid=2**22 - 1)) is ProcessState.UNKNOWN
    assert observe_process(known) is ProcessState.GONE


def test_only_the_process_with_the_recorded_start_time_is_alive() -> None:
    me = recorded_before(identity_of(os.getpid()))
    assert me.pid == os.getpid()
    assert observe_process(me) is ProcessState.ALIVE
    assert observe_process(replace(me, started_at_seconds=me.started_at_seconds + 1.5)) is ProcessState.ALIVE
    assert observe_process(replace(me, started_at_seconds=me.started_at_seconds + 3600)) is ProcessState.GONE
    assert observe_process(replace(me, host="another-host")) is ProcessState.UNKNOWN


def test_a_driver_whose_start_time_moved_with_the_clock_is_unknown() -> None:
    marked = {**os.environ, RUN_ID_VARIABLE: "run-1"}
    with subprocess.Popen(["/bin/sh", "-c", "echo ready; exec sleep 60"], env=marked, stdout=subprocess.PIPE) as driver:
        try:
            assert driver.stdout is not None
            driver.stdout.readline()  # the kernel shows no environment while a program is being loaded
            known = identity_of(driver.pid)
            moved = replace(recorded_before(known), started_at_seconds=known.started_at_seconds - 3600)
            await_condition(lambda: observe_process(moved) is ProcessState.UNKNOWN, within_seconds=5)
        finally:
            driver.kill()
    assert observe_process(known) is ProcessState.GONE


def test_a_process_that_ended_and_waits_for_its_parent_is_gone() -> None:
    with subprocess.Popen(["sleep", "60"], process_group=0) as child:  # noqa: S607
        known = identity_of(child.pid)
        kill_group(child.pid)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert observe_process(known) is ProcessState.GONE


_FIRST_THREAD_ENDS = """
import ctypes, threading, time
threading.Thread(target=time.sleep, args=(60,)).start()
ctypes.CDLL(None).syscall({exit}, 0)  # ends this thread alone
"""


def test_a_process_whose_first_thread_has_ended_is_alive_until_the_others_have() -> None:
    number = {"x86_64": 60, "aarch64": 93}[os.uname().machine]
    marked = {**os.environ, RUN_ID_VARIABLE: "run-1"}
    script = _FIRST_THREAD_ENDS.format(exit=number)
    with subprocess.Popen([sys.executable, "-c", script], env=marked) as driver:  # noqa: S603  # our own script
        try:
            known = identity_of(driver.pid)
            await_condition(lambda: psutil.Process(driver.pid).status() == psutil.STATUS_ZOMBIE, within_seconds=10)
            moved = replace(recorded_before(known), started_at_seconds=known.started_at_seconds - 3600)

            assert observe_process(known) is ProcessState.ALIVE
            assert observe_process(moved) is ProcessState.UNKNOWN  # the mark is read from the thread that is left
        finally:
            driver.kill()
    assert observe_process(known) is ProcessState.GONE


def test_the_identity_is_the_one_that_psutil_gives() -> None:
    assert identity_of(os.getpid()).started_at_seconds == psutil.Process().create_time()
    with pytest.raises(psutil.NoSuchProcess):
        identity_of(2**22 + 1)


@pytest.mark.parametrize("end", [ask_to_end, kill_group])
def test_ending_what_is_gone_does_nothing(end: object) -> None:
    with subprocess.Popen(["true"], process_group=0) as child:  # noqa: S607
        pass
    assert callable(end)
    end(child.pid)
