"""What is decided before anything starts: the plan of one stack, and the steps by which `up` carries it out."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from sluice.stack.credentials import Credentials
from sluice.stack.folder import StackFolder
from sluice.stack.tcp_ports import LOOPBACK, PortRequest
from sluice.stack.tools import Tools


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPlan:
    """Everything that a service needs to know in order to be started.

    Parameters
    ----------
    home: the project's root.
    folder: the stack's data folder.
    ports: every port by name.
    credentials: every secret.
    tools: the programs.
    environment: the settings of Airflow, drivers and commands; empty until they are made from the rest.
    """

    home: Path
    folder: StackFolder
    ports: Mapping[str, int]
    credentials: Credentials
    tools: Tools
    environment: Mapping[str, str]

    def address(self, port: str) -> str:
        """`host:port` of a named port."""
        return f"{LOOPBACK}:{self.ports[port]}"

    def url(self, port: str) -> str:
        """`http://host:port` of a named port."""
        return f"http://{self.address(port)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """How a process is started.

    Parameters
    ----------
    argv: the command line, without any secret.
    working_folder: where it runs.
    environment: what it gets beyond the user's home, locale and time zone; secrets go here. Airflow gets all settings
        of the stack, the other services only those that they need.
    """

    argv: tuple[str, ...]
    working_folder: Path
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Health:
    """What a probe saw: whether the service answers, and if not, why."""

    is_healthy: bool
    detail: str = ""


HEALTHY = Health(True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """A step that starts a process which stays.

    Parameters
    ----------
    name: its name in commands, records and log files.
    title: what it is, for people.
    needs: the steps that must be done before it starts.
    ports: what it listens on; the first is the one that people connect to.
    prepare: makes its folders and files. It runs before each start and changes nothing that exists.
    command: how it is started.
    probe: asks the running service for a real answer. The second argument is the time since which an answer counts:
        what was written before (a heartbeat of the process that was killed) proves nothing. A probe never raises for a
        service that does not answer, and returns within a few seconds.
    start_seconds: how long after its start it may take to become healthy.
    recovery_seconds: how long `up` waits for a running service that does not answer before it restarts it.
    stop_signal: the signal that asks it to end by itself.
    stop_seconds: how long it may take to end before it is killed.
    is_foundation: whether the other services, and the drivers that they started, use it until they have ended.
    stray_name: the name of its child processes when they hide the environment they were started with. They are
        recognised by running in the service's working folder instead. Empty when there are none.
    outside_files: what it leaves outside the stack's folder when it is killed, from the ports by name.
    """

    name: str
    title: str
    needs: tuple[str, ...] = ()
    ports: tuple[PortRequest, ...] = ()
    prepare: Callable[[StackPlan], None] = lambda _: None
    command: Callable[[StackPlan], Command]
    probe: Callable[[StackPlan, datetime], Health]
    start_seconds: float
    recovery_seconds: float = 5.0
    stop_signal: signal.Signals = signal.SIGTERM
    stop_seconds: float = 8.0
    is_foundation: bool = False
    stray_name: str = ""
    outside_files: Callable[[Mapping[str, int]], Iterable[Path]] = lambda _: ()


RunTool = Callable[[str, Command], None]
"""Runs a command as a process of this stack, with its output in the named log; raises StackError when it fails."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """A step that ends: it makes what does not exist yet, and does nothing when everything exists.

    Parameters
    ----------
    name: its name.
    title: what it does, for people.
    needs: the steps that must be done before.
    completes: the service that is not complete without it; empty when only other steps need it.
    run: does it; the second argument runs a command as a process of this stack and waits for it.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    completes: str = ""
    run: Callable[[StackPlan, RunTool], None]


Step = Service | Preparation
