"""A run in the ledger: one driver of a stream. Values only, because DAG files read them without SQLAlchemy."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from pathlib import Path

from sluice.failure_reasons import Failure
from sluice.processes.process_identity import ProcessIdentity


class RunState(StrEnum):
    """The state of a run. LOST: its driver exited without reporting a status."""

    LAUNCHING = "launching"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    LOST = "lost"


LIVE_STATES = frozenset({RunState.LAUNCHING, RunState.RUNNING})
"""The ledger admits one run of a stream in these states; a task adopts it instead of launching another one."""


class DesiredState(StrEnum):
    """The state that a stream or a run is to have; a driver reads it with each heartbeat."""

    RUNNING = "running"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverExit:
    """How a driver ended, as its parent saw it.

    state: FINISHED or FAILED.
    exit_code: the process's; negative is the signal that killed it, as in Python's subprocess.
    failure: as the driver reported it; unset when the driver did not fail or did not report.
    """

    state: RunState
    exit_code: int
    reason: str
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    """The ledger's answer to a driver's heartbeat.

    desired_state: STOPPED when that was requested, and also when the run no longer holds its lease.
    holds_lease: whether the run is live and its lease was renewed; else its driver must not publish any more.
    """

    desired_state: DesiredState
    holds_lease: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RunObservation:
    """A run as the ledger has it. All times are the database's, with time zone.

    token: the fencing token of the run's lease: its admission in milliseconds of the database's clock, or more. Every
        later run of the stream has a higher one.
        It goes with everything that the run publishes, so that a table can refuse an older run's publication.
    end_asked_at, end_asked_because: when and why this run was asked to end, while its stream is to continue.
    failure: as the driver reported it; `failures.classification.failure_of_run` derives it for other ends.
    version: of the Sluice that started it; a driver keeps its code for as long as it lives.
    replayed_at: when it last ran a batch again for the state of a copy alone; unset where it has run none.
    """

    run_id: str
    stream: str
    token: int
    generation: int
    mode: str
    state: RunState
    desired_state: DesiredState
    launched_at: datetime
    launched_by: str
    declaration_digest: str
    process: ProcessIdentity | None = None
    heartbeat_at: datetime | None = None
    ended_at: datetime | None = None
    exit_code: int | None = None
    reason: str | None = None
    log_file: Path | None = None
    end_asked_at: datetime | None = None
    end_asked_because: str | None = None
    failure: Failure | None = None
    version: str = ""
    replayed_at: datetime | None = None

    @property
    def delivers_since(self) -> datetime:
        """From when on a batch of its own can be expected: its start, or what it has last run again for its state."""
        return max(self.launched_at, self.replayed_at or self.launched_at)

    @property
    def is_live(self) -> bool:
        """Whether the run has not ended in the ledger."""
        return self.state in LIVE_STATES


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRun:
    """A run, and the database's time at which it was read: one poll of a trigger."""

    run: RunObservation
    observed_at: datetime


def version_numbers(version: str) -> tuple[int, ...]:
    """The numbers of a version, so that 0.10 is newer than 0.9; none of an unknown one, which is older than all."""
    found = re.match(r"\d+(\.\d+)*", version)
    return () if found is None else tuple(int(number) for number in found[0].split("."))
