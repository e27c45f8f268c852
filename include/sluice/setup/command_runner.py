"""Run other programs so that none of them outlives the bootstrap, print the progress, and ask."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

_MOVE_SECONDS = 1.0
"""How often to look whether a program still moves."""

_LOOK_SECONDS = 0.05
"""How often to look whether a process group has ended; the system offers no way to wait for a group."""

_MESSAGE_CHARACTERS = 400
"""How much of a program's output an error message repeats."""

_ERROR = ("error", "e:", "exception in thread")
"""How uv, apt and Java begin the line with the error."""

_ASIDE = ("hint:", "at ", "... ")
"""How lines begin that explain no error: uv's advice and Java's stack."""


class Progress:
    """Prints one line for each step, with the seconds since the bootstrap began."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._lock = threading.Lock()

    def elapsed_seconds(self) -> float:
        """The seconds since the bootstrap began."""
        return time.monotonic() - self._began

    @staticmethod
    def has_terminal() -> bool:
        """Whether a person reads what is printed, and can answer."""
        return sys.stdin.isatty() and sys.stdout.isatty()

    @staticmethod
    def ask(question: str) -> bool:
        """Ask a person, who agrees with `y` alone."""
        sys.stdout.write(question)
        sys.stdout.flush()
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def report(self, line: str) -> None:
        """Print one line. Several threads may call it at a time."""
        with self._lock:
            sys.stdout.write(f"[{self.elapsed_seconds():5.1f} s] {line}\n")
            sys.stdout.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How a program ended, and what it wrote to stdout and stderr together."""

    exit_code: int
    output: str

    def is_success(self) -> bool:
        """Whether the program ended with exit code 0."""
        return self.exit_code == 0

    def explanation(self) -> str:
        """Why the program failed, as one line: its output from the last error line on, or its last line."""
        lines = [line for line in map(str.strip, self.output.splitlines()) if line and not line.startswith(_ASIDE)]
        errors = [number for number, line in enumerate(lines) if line.lower().startswith(_ERROR)]
        text = "; ".join(lines[errors[-1] :] if errors else lines[-1:])
        if len(text) > _MESSAGE_CHARACTERS:  # the beginning holds what failed, the end why
            half = _MESSAGE_CHARACTERS // 2
            text = f"{text[:half]} … {text[-half:]}"
        return text or f"exit code {self.exit_code} without a message"


class CommandRunner:
    """Runs programs, from any thread, and stops all of them on request.

    Each program runs in a session of its own. So a program that starts others (spark-submit) is stopped together with
    them, and Ctrl-C reaches the bootstrap alone, which then stops the programs.

    Parameters
    ----------
    grace_seconds: how long an interrupted program may take to clean up before it is killed; uv needs less than one
        second.
    """

    def __init__(self, *, grace_seconds: float = 5.0) -> None:
        self._grace_seconds = grace_seconds
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_stopped = False

    def run(
        self,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        is_stoppable: bool = True,
        silence_seconds: float | None = None,
    ) -> CommandResult:
        """Run a program to its end.

        Parameters
        ----------
        command: the program and its arguments; no secret, since every user of the machine can read arguments.
        environment: variables that are added to this process's own.
        directory: where the program runs; the current folder when not given.
        is_stoppable: whether the program may be ended at any moment. A package manager may not: a half-installed
            package makes every later installation fail.
        silence_seconds: the program is ended when nothing has moved for so long: it wrote nothing, and its process
            group took next to no processor time. Without limit when not given. A slow machine is no reason to end it.

        Raises
        ------
        OSError: when the program does not exist or may not be run.
        """
        with tempfile.TemporaryFile() as output:
            process = self._start(
                command, environment=environment, directory=directory, output=output, is_stoppable=is_stoppable
            )
            silent = ""
            try:
                exit_code = (
                    process.wait() if silence_seconds is None else _wait_while_moving(process, output, silence_seconds)
                )
            except subprocess.TimeoutExpired:
                _stop(process, grace_seconds=self._grace_seconds)
                exit_code = process.wait()
                silent = f"\nerror: stopped, because nothing moved for {silence_seconds:g} s\n"
            except BaseException:
                if is_stoppable:
                    _stop(process, grace_seconds=self._grace_seconds)
                raise
            finally:
                with self._lock:
                    self._running.discard(process)
            output.seek(0)
            return CommandResult(exit_code=exit_code, output=output.read().decode(errors="replace") + silent)

    def _start(
        self,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None,
        directory: Path | None,
        output: IO[bytes],
        is_stoppable: bool,
    ) -> subprocess.Popen[bytes]:
        """Start a program unless the bootstrap is stopping; the lock keeps `stop` from missing it."""
        with self._lock:
            if self._is_stopped:
                raise InterruptedError("the bootstrap is stopping")
            process = subprocess.Popen(  # noqa: S603  # the one place that starts programs; no shell is involved
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
                cwd=directory,
                start_new_session=True,
            )
            if is_stoppable:
                self._running.add(process)
            return process

    def stop(self) -> None:
        """Stop every running program that may be stopped, and start no other one."""
        with self._lock:
            self._is_stopped = True
            running = list(self._running)
        for process in running:
            _stop(process, grace_seconds=self._grace_seconds)


def _stop(process: subprocess.Popen[bytes], *, grace_seconds: float) -> None:
    """End a program and everything in its process group, also what outlives the program itself."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):  # the group has no process left
            os.killpg(process.pid, signal_number)
        deadline = time.monotonic() + grace_seconds
        while is_alive := _is_group_alive(process.pid):
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_SECONDS)
        if not is_alive:
            return


_MOVE_TICKS = 5
"""How many clock ticks of the processor count as work. A JVM that hangs takes one now and then for its own threads."""


def _wait_while_moving(process: subprocess.Popen[bytes], output: IO[bytes], silence_seconds: float | None) -> int:
    """Wait for the end of a program as long as it writes or computes, or without limit; its exit code.

    Raises
    ------
    TimeoutExpired: when it did neither for so long.
    """
    if silence_seconds is None:
        return process.wait()
    seen, ticks = 0, 0
    moved_at = time.monotonic()
    while True:
        try:
            return process.wait(min(_MOVE_SECONDS, silence_seconds / 4))
        except subprocess.TimeoutExpired:
            written, used = os.fstat(output.fileno()).st_size, _ticks_of_group(process.pid)
            # What a process that has ended took is no longer counted, so the sum may fall.
            if written != seen or used < ticks or used >= ticks + _MOVE_TICKS:
                seen, ticks, moved_at = written, used, time.monotonic()
            elif time.monotonic() - moved_at > silence_seconds:
                raise


def _is_group_alive(group: int) -> bool:
    """Whether a process of the group runs.

    A process that has ended stays in the group until its parent collects the exit code, and is not counted. The exit
    code of an orphan is collected by the machine's first process, on some machines only after seconds and in many
    containers never.
    Source: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """
    return any(state not in "ZX" for state, _ in _observe_group(group))


def _ticks_of_group(group: int) -> int:
    """The clock ticks of the processor that the processes of a group have taken, with those of their ended children."""
    return sum(ticks for _, ticks in _observe_group(group))


def _observe_group(group: int) -> Iterator[tuple[str, int]]:
    """The state and the clock ticks of each process of a group."""
    for seen in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = seen.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended between two looks
        if int(fields[2]) == group:
            yield fields[0], sum(int(ticks) for ticks in fields[11:15])
