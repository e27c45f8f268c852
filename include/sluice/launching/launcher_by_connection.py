"""The launcher of each stream: this host's, or that of the cluster which the stream's Spark connection names."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from sluice.errors import LaunchError, SettingsError
from sluice.launching.launcher_port import Launcher, LaunchRequest
from sluice.ledger.records.run import DriverExit
from sluice.processes.process_identity import ProcessIdentity, ProcessState

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherByConnection:
    """A launcher that leaves each driver to the one that started it, or is to start it.

    local: for drivers of this host. cluster: the launcher of a Spark connection; raises SettingsError when the
        connection is missing or wrong.
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
                f"Run {request.run_id} of stream {request.stream} was not started: {error.message}",
                next_step=error.next_step,
            ) from error
        return launcher.launch(request)

    def observe(self, process: ProcessIdentity) -> ProcessState:
        """See whether a driver lives; UNKNOWN for one whose connection cannot be used any more."""
        launcher = self._launcher_of(process)
        return ProcessState.UNKNOWN if launcher is None else launcher.observe(process)

    def exit_of(self, process: ProcessIdentity) -> DriverExit | None:
        """How a driver that is gone has ended, where its launcher can tell."""
        launcher = self._launcher_of(process)
        return None if launcher is None else launcher.exit_of(process)

    def stop(self, process: ProcessIdentity, *, grace_seconds: float) -> ProcessState:
        """End a driver; UNKNOWN for one whose connection cannot be used any more.

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
