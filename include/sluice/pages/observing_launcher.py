"""The launcher of a page: it sees the drivers of this host, and starts and ends none."""

from __future__ import annotations

from typing import NoReturn

from sluice.errors import LaunchError
from sluice.launching.launcher_port import LaunchRequest
from sluice.ledger.run_values import DriverExit
from sluice.processes.driver_processes import observe_process
from sluice.processes.process_identity import ProcessIdentity, ProcessState


class ObservingLauncher:
    """Observes only. A web server that started drivers would have them on its own host, with its own memory."""

    def observe(self, process: ProcessIdentity) -> ProcessState:
        """Whether a driver of this host lives; one of another host or of a cluster is UNKNOWN."""
        return ProcessState.UNKNOWN if process.application is not None else observe_process(process)

    def exit_of(self, process: ProcessIdentity) -> DriverExit | None:
        """None: the ledger has the exits that are known."""
        del process
        return None

    def launch(self, request: LaunchRequest) -> NoReturn:
        """Refuse.

        Raises
        ------
        LaunchError: always.
        """
        raise LaunchError(f"A page starts no driver; run {request.run_id} is started by the stream's task.")

    def stop(self, process: ProcessIdentity, *, grace_seconds: float) -> NoReturn:
        """Refuse.

        Raises
        ------
        LaunchError: always.
        """
        raise LaunchError(f"A page ends no driver, and waits for none: process {process.pid}, {grace_seconds:.0f} s.")
