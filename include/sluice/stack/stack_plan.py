"""What is decided before anything starts: the programs that the stack runs, the plan of one stack, the TCP ports for
it, and the steps of `up`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from sluice.errors import StackError
from sluice.setup.command_runner import CommandRunner
from sluice.setup.java_runtime import search_java
from sluice.stack.credentials import Credentials
from sluice.stack.folder import StackFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Where the programs lie.

    Parameters
    ----------
    python: the interpreter of this environment.
    java_home: a supported Java.
    jars: the folder that holds one folder of jars for each class path of ivy.xml.
    spark_home: the folder of the installed pyspark.
    """

    python: Path
    java_home: Path
    jars: Path
    spark_home: Path

    @property
    def java(self) -> Path:
        """The Java program."""
        return self.java_home / "bin" / "java"


def find_tools(home: Path) -> Tools:
    """Find all programs.

    Parameters
    ----------
    home: the project's root, whose `.sluice/bootstrap.json` holds what the bootstrap found.

    Raises
    ------
    PrerequisiteError: when there is no supported Java.
    StackError: when the jars are missing.
    """
    bootstrap = _read_bootstrap(home)
    return Tools(
        python=Path(sys.executable),
        java_home=_find_java_home(bootstrap.get("java_home")),
        jars=_find_jars(bootstrap.get("jars")),
        spark_home=package_folder("pyspark"),
    )


def tools_of(environment: Mapping[str, str]) -> Tools:
    """The programs that a stack was started with, from its environment."""
    return Tools(
        python=Path(environment["PYSPARK_PYTHON"]),
        java_home=Path(environment["JAVA_HOME"]),
        jars=Path(environment["SLUICE_JARS"]),
        spark_home=Path(environment["SPARK_HOME"]),
    )


def package_folder(package: str) -> Path:
    """The folder of an installed package, found without importing it.

    Raises
    ------
    StackError: when it is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise StackError(
            f"The Python package {package} is not installed.",
            next_step="Install the project with its extra `local`, for example `uv sync --extra local`.",
        )
    return Path(next(iter(spec.submodule_search_locations)))


def program(name: str) -> Path:
    """The path of a program that an installed package has put beside the interpreter.

    Raises
    ------
    StackError: when it is not there.
    """
    path = Path(sys.executable).parent / name
    if not path.exists():
        raise StackError(
            f"The program {name} is not installed beside {sys.executable}.",
            next_step="Install the project with its extra `local`, for example `uv sync --extra local`.",
        )
    return path


def _read_bootstrap(home: Path) -> dict[str, str]:
    path = home / ".sluice" / "bootstrap.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _find_jars(recorded: str | None) -> Path:
    jars = os.environ.get("SLUICE_JARS") or recorded
    if not jars:
        raise StackError(
            "The jars of Spark and Kafka are not resolved: neither SLUICE_JARS nor the bootstrap names their folder.",
            next_step="Run `make setup`, which resolves them.",
        )
    for class_path in ("spark", "kafka"):
        if not any((Path(jars) / class_path).glob("*.jar")):
            raise StackError(
                f"{Path(jars) / class_path} holds no jar.", next_step="Run `make setup`, which resolves them."
            )
    return Path(jars).resolve()


def _find_java_home(recorded: str | None) -> Path:
    """The Java that the user chose when it is supported, otherwise the one that the bootstrap found."""
    runner = CommandRunner()
    chosen = search_java(environment=os.environ, runner=runner, folders=())
    found = search_java(environment={"JAVA_HOME": recorded or ""}, runner=runner, folders=())
    java = chosen.supported() or found.supported()
    if java is None:
        raise chosen.missing("neither JAVA_HOME, PATH nor `make setup` names another")
    return java.home


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
