"""Choosing ports."""

from __future__ import annotations

import os
import socket

import pytest

from sluice.errors import StackError, UsageError
from sluice.stack.stack_plan import GRPC_OFFSET, HeldPorts, PortRequest, holder_of, is_free, listened_by
from sluice.stack.stack_records import ChosenPorts, choose_ports, requested_ports

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
