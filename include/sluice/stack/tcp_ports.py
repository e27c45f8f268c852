"""TCP ports on loopback: which a service needs, which are free, and which process listens on one."""

from __future__ import annotations

import socket
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import psutil

LOOPBACK = "127.0.0.1"

GRPC_OFFSET = 10_000
"""SeaweedFS serves gRPC at its HTTP port + 10000, and its own workers rely on that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PortRequest:
    """One port that a service needs.

    Parameters
    ----------
    name: its name in the record and in error messages.
    variable: the environment variable by which a user asks for a certain port; empty when there is none.
    preferred: tried first when no port is recorded or asked for.
    has_grpc: whether the port `GRPC_OFFSET` above must be free too.
    """

    name: str
    variable: str = ""
    preferred: int | None = None
    has_grpc: bool = False

    def numbers(self, port: int) -> tuple[int, ...]:
        """Every port that the service uses when `port` is chosen for this request."""
        return (port, port + GRPC_OFFSET) if self.has_grpc else (port,)


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
    """Ports that this process listens on until their service starts, so that no other process takes them meanwhile.

    Parameters
    ----------
    numbers: the ports; a taken one is not held.
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
        """Stop listening on a port, because its service starts now."""
        if held := self._sockets.pop(number, None):
            held.close()


def _listen(number: int) -> socket.socket | None:
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        held.bind((LOOPBACK, number))
        held.listen()
    except OSError:  # taken; the start of its service reports that
        held.close()
        return None
    return held


def listened_by(pids: Collection[int]) -> set[int]:
    """The TCP ports that some processes listen on."""
    return {port for port, pid in _listeners() if pid in pids}


def holder_of(port: int) -> str:
    """The process that listens on a port, for a message: its name and process id where they can be seen."""
    for listened, pid in _listeners():
        if listened == port and pid:
            try:
                return f"{psutil.Process(pid).name()} (pid {pid})"
            except psutil.NoSuchProcess:
                break
    return "another process"


def _listeners() -> list[tuple[int, int | None]]:
    """Every TCP port that a process listens on, with the process id where it can be seen."""
    connections = psutil.net_connections(kind="tcp")
    return [(c.laddr[1], c.pid) for c in connections if c.status == psutil.CONN_LISTEN and len(c.laddr) == 2]
