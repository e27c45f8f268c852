"""The two kinds of steps of an `up`: a service that stays, and a preparation that ends."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from sluice.stack.stack_plan import StackPlan
from sluice.stack.tcp_ports import PortRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """How a process is started.

    Parameters
    ----------
    argv: the command line, without any secret.
    working_folder: where it runs.
    environment: what it gets beyond the user's home, locale and time zone; secrets go here. Airflow gets all settings
        of the stack, the other services only what they need.
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
    """A process that stays.

    Parameters
    ----------
    name: its name in commands, records and log files.
    title: what it is, for people.
    needs: the steps that must be done before it starts.
    ports: what it listens on, the one that people know first.
    prepare: makes its folders and files; runs before each start, changes nothing that is already there.
    command: how it is started.
    probe: asks the running service for a real answer. The second argument is the time since which an answer counts:
        what was written before (a heartbeat of the process that was killed) proves nothing. Never raises for a service
        that does not answer, and returns within a few seconds.
    start_seconds: how long after its start it may take until it is healthy.
    recovery_seconds: how long `up` lets a running service that does not answer be before it starts it anew.
    stop_signal: what asks it to end by itself.
    stop_seconds: how long it may take to end before it is killed.
    is_foundation: whether the others, and the drivers that they started, use it until they have ended.
    stray_name: the name of its child processes when they hide the environment they were started with; they are
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """Work that ends: it makes what is not there yet, and does nothing when all is there.

    Parameters
    ----------
    name: its name.
    title: what it does, for people.
    needs: the steps that must be done before.
    completes: the service that is not complete without it; empty when only other steps ask for it.
    run: does it; the second argument runs a command as a process of this stack and waits for it.
    """

    name: str
    title: str
    needs: tuple[str, ...]
    completes: str = ""
    run: Callable[[StackPlan, RunTool], None]


RunTool = Callable[[str, Command], None]
"""Runs a command as a process of this stack, its output going to the named log, and raises StackError when it fails."""

Step = Service | Preparation
