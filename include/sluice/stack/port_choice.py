"""The ports of a stack: chosen once, recorded, and used again while no other process has taken them."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from sluice.errors import StackError, UsageError
from sluice.processes.living_processes import observe_processes
from sluice.stack.folder import StackFolder, write_private
from sluice.stack.process_records import stack_members
from sluice.stack.services import all_services, all_steps
from sluice.stack.stack_plan import Service, Step
from sluice.stack.tcp_ports import PortRequest, holder_of, is_free, listened_by

_LOWEST = 20_000
_HIGHEST = 22_700
"""Below 32768, where Linux begins to give ports to outgoing connections: a recorded port above could be taken by chance
while the stack is down. The upper end leaves room for `GRPC_OFFSET`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPorts:
    """The ports of a stack by name, and the recorded ones that were given up because another process has taken them."""

    ports: Mapping[str, int]
    given_up: Mapping[str, int]


def read_ports(path: Path) -> dict[str, int]:
    """The recorded ports by name; empty when none were recorded yet."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def write_ports(path: Path, ports: Mapping[str, int]) -> None:
    """Record the ports."""
    write_private(path, json.dumps(dict(ports), indent=2) + "\n")


def requested_ports(requests: Collection[PortRequest], environ: Mapping[str, str] | None = None) -> dict[str, int]:
    """The ports that a user asks for through environment variables, by name.

    Raises
    ------
    UsageError: when a variable does not hold a port number.
    """
    values = os.environ if environ is None else environ
    return {
        request.name: _port_number(values[request.variable], variable=request.variable)
        for request in requests
        if request.variable and values.get(request.variable)
    }


def _port_number(text: str, *, variable: str) -> int:
    if not text.isdecimal() or not 1024 <= int(text) <= 65535:
        raise UsageError(f"{variable} is {text!r}, but a port is a number from 1024 to 65535.")
    return int(text)


def choose_ports(
    requests: Collection[PortRequest],
    *,
    asked: Mapping[str, int],
    recorded: Mapping[str, int],
    ours: Collection[int],
    is_running: bool,
    is_free: Callable[[int], bool] = is_free,
    pick: Callable[[], int] = lambda: random.randint(_LOWEST, _HIGHEST),  # noqa: S311  # no secret: any free port will do
) -> ChosenPorts:
    """Choose a port for every request: the one asked for, or the recorded one, or the preferred one, or any.

    Parameters
    ----------
    requests: the ports that are needed.
    asked: the ports the user asks for; they are never replaced.
    recorded: the ports of the last `up`.
    ours: the ports that this stack's own processes listen on; they count as free.
    is_running: whether any process of this stack runs.
    is_free: whether a port can be listened on.
    pick: proposes a port.

    Raises
    ------
    StackError: when a port that was asked for is taken, or when a recorded one is taken while parts of the stack run:
        they use the old port, so replacing it would cut them off.
    """
    chosen: dict[str, int] = {}
    given_up: dict[str, int] = {}
    taken: set[int] = set()

    def usable(request: PortRequest, port: int) -> bool:
        return all(n not in taken and (n in ours or is_free(n)) for n in request.numbers(port))

    for request in sorted(requests, key=lambda r: (r.name not in asked, r.name not in recorded)):
        known = asked.get(request.name) or recorded.get(request.name)
        port = known
        if port is None or not usable(request, port):
            if known is not None:
                _refuse_replacement(request, known, is_asked=request.name in asked, is_running=is_running)
                given_up[request.name] = known
            preferred = (request.preferred,) if request.preferred else ()
            port = next(p for p in chain(preferred, iter(pick, None)) if usable(request, p))
        chosen[request.name] = port
        taken.update(request.numbers(port))
    return ChosenPorts(ports=chosen, given_up=given_up)


def _refuse_replacement(request: PortRequest, port: int, *, is_asked: bool, is_running: bool) -> None:
    if is_asked:
        raise StackError(
            f"{request.variable} asks for port {port}, but {holder_of(port)} listens on it already.",
            next_step=f"Stop that process, or set {request.variable} to another port.",
        )
    if is_running:
        raise StackError(
            f"Port {port}, recorded for {request.name}, was taken by {holder_of(port)} while parts of the stack run.",
            next_step="Stop that process and run `sluice stack up` again. `sluice stack down` before it lets it choose "
            "other ports.",
        )


def port_requests(steps: Mapping[str, Step]) -> list[PortRequest]:
    """The ports that the services among some steps need."""
    return [port for step in steps.values() if isinstance(step, Service) for port in step.ports]


def choose_stack_ports(steps: Mapping[str, Step], folder: StackFolder) -> ChosenPorts:
    """Choose the ports of the selected services. The others keep their recorded ports, taken or not.

    Parameters
    ----------
    steps: the selected steps.
    folder: the stack.

    Raises
    ------
    UsageError, StackError: see `requested_ports` and `choose_ports`.
    """
    selected = port_requests(steps)
    requests = port_requests(all_steps())
    recorded = read_ports(folder.ports)
    resting = {n for r in requests if r not in selected and r.name in recorded for n in r.numbers(recorded[r.name])}
    members = stack_members(folder, everything=observe_processes(), services=all_services().values())
    return choose_ports(
        requests,
        asked=requested_ports(selected),
        recorded=recorded,
        ours=listened_by(members) | resting,
        is_running=bool(members),
    )
