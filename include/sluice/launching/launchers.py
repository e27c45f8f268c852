"""Who starts a driver: this host, or the cluster that the stream's Spark connection names.

On this host a driver is a detached process with a small parent of its own (`sluice.launching.attend`).
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil

from sluice.errors import LaunchError, SettingsError
from sluice.launching.driver_records import open_log
from sluice.launching.launch_settings import job_environment
from sluice.launching.launcher_port import Launcher, LaunchRequest
from sluice.ledger.run_values import DriverExit
from sluice.processes.host_processes import ask_to_end, kill_group, observe_process
from sluice.processes.process_identity import RUN_ID_VARIABLE, ProcessIdentity, ProcessState

_log = logging.getLogger(__name__)

REPORTED_WITHIN_SECONDS = 60.0
"""How long the attendant may take to report the launch: it retries an unreachable ledger for 30 seconds."""

KILLED_WITHIN_SECONDS = 10.0
"""How long the kernel may take to end a killed process. It takes longer only while the process waits for a device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherByConnection:
    """A launcher that delegates each driver to the launcher of its host or cluster.

    local: the launcher for drivers of this host.
    cluster: returns the launcher of a Spark connection; raises SettingsError when the connection is missing or wrong.
    """

    local: Launcher
    cluster: Callable[[str], Launcher]

    def launch(self, request: LaunchRequest) -> ProcessIdentity:
        """Start the driver where its request says.

        Raises
        ------
        LaunchError: as the launcher raises it, and when the connection cannot be used.
        """
        if request.connection is None:
            return self.local.launch(request)
        try:
            launcher = self.cluster(request.connection)
        except SettingsError as error:
            raise LaunchError(
                f"{request.described} was not started: {error.message}",
                next_step=error.next_step,
            ) from error
        return launcher.launch(request)

    def observe(self, process: ProcessIdentity) -> ProcessState:
        """Observe whether a driver lives; UNKNOWN when its connection can no longer be used."""
        launcher = self._launcher_of(process)
        return ProcessState.UNKNOWN if launcher is None else launcher.observe(process)

    def exit_of(self, process: ProcessIdentity) -> DriverExit | None:
        """Return how a driver that is gone has ended; none when its launcher does not know."""
        launcher = self._launcher_of(process)
        return None if launcher is None else launcher.exit_of(process)

    def stop(self, process: ProcessIdentity, *, grace_seconds: float) -> ProcessState:
        """End a driver; UNKNOWN when its connection can no longer be used.

        Raises
        ------
        LaunchError: when the driver survives it.
        """
        launcher = self._launcher_of(process)
        return ProcessState.UNKNOWN if launcher is None else launcher.stop(process, grace_seconds=grace_seconds)

    def _launcher_of(self, process: ProcessIdentity) -> Launcher | None:
        if process.application is None:
            return self.local
        try:
            return self.cluster(process.host)
        except SettingsError as error:
            _log.warning("application=%s %s", process.application, error)
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLauncher:
    """Starts drivers on this host. `tests/contracts/test_launcher.py` is its contract.

    ledger_url: the address of the ledger for the attendants; it is passed in their environment.
    """

    ledger_url: str = field(repr=False)

    def launch(self, request: LaunchRequest) -> ProcessIdentity:
        """Start a detached driver, after the ledger has bound the run to its process.

        Raises
        ------
        LaunchError: when the command does not exist, its log cannot be written, or the ledger refuses the process.
        """
        environment = self._environment(request)
        if shutil.which(request.command[0], path=environment.get("PATH")) is None:
            raise LaunchError(
                f"{request.described} cannot be started: {request.command[0]} is not found.",
                next_step="See the Spark connection's binary, SPARK_HOME and PATH.",
            )
        report_reader, report_writer = os.pipe()
        try:
            _start_attendant(request, environment, report_writer)
        finally:
            os.close(report_writer)
        try:
            return _process_of(_read_report(report_reader), request)
        finally:
            os.close(report_reader)

    def observe(self, process: ProcessIdentity) -> ProcessState:
        """Observe whether a driver of this host lives; one of another host is UNKNOWN."""
        return observe_process(process)

    def exit_of(self, process: ProcessIdentity) -> DriverExit | None:
        """Return none: the attendant records the exit in the ledger, or writes a note when it cannot."""
        del process
        return None

    def stop(self, process: ProcessIdentity, *, grace_seconds: float) -> ProcessState:
        """Ask the driver to end, wait, then kill its process group.

        Raises
        ------
        LaunchError: when it survives SIGKILL.
        """
        seen = observe_process(process)
        if seen is not ProcessState.ALIVE:
            return seen
        ask_to_end(process.pid)
        if not _is_gone_within(process, grace_seconds):
            kill_group(process.pid)
        if not _is_gone_within(process, KILLED_WITHIN_SECONDS):
            raise LaunchError(
                f"Process {process.pid} on {process.host} still lives after SIGKILL.",
                next_step="It waits in the kernel, for example for a dead network file system: see its host.",
            )
        return ProcessState.GONE

    def _environment(self, request: LaunchRequest) -> dict[str, str]:
        own = {"SLUICE_LEDGER_URL": self.ledger_url, **request.environment, RUN_ID_VARIABLE: request.run_id}
        return job_environment(os.environ, own=own)


def _start_attendant(request: LaunchRequest, environment: dict[str, str], report_writer: int) -> None:
    """Start the attendant, and wait for its first process, which ends as soon as the attendant is detached."""
    command = [sys.executable, "-m", "sluice.launching.attend", f"--run-id={request.run_id}"]
    command += ["--is-application"] if request.is_application else []
    command += [f"--log-file={request.log_file}", f"--report-fd={report_writer}", "--", *request.command]
    try:
        with open_log(request.log_file) as log:
            subprocess.run(  # noqa: S603  # our own command line, and no shell
                command,
                env=environment,
                cwd=request.log_file.parent,  # where a JVM that crashes writes its files: beside its log
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(report_writer,),
                start_new_session=True,
                check=True,
            )
    except (OSError, subprocess.CalledProcessError) as error:
        raise LaunchError(
            f"{request.described} cannot be started: {error}.",
            next_step=f"See that {request.log_file.parent} is a folder that can be written and has space.",
        ) from error


def _read_report(report: int) -> bytes:
    """Read the report until the attendant closes the pipe; empty when that does not happen in time."""
    deadline = time.monotonic() + REPORTED_WITHIN_SECONDS
    report_bytes = b""
    with selectors.DefaultSelector() as selector:  # `select.select` takes no descriptor from 1024 on
        selector.register(report, selectors.EVENT_READ)
        while selector.select(max(0.0, deadline - time.monotonic())):
            part = os.read(report, 65_536)
            if not part:
                return report_bytes
            report_bytes += part
    return b""


def _process_of(report: bytes, request: LaunchRequest) -> ProcessIdentity:
    missing = {"problem": f"its attendant did not report; see {request.log_file}"}
    result: dict[str, Any] = json.loads(report) if report else missing
    if "problem" in result:
        raise LaunchError(f"{request.described} was not started: {result['problem']}")
    return ProcessIdentity(**result["process"])


def _is_gone_within(process: ProcessIdentity, seconds: float) -> bool:
    """Whether the process ends within so many seconds. One that cannot be observed is not gone."""
    deadline = time.monotonic() + seconds
    while observe_process(process) is not ProcessState.GONE:
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        try:
            psutil.Process(process.pid).wait(timeout=min(left, 0.2))
        except psutil.TimeoutExpired:
            continue
        except psutil.NoSuchProcess:
            return True
    return True
