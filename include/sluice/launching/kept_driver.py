"""Asks a driver that was kept after an increment to run the next one, and starts such a driver when there is none.

A driver is kept for one stream. It has the JVM, the session and the compiled plans of the increments before, so the
next one begins at once (decision 0066). It listens on a socket that only its user can reach. Each increment is one
connection: the request, its acceptance, its end. A driver that was started with other settings, code or declarations
than the deployment has now (`deployment_digest`) refuses and ends.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO

from pydantic import BaseModel, ConfigDict
from tenacity import Retrying, retry_if_exception_type, stop_after_delay, wait_fixed

from sluice.declarations.engine_declaration import EngineDeclaration
from sluice.errors import LaunchError
from sluice.launching.job_command import KeepIncrements
from sluice.launching.job_environment import job_environment
from sluice.launching.launch_settings import launch_conf
from sluice.launching.spark_submit import SparkConnection, spark_submit_command
from sluice.processes.deadline import wait_until
from sluice.processes.driver_processes import kill_group
from sluice.processes.log_rotation import rotate_if_full
from sluice.settings import Settings

_LISTENS_WITHIN_SECONDS = 60.0
"""How long a new driver may take until it listens: it needs Python and Spark's JVM for that, and no session."""

_ACCEPTS_WITHIN_SECONDS = 10.0
"""A driver that is idle answers at once. One that does not is at work on another increment, or hangs."""

_LOGGED_WITHIN_SECONDS = 10.0
"""How long the end of an increment's log may take to arrive; what comes later is in the log of the driver only."""

_LOOK_SECONDS = 0.1
_LONGEST_MESSAGE_BYTES = 64 * 1024
_CODE = frozenset({".py", ".sql", ".yaml", ".yml", ".json", ".avsc", ".proto", ".desc"})


class IncrementRequest(BaseModel):
    """An increment that is asked for. digest: of the deployment that asks. launched_by: who, for the ledger."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    digest: str
    launched_by: str


class DriverAnswer(BaseModel):
    """What a kept driver says: whether it takes the increment, and later how that ended.

    pid: the leader of its process group. exit_code: the increment's, as a job of its own would have it.
    last_line: with which the accepted increment will end in the log, where it arrives a moment after the answer,
        because Spark's JVM passes it on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    state: Literal["accepted", "outdated", "ended"]
    pid: int = 0
    exit_code: int = 0
    last_line: str = ""


class NoKeptDriverError(LaunchError):
    """No driver took the increment, and none has begun it: it can be run in another way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptDriver:
    """The driver of a stream's increments.

    address: the socket at which it listens. command: how it is started.
    environment: variables that it gets beside those of this process.
    log_file: where it logs; the increments follow each other there. largest_log_bytes: at which it is rotated.
    """

    address: Path
    command: Sequence[str]
    environment: Mapping[str, str]
    log_file: Path
    largest_log_bytes: int

    def run(
        self, request: IncrementRequest, *, on_line: Callable[[str], object], on_start: Callable[[int], object]
    ) -> int:
        """Have the driver run an increment, and wait for its end.

        Parameters
        ----------
        on_line: is called with each line of the increment's log.
        on_start: is called with the leader of the driver's process group, as soon as it has taken the increment.

        Returns
        -------
        The exit status of the increment.

        Raises
        ------
        NoKeptDriverError: when no driver took it.
        LaunchError: when the driver ended while it ran it.
        """
        if self.log_file.exists():
            rotate_if_full(self.log_file, largest_bytes=self.largest_log_bytes)
        for is_new in (False, True):
            with self._connected(starts=is_new) as connection, self._log() as file:
                if connection is None:
                    continue
                answer = _ask(connection, request)
                if answer is None or answer.state == "outdated":
                    continue
                on_start(answer.pid)
                return _awaited_end(connection, _IncrementLog(file=file, on_line=on_line, last_line=answer.last_line))
        raise NoKeptDriverError(
            f"No driver at {self.address} took the increment.", next_step=f"See {self.log_file} for its reason."
        )

    @contextmanager
    def _connected(self, *, starts: bool) -> Iterator[socket.socket | None]:
        """A connection with the driver; none when no driver listens and none is to be started."""
        require_private_folder(self.address.parent)
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_ACCEPTS_WITHIN_SECONDS)
            try:
                connection.connect(str(self.address))
            except OSError:
                if not starts:
                    yield None
                    return
                self._start(connection)
            yield connection

    def _start(self, connection: socket.socket) -> None:
        """Start a driver and connect with it."""
        pid = self._spawn()

        def connect() -> None:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                raise NoKeptDriverError(
                    f"The driver ended with status {os.waitstatus_to_exitcode(status)} before it listened.",
                    next_step=f"See {self.log_file}.",
                )
            connection.connect(str(self.address))

        patiently = Retrying(
            retry=retry_if_exception_type(OSError),
            stop=stop_after_delay(_LISTENS_WITHIN_SECONDS),
            wait=wait_fixed(_LOOK_SECONDS),
            reraise=True,
        )
        try:
            patiently(connect)
        except OSError as error:
            kill_group(pid)
            os.waitpid(pid, 0)
            raise NoKeptDriverError(
                f"The driver did not listen within {_LISTENS_WITHIN_SECONDS:.0f} s.", next_step=f"See {self.log_file}."
            ) from error

    def _spawn(self) -> int:
        """Start a driver that outlives this process; the leader of its session and process group."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        return os.posix_spawn(
            self.command[0],
            list(self.command),
            job_environment(os.environ, own=self.environment),
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(self.log_file), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )

    @contextmanager
    def _log(self) -> Iterator[TextIO]:
        """The driver's log, from its end on."""
        self.log_file.parent.mkdir(parents=True, exist_ok=True)
        self.log_file.touch()
        with self.log_file.open(encoding="utf-8", errors="replace") as log:
            log.seek(0, os.SEEK_END)
            yield log


def _ask(connection: socket.socket, request: IncrementRequest) -> DriverAnswer | None:
    """Ask for an increment; none when the driver does not answer."""
    try:
        send_line(connection, request)
        text = receive_line(connection)
    except OSError:
        return None
    return DriverAnswer.model_validate_json(text) if text else None


def _awaited_end(connection: socket.socket, log: _IncrementLog) -> int:
    """Hand on the log of the increment until it has ended; its exit status."""
    connection.settimeout(_LOOK_SECONDS)
    text: bytes | None = None
    while text is None:
        try:
            text = receive_line(connection)
        except TimeoutError:
            text = None
        except OSError:
            text = b""
        log.hand_on()
    if not text:
        raise LaunchError(
            "The kept driver ended while it ran the increment.",
            next_step="Run the increment again: what it left unfinished is finished then.",
        )
    wait_until(log.hand_on, bool, seconds=_LOGGED_WITHIN_SECONDS, poll_seconds=_LOOK_SECONDS)
    return DriverAnswer.model_validate_json(text).exit_code


@dataclass(slots=True, kw_only=True)
class _IncrementLog:
    """The lines of one increment in the log of its driver. last_line: with which they end."""

    file: TextIO
    on_line: Callable[[str], object]
    last_line: str
    is_over: bool = False

    def hand_on(self) -> bool:
        """Hand on the lines that have come. Returns whether the last one has."""
        while not self.is_over and (line := self.file.readline()):
            self.is_over = self.last_line in line
            if not self.is_over:
                self.on_line(line.rstrip("\n"))
        return self.is_over


def send_line(connection: socket.socket, message: BaseModel) -> None:
    """Send a message as one line of JSON."""
    connection.sendall(message.model_dump_json().encode() + b"\n")


def receive_line(connection: socket.socket) -> bytes:
    """Receive one line; empty when the other side has closed the connection.

    Raises
    ------
    TimeoutError: when nothing came within the timeout of the connection.
    """
    line = b""
    while not line.endswith(b"\n") and len(line) < _LONGEST_MESSAGE_BYTES:
        there = connection.recv(_LONGEST_MESSAGE_BYTES, socket.MSG_PEEK)  # the next message may be there, too
        if not there:
            return b""
        line += connection.recv(there.find(b"\n") + 1 or len(there))
    return line


def kept_driver_of(
    stream: str, engine: EngineDeclaration, settings: Settings, connection: SparkConnection
) -> KeptDriver:
    """The driver that is kept for the increments of a stream, whether it runs or not.

    Its socket lies in a folder of this user, under a short name: the path of a socket has at most 108 characters. One
    that is started in another way (a connection that changed, more memory) has another name.

    Raises
    ------
    LaunchError: when `spark-submit` is not found.
    """
    home = settings.home
    conf = launch_conf(home=home, jars=settings.jars, engine=engine, is_bounded=True, master=connection.master)
    name = hashlib.sha256(json.dumps([str(home), str(settings.pipelines), stream, connection.master, conf]).encode())
    address = Path(tempfile.gettempdir()) / f"sluice-{os.getuid()}" / f"{name.hexdigest()[:32]}.socket"
    job = KeepIncrements(stream=stream, socket=str(address), kept_seconds=str(engine.kept_minutes * 60))
    return KeptDriver(
        address=address,
        command=spark_submit_command(connection, job, home=home, conf=conf, name=f"sluice {stream}, kept"),
        environment={"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable},
        log_file=settings.logs / stream / "kept-driver.log",
        largest_log_bytes=settings.driver_log_bytes,
    )


def require_private_folder(folder: Path) -> None:
    """Create the folder of the sockets, which only this user may enter.

    Raises
    ------
    NoKeptDriverError: when it belongs to somebody else, or others may enter it.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise NoKeptDriverError(
            f"{folder} is not a folder that only this user may enter.", next_step="Remove it, or see who made it."
        )


def deployment_digest(settings: Settings) -> str:
    """SHA-256 over what a driver has loaded: the settings, and the code and declarations of the deployment.

    Files count by name, size and time of change. Modules that a transformation imports from elsewhere do not count.
    """
    digest = hashlib.sha256(json.dumps([settings.model_dump_json(), *settings.secret_values()]).encode())
    for folder in (settings.pipelines, settings.home / "jobs", Path(__file__).parents[1]):
        for file in sorted(folder.rglob("*")):
            if file.suffix in _CODE and file.is_file():
                found = file.stat()
                digest.update(f"{file} {found.st_size} {found.st_mtime_ns}\n".encode())
    return digest.hexdigest()
