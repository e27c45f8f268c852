"""The ports of a stack: chosen free once, recorded, and used again as long as nobody else has taken them."""

from __future__ import annotations

import json
import os
import random
import socket
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from sluice.errors import StackError, UsageError
from sluice.stack.folder import write_private

LOOPBACK = "127.0.0.1"

_LOWEST = 20_000
_HIGHEST = 22_700
"""Below 32768, where Linux begins to give ports to outgoing connections: a recorded port that lies there would be taken
by chance while the stack is down. The upper end leaves room for `GRPC_OFFSET`."""

GRPC_OFFSET = 10_000
"""SeaweedFS serves gRPC at its HTTP port + 10000 and its own workers count on that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRequest:
    """One port that a service needs.

    Parameters
    ----------
    name: its name in the record and in error messages.
    variable: the environment variable by which a user asks for a certain port; empty when there is none.
    preferred: tried first when nothing is recorded or asked for.
    has_grpc: whether the port `GRPC_OFFSET` above must be free too.
    """

    name: str
    variable: str = ""
    preferred: int | None = None
    has_grpc: bool = False

    def numbers(self, port: int) -> tuple[int, ...]:
        """Every port that is taken when this request is served by `port`."""
        return (port, port + GRPC_OFFSET) if self.has_grpc else (port,)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPorts:
    """The ports of a stack by name, and the recorded ones that were given up because someone else has taken them."""

    ports: Mapping[str, int]
    given_up: Mapping[str, int]


def is_free(port: int) -> bool:
    """Whether a service could listen on this port of the loopback address now."""
    with socket.socket() as probe:
        # As servers do: a port whose old connections are in TIME_WAIT is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


class HeldPorts:
    """Ports that are listened on for a service until it starts, so that nobody else chooses them meanwhile.

    Parameters
    ----------
    numbers: the ports; one that is taken is not held.
    """

    def __init__(self, numbers: Iterable[int]) -> None:
        self._sockets = {number: held for number in numbers if (held := _listen(number)) is not None}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number in list(self._sockets):
            self.release(number)

    def release(self, number: int) -> None:
        """Give a port to the service that starts now."""
        if held := self._sockets.pop(number, None):
            held.close()


def _listen(number: int) -> socket.socket | None:
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((LOOPBACK, number))
        held.listen()
    except OSError:  # taken; starting the service says so
        held.close()
        return None
    return held


def read_ports(path: Path) -> dict[str, int]:
    """The recorded ports; empty when none were recorded yet."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def write_ports(path: Path, ports: Mapping[str, int]) -> None:
    """Record the ports."""
    write_private(path, json.dumps(dict(ports), indent=2) + "\n")


def requested_ports(requests: Collection[PortRequest], environ: Mapping[str, str] | None = None) -> dict[str, int]:
    """The ports that the user asks for through environment variables, by name.

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
    """Choose a port for every request: the one asked for, else the recorded one, else the preferred one, else any.

    Parameters
    ----------
    requests: what is needed.
    asked: the ports the user asks for; they are never replaced.
    recorded: the ports of the last `up`.
    ours: ports that this stack's own running processes listen on; they count as free.
    is_running: whether any process of this stack runs.
    is_free: whether a port can be listened on.
    pick: proposes a port.

    Raises
    ------
    StackError: when a port that was asked for is taken, or when a recorded one is taken while parts of the stack run:
        they know the old port, so replacing it would cut them off.
    """
    chosen: dict[str, int] = {}
    given_up: dict[str, int] = {}
    taken: set[int] = set()

    def usable(request: PortRequest, port: int) -> bool:
        return all(n not in taken and (n in ours or is_free(n)) for n in request.numbers(port))

    for request in sorted(requests, key=lambda r: (r.name not in asked, r.name not in recorded)):
        wanted = asked.get(request.name) or recorded.get(request.name)
        port = wanted
        if port is None or not usable(request, port):
            if wanted is not None:
                _refuse_replacement(request, wanted, is_asked=request.name in asked, is_running=is_running)
                given_up[request.name] = wanted
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
            next_step="Stop that process and run `sluice stack up` again, or `sluice stack down` first to choose anew.",
        )


def listened_by(pids: Collection[int]) -> set[int]:
    """The TCP ports that some processes listen on."""
    return {port for port, pid in _listeners() if pid in pids}


def holder_of(port: int) -> str:
    """Who listens on a port, in words: the process's name and id where they can be seen."""
    for listened, pid in _listeners():
        if listened == port and pid:
            try:
                return f"{psutil.Process(pid).name()} (pid {pid})"
            except psutil.NoSuchProcess:
                break
    return "another process"


def _listeners() -> list[tuple[int, int | None]]:
    """Every TCP port that is listened on, with the process where we may see it."""
    connections = psutil.net_connections(kind="tcp")
    return [(c.laddr[1], c.pid) for c in connections if c.status == psutil.CONN_LISTEN and len(c.laddr) == 2]
