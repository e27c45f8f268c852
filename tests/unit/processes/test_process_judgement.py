"""Whether a recorded process lives: by host, boot, pid namespace and start."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.processes.host_processes import judge_process
from sluice.processes.process_identity import HOSTS_OWN_NAMESPACE, ProcessIdentity, ProcessPlace, ProcessState

HERE = ProcessPlace(host="a-host", boot_id="boot-1", pid_namespace=HOSTS_OWN_NAMESPACE)
RECORDED = ProcessIdentity(
    host="a-host",
    pid=4711,
    started_at_seconds=1_000_000.0,
    boot_id="boot-1",
    pid_namespace=HOSTS_OWN_NAMESPACE,
    start_ticks=500,
)
OLD = replace(RECORDED, boot_id=None, pid_namespace=None, start_ticks=None)
CONTAINER, OTHER_CONTAINER = 4026532178, 4026532290


def judge(
    recorded: ProcessIdentity,
    seen: ProcessIdentity | None,
    *,
    here: ProcessPlace = HERE,
    may_be_driver: bool = False,
) -> ProcessState:
    """The judgement; without a driver's mark unless said otherwise."""
    return judge_process(recorded, here=here, seen=seen, may_be_driver=may_be_driver)


def test_the_same_start_in_the_same_place_is_alive_however_the_clock_was_set() -> None:
    assert judge(RECORDED, RECORDED) is ProcessState.ALIVE
    assert judge(RECORDED, replace(RECORDED, started_at_seconds=1_003_600.0)) is ProcessState.ALIVE


def test_another_start_in_the_same_place_is_a_reused_id() -> None:
    reused = replace(RECORDED, start_ticks=501)
    assert judge(RECORDED, reused, may_be_driver=True) is ProcessState.GONE
    assert judge(RECORDED, None) is ProcessState.GONE


@pytest.mark.parametrize("seen", [None, RECORDED], ids=["none", "the same id"])
@pytest.mark.parametrize("recorded_in", [CONTAINER, HOSTS_OWN_NAMESPACE])
def test_a_process_of_another_namespace_is_never_gone(seen: ProcessIdentity | None, recorded_in: int) -> None:
    here = replace(HERE, pid_namespace=OTHER_CONTAINER)
    assert judge(replace(RECORDED, pid_namespace=recorded_in), seen, here=here) is ProcessState.UNKNOWN


def test_a_process_of_a_container_seen_from_its_machine_is_never_gone() -> None:
    assert judge(replace(RECORDED, pid_namespace=CONTAINER), None) is ProcessState.UNKNOWN


def test_no_process_of_a_machine_survives_its_reboot() -> None:
    rebooted = replace(HERE, boot_id="boot-2")
    assert judge(RECORDED, None, here=rebooted) is ProcessState.GONE
    assert judge(RECORDED, RECORDED, here=rebooted, may_be_driver=True) is ProcessState.GONE


def test_a_container_of_the_same_name_on_another_kernel_may_be_on_another_machine() -> None:
    moved = ProcessPlace(host="a-host", boot_id="boot-2", pid_namespace=OTHER_CONTAINER)
    assert judge(replace(RECORDED, pid_namespace=CONTAINER), None, here=moved) is ProcessState.UNKNOWN
    assert judge(RECORDED, None, here=moved) is ProcessState.UNKNOWN


def test_another_host_is_unknown() -> None:
    assert judge(RECORDED, RECORDED, here=replace(HERE, host="another")) is ProcessState.UNKNOWN


@pytest.mark.parametrize(
    ("seen", "may_be_driver", "expected"),
    [
        (None, False, ProcessState.GONE),
        (RECORDED, False, ProcessState.ALIVE),
        (replace(RECORDED, started_at_seconds=1_000_001.5), False, ProcessState.ALIVE),
        (replace(RECORDED, started_at_seconds=1_003_600.0), False, ProcessState.GONE),
        (replace(RECORDED, started_at_seconds=1_003_600.0), True, ProcessState.UNKNOWN),
    ],
    ids=["none", "same", "corrected", "another program", "a driver"],
)
@pytest.mark.parametrize("is_recorded_before", [True, False], ids=["recorded before", "hidden here"])
def test_without_boot_and_namespace_the_start_time_decides(
    seen: ProcessIdentity | None, may_be_driver: bool, expected: ProcessState, is_recorded_before: bool
) -> None:
    recorded, here = (OLD, HERE) if is_recorded_before else (RECORDED, replace(HERE, boot_id=None))
    assert judge(recorded, seen, here=here, may_be_driver=may_be_driver) is expected
