"""Run other programs so that none of them outlives the bootstrap."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_LOOK_SECONDS = 0.05
"""How often it is looked whether a process group has ended; the system offers nothing to wait on for a group."""

_MESSAGE_CHARACTERS = 400
"""Bounds how much of a program's output is repeated in one error sentence."""

_ERROR = ("error", "e:", "exception in thread")
"""How uv, apt and Java begin the line that says what went wrong."""

_ASIDE = ("hint:", "at ", "... ")
"""How lines begin that explain nothing: uv's advice and Java's stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """How a program ended, and what it wrote to stdout and stderr together."""

    exit_code: int
    output: str

    def is_success(self) -> bool:
        """Whether the program ended with exit code 0."""
        return self.exit_code == 0

    def explanation(self) -> str:
        """What the program said of its failure, as one line: from its last error line on, or its last line."""
        lines = [line for line in map(str.strip, self.output.splitlines()) if line and not line.startswith(_ASIDE)]
        errors = [number for number, line in enumerate(lines) if line.lower().startswith(_ERROR)]
        told = "; ".join(lines[errors[-1] :] if errors else lines[-1:])
        if len(told) > _MESSAGE_CHARACTERS:  # what failed stands at the beginning, why at the end
            half = _MESSAGE_CHARACTERS // 2
            told = f"{told[:half]} … {told[-half:]}"
        return told or f"exit code {self.exit_code} without a message"


class CommandRunner:
    """Runs programs, from any thread, and stops all of them on request.

    Each program gets a process session of its own: a program that starts further ones (spark-submit) is stopped with
    all of them, and Ctrl-C reaches the bootstrap alone, which then decides.

    Parameters
    ----------
    grace_seconds: how long an interrupted program may take to clean up before it is killed; uv needs under one second.
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
        deadline_seconds: float | None = None,
    ) -> CommandResult:
        """Run a program to its end.

        Parameters
        ----------
        command: the program and its arguments; nothing secret, since arguments are seen by everybody on the machine.
        environment: variables set on top of this process's own.
        directory: where the program runs; here when not given.
        is_stoppable: whether the program may be ended at any moment; a package manager may not, because what it has
            half installed stays in the way of every later installation.
        deadline_seconds: after which the program is ended; never when not given.

        Raises
        ------
        OSError: when the program does not exist or may not be run.
        """
        with tempfile.TemporaryFile() as output:
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
            too_late = ""
            try:
                exit_code = process.wait(deadline_seconds)
            except subprocess.TimeoutExpired:
                _stop(process, grace_seconds=self._grace_seconds)
                exit_code = process.wait()
                too_late = f"\nerror: stopped, because it was not done after {deadline_seconds:g} s\n"
            except BaseException:
                if is_stoppable:
                    _stop(process, grace_seconds=self._grace_seconds)
                raise
            finally:
                with self._lock:
                    self._running.discard(process)
            output.seek(0)
            return CommandResult(exit_code=exit_code, output=output.read().decode(errors="replace") + too_late)

    def stop(self) -> None:
        """Stop every running program that may be stopped, and start no further one."""
        with self._lock:
            self._is_stopped = True
            running = list(self._running)
        for process in running:
            _stop(process, grace_seconds=self._grace_seconds)


def _stop(process: subprocess.Popen[bytes], *, grace_seconds: float) -> None:
    """End a program and all that it started, which is in its process group; the last of them may outlive it."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):  # nobody is left in the group, which is what is wanted
            os.killpg(process.pid, signal_number)
        deadline = time.monotonic() + grace_seconds
        while _is_group_alive(process.pid):
            if time.monotonic() > deadline:
                break
            time.sleep(_LOOK_SECONDS)
        else:
            return


def _is_group_alive(group: int) -> bool:
    """Whether a process of the group runs.

    Who has ended stays in it until somebody has asked for the exit code, and does not count: an orphan's is asked for
    by the machine's first process, which takes seconds on some machines, and in many containers never does.
    Source: https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html
    """
    for seen in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, member_of, *_ = seen.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended between two looks
        if int(member_of) == group and state not in "ZX":
            return True
    return False
