"""Which processes belong to a stack, and which ports it takes."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from sluice.errors import StackError, UsageError
from sluice.processes.host_processes import LivingProcess, with_descendants
from sluice.stack.environment import STACK_MARK
from sluice.stack.folder import StackFolder
from sluice.stack.services import all_services
from sluice.stack.stack_plan import GRPC_OFFSET, HeldPorts, PortRequest, holder_of, is_free, listened_by
from sluice.stack.stack_records import (
    ChosenPorts,
    ProcessRecord,
    choose_ports,
    requested_ports,
    service_members,
    stack_members,
)

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


UI = PortRequest(name="ui", variable="SLUICE_UI_PORT", preferred=8080)
STORE = PortRequest(name="store", variable="SLUICE_STORE_PORT", has_grpc=True)


def choose(
    *,
    asked: dict[str, int] | None = None,
    recorded: dict[str, int] | None = None,
    taken: set[int] = frozenset(),  # type: ignore[assignment]  # never changed
    ours: set[int] = frozenset(),  # type: ignore[assignment]  # never changed
    is_running: bool = False,
) -> ChosenPorts:
    proposals = iter(range(20_001, 20_100))
    return choose_ports(
        (UI, STORE),
        asked=asked or {},
        recorded=recorded or {},
        ours=ours,
        is_running=is_running,
        is_free=lambda port: port not in taken,
        pick=lambda: next(proposals),
    )


def test_a_new_stack_takes_the_preferred_port_and_any_other() -> None:
    assert choose().ports == {"ui": 8080, "store": 20_001}


def test_a_taken_preferred_port_is_not_chosen() -> None:
    chosen = choose(taken={8080})

    assert chosen.ports == {"ui": 20_001, "store": 20_002}
    assert chosen.given_up == {}


def test_a_port_whose_grpc_port_is_taken_is_not_chosen() -> None:
    assert choose(taken={20_001 + GRPC_OFFSET}).ports["store"] == 20_002


def test_recorded_ports_are_used_again() -> None:
    recorded = {"ui": 20_050, "store": 20_051}

    assert choose(recorded=recorded).ports == recorded


def test_ports_of_our_own_running_services_count_as_free() -> None:
    recorded = {"ui": 20_050, "store": 20_051}

    chosen = choose(recorded=recorded, taken={20_050, 20_051}, ours={20_050, 20_051}, is_running=True)

    assert chosen.ports == recorded


def test_a_recorded_port_that_was_taken_is_replaced_while_nothing_runs() -> None:
    chosen = choose(recorded={"ui": 20_050, "store": 20_051}, taken={20_050, 8080})

    assert chosen.ports == {"ui": 20_001, "store": 20_051}
    assert chosen.given_up == {"ui": 20_050}


def test_a_recorded_port_that_was_taken_is_an_error_while_parts_run() -> None:
    with pytest.raises(StackError, match=r"Port 20050, recorded for ui, was taken by .* while parts of the stack run"):
        choose(recorded={"ui": 20_050}, taken={20_050}, is_running=True)


def test_a_port_that_is_asked_for_wins_over_the_recorded_one() -> None:
    assert choose(asked={"ui": 9000}, recorded={"ui": 20_050}).ports["ui"] == 9000


def test_a_port_that_is_asked_for_and_taken_is_never_replaced() -> None:
    with pytest.raises(StackError, match=r"SLUICE_UI_PORT asks for port 9000, but .* listens on it already"):
        choose(asked={"ui": 9000}, taken={9000})


def test_the_port_that_one_service_asks_for_is_not_given_to_another() -> None:
    assert choose(asked={"store": 8080}).ports == {"ui": 20_001, "store": 8080}


@pytest.mark.parametrize("text", ["http", "80", "70000", "-1", "8080.0"])
def test_a_requested_port_must_be_a_port_number(text: str) -> None:
    with pytest.raises(UsageError, match=r"SLUICE_UI_PORT is '.*', but a port is a number from 1024 to 65535"):
        requested_ports((UI, STORE), {"SLUICE_UI_PORT": text})


def test_empty_variables_request_no_port() -> None:
    assert requested_ports((UI, STORE), {"SLUICE_UI_PORT": "", "SLUICE_STORE_PORT": "9000"}) == {"store": 9000}


def test_a_held_port_is_not_free_until_it_is_released() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    with HeldPorts([port]) as held:
        assert not is_free(port)
        assert port in listened_by({os.getpid()})
        assert holder_of(port).endswith(f"(pid {os.getpid()})")
        held.release(port)
        assert is_free(port)
    with HeldPorts([port]):
        pass
    assert is_free(port)


def test_a_taken_port_is_not_held() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with HeldPorts([port]) as held:
            held.release(port)

        assert not is_free(port)
