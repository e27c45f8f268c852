"""What a stack leaves behind, found without the code that is tested."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil
from tests.fixtures.stack import Stack

from sluice.stack.environment import STACK_MARK
from sluice.stack.stack_plan import is_free
from sluice.stack.stack_records import read_ports

Answer = TypeVar("Answer")


def processes_of(stack: Stack) -> list[psutil.Process]:
    """Every living process with the stack's mark or in PostgreSQL's folder."""
    found = []
    for process in psutil.process_iter():
        try:
            is_marked = process.environ().get(STACK_MARK) == str(stack.data)
            is_postgres = process.name() == "postgres" and process.cwd() == str(stack.data / "postgres")
            if (is_marked or is_postgres) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def asked_of_processes(stack: Stack, question: Callable[[psutil.Process], Answer]) -> list[Answer]:
    """The answers of the living processes of a stack; a process that ends meanwhile has none."""
    answers: list[Answer] = []
    for process in processes_of(stack):
        with suppress(psutil.NoSuchProcess):
            answers.append(question(process))
    return answers


def command_line(process: psutil.Process) -> str:
    """The command line of a process."""
    return " ".join(process.cmdline())


def listening_ports(process: psutil.Process) -> list[int]:
    """The ports that a process listens on."""
    found = process.net_connections(kind="inet")
    return [connection.laddr.port for connection in found if connection.status == psutil.CONN_LISTEN]


def pid_of(process: psutil.Process) -> int:
    """The id of a process."""
    return process.pid


def umask_of(process: psutil.Process) -> str:
    """The permissions that a process withholds from all files it creates, as the kernel writes them."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError) as error:
        raise psutil.NoSuchProcess(process.pid) from error
    return next(line.split()[1] for line in lines if line.startswith("Umask:"))


def listening_addresses(process: psutil.Process) -> list[str]:
    """The addresses that a process listens on."""
    found = process.net_connections(kind="inet")
    return [connection.laddr.ip for connection in found if connection.status == psutil.CONN_LISTEN]


def assert_nothing_is_left(stack: Stack) -> None:
    """No process, no port and no socket of the stack; another stack that was killed may have left sockets there."""
    assert processes_of(stack) == []
    ports = read_ports(stack.data / "ports.json")
    assert [name for name, port in ports.items() if not is_free(port)] == []
    begun = (stack.data / "lock").stat().st_mtime  # made by the first command on the stack, and never written
    sockets = [path for port in ports.values() for path in Path("/tmp").glob(f"seaweedfs-*{port}.sock")]  # noqa: S108
    assert [path for path in sockets if path.stat().st_mtime >= begun] == []
