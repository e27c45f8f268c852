"""Which processes belong to a stack and to its services."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from sluice.processes.living_processes import LivingProcess, with_descendants
from sluice.stack.environment import STACK_MARK
from sluice.stack.folder import StackFolder
from sluice.stack.services import all_services
from sluice.stack.stack_records import ProcessRecord, service_members, stack_members

FOLDER = StackFolder(Path("/data"))
SERVICES = all_services()
BYSTANDER = LivingProcess(
    pid=10,
    parent_pid=1,
    session_id=10,
    start_ticks=1,
    name="python",
    working_folder="/",
    environment={},
)


def by_pid(processes: Iterable[LivingProcess]) -> dict[int, LivingProcess]:
    return {process.pid: process for process in processes}


def members(*processes: LivingProcess) -> set[int]:
    return set(stack_members(FOLDER, everything=by_pid(processes), services=SERVICES.values()))


def test_a_process_with_the_mark_and_its_descendants_are_members() -> None:
    service = replace(BYSTANDER, pid=20, environment={STACK_MARK: "/data"})
    child = replace(BYSTANDER, pid=21, parent_pid=20)  # for example one that cleared its environment
    grandchild = replace(BYSTANDER, pid=22, parent_pid=21)

    assert members(BYSTANDER, grandchild, child, service) == {20, 21, 22}


def test_processes_of_another_stack_are_not_members() -> None:
    assert members(BYSTANDER, replace(BYSTANDER, pid=20, environment={STACK_MARK: "/data2"})) == set()


def test_children_of_a_killed_postgres_are_found_by_their_folder() -> None:
    stray = replace(BYSTANDER, pid=20, name="postgres", working_folder="/data/postgres")
    other = replace(BYSTANDER, pid=21, name="postgres", working_folder="/var/lib/postgres")
    shell = replace(BYSTANDER, pid=22, name="bash", working_folder="/data/postgres")

    assert members(stray, other, shell) == {20}


def test_the_calling_process_and_its_ancestors_are_not_members() -> None:
    me = replace(BYSTANDER, pid=os.getpid(), parent_pid=30, environment={STACK_MARK: "/data"})
    parent = replace(BYSTANDER, pid=30, environment={STACK_MARK: "/data"})
    sibling = replace(BYSTANDER, pid=31, parent_pid=30, environment={STACK_MARK: "/data"})

    assert members(me, parent, sibling) == {31}


def test_a_detached_driver_is_not_part_of_the_service_that_started_it() -> None:
    scheduler = replace(BYSTANDER, pid=20, session_id=20, environment={STACK_MARK: "/data"})
    worker = replace(BYSTANDER, pid=21, session_id=20, parent_pid=20, environment={STACK_MARK: "/data"})
    driver = replace(BYSTANDER, pid=22, session_id=22, parent_pid=1, environment={STACK_MARK: "/data"})
    record = ProcessRecord(service="airflow-scheduler", pid=20, start_ticks=1, started_at="", fingerprint="")

    found = service_members(
        SERVICES["airflow-scheduler"], record, folder=FOLDER, members=by_pid((scheduler, worker, driver))
    )

    assert set(found) == {20, 21}


def test_workers_of_a_killed_service_are_still_its_own() -> None:
    worker = replace(BYSTANDER, pid=21, session_id=20, parent_pid=1, environment={STACK_MARK: "/data"})
    record = ProcessRecord(service="airflow-scheduler", pid=20, start_ticks=1, started_at="", fingerprint="")

    assert set(service_members(SERVICES["airflow-scheduler"], record, folder=FOLDER, members=by_pid((worker,)))) == {21}


def test_a_service_without_record_and_strays_has_no_processes() -> None:
    found = service_members(SERVICES["kafka"], None, folder=FOLDER, members=by_pid((BYSTANDER,)))

    assert found == {}


def test_descendants_end_even_when_process_ids_form_a_circle() -> None:
    one = replace(BYSTANDER, pid=20, parent_pid=21)
    two = replace(BYSTANDER, pid=21, parent_pid=20)

    assert set(with_descendants([one], by_pid((one, two)))) == {20, 21}


def test_a_record_is_alive_only_as_the_same_process() -> None:
    record = ProcessRecord(service="kafka", pid=10, start_ticks=1, started_at="", fingerprint="")

    assert record.is_alive(by_pid((BYSTANDER,)))
    assert not record.is_alive(by_pid((replace(BYSTANDER, start_ticks=2),)))
    assert not record.is_alive({})
