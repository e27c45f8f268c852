"""The doors to the outside that have more than one adapter: each a protocol, with one honest fake in `tests/fakes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sluice.launching.cluster.application import ApplicationObservation, DriverTag
from sluice.ledger.records.run import DriverExit
from sluice.processes.process_identity import ProcessIdentity, ProcessState


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One driver to be started for a run that the ledger has admitted.

    command: the argv; everybody on the machine sees it, so it holds nothing secret. For a cluster the application's
        file and its arguments.
    connection: the Spark connection of a cluster; unset for a driver of this host.
    conf: for a cluster the settings of the application, which travel in a private file.
    environment: variables on top of those of the launching process; secrets travel here.
    log_file: where the driver's output goes.
    """

    run_id: str
    stream: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    log_file: Path
    connection: str | None = None
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)


class Launcher(Protocol):
    """Starts drivers that outlive whoever asked for them, sees whether they live, and ends them.

    `tests/contracts/test_launcher.py` says what every adapter keeps.
    """

    def launch(self, request: LaunchRequest) -> ProcessIdentity:
        """Start the driver of a run and bind the run to its process in the ledger, before the driver does anything.

        A run has one process: of two requests for one run the ledger refuses one.

        Raises
        ------
        LaunchError: when the driver cannot be started, or the run has a process already, or has ended.
        """

    def observe(self, process: ProcessIdentity) -> ProcessState:
        """See whether a driver lives. UNKNOWN when this launcher cannot tell, for example from another host."""

    def exit_of(self, process: ProcessIdentity) -> DriverExit | None:
        """How a driver that is gone has ended, where the launcher itself can tell; none when only the ledger can."""

    def stop(self, process: ProcessIdentity, *, grace_seconds: float) -> ProcessState:
        """End a driver that did not obey the request to stop: ask it, wait `grace_seconds`, then kill it.

        Returns
        -------
        GONE when no process of the driver is left; UNKNOWN when this launcher cannot reach it.

        Raises
        ------
        LaunchError: when the driver survives even that.
        """


class Cluster(Protocol):
    """The API of a cluster: what became of an application. `tests/contracts/test_clusters.py` says what adapters keep.

    Nothing is remembered here: whoever asks, from wherever, finds the same application by its tag.
    """

    def find(self, tag: DriverTag) -> ApplicationObservation | None:
        """The application with this very tag; none when the cluster knows no such one, or has forgotten it.

        Raises
        ------
        ClusterError: when the cluster does not answer; then nothing is known.
        """

    def kill(self, application_id: str) -> None:
        """Ask the cluster to end an application; nothing happens when it has ended.

        Raises
        ------
        ClusterError: when the cluster does not answer, or refuses.
        """
