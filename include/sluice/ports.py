"""The doors to the outside that have more than one adapter: each a protocol, with one honest fake in `tests/fakes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from sluice.observations.runs import ProcessIdentity, ProcessState


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchRequest:
    """One driver to be started for a run that the ledger has admitted.

    command: the argv; everybody on the machine sees it, so it holds nothing secret.
    environment: variables on top of those of the launching process; secrets travel here.
    log_file: where the driver's output goes.
    """

    run_id: str
    stream: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    log_file: Path


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

    def stop(self, process: ProcessIdentity, *, grace_seconds: float) -> ProcessState:
        """End a driver that did not obey the ledger's wish: ask it, wait `grace_seconds`, then kill it.

        Returns
        -------
        GONE when no process of the driver is left; UNKNOWN when this launcher cannot reach it.

        Raises
        ------
        LaunchError: when the driver survives even that.
        """
