"""A request for one interval, which the Spark application of another run may carry out."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class RequestState(StrEnum):
    """How a request stands, or how it ended.

    WAITING: no application works on it. TAKEN: an application does, or died while it did. DONE: the interval holds what
    its sources give. FAILED: with the job's own reason. WITHDRAWN: its run asks no more.
    """

    WAITING = "waiting"
    TAKEN = "taken"
    DONE = "done"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"


@dataclass(frozen=True, slots=True, kw_only=True)
class IntervalRequest:
    """An interval that a run asks for.

    launched_by: who asked; the attempts at the interval are recorded under this name, whoever carries them out.
    digest: of all declarations and their code, as the run has read them (`Declarations.digest`).
    """

    stream: str
    interval_start: datetime
    interval_end: datetime
    launched_by: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenRequest:
    """A request that an application carries out."""

    number: int
    request: IntervalRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestObservation:
    """A request as the run that waits for it sees it.

    failure: the last lines of the job for this interval, when it failed.
    is_next: whether it is the oldest request of its stream that a run waits for.
    has_application: whether an application of the stream takes requests now.
    """

    number: int
    state: RequestState
    failure: str | None
    is_next: bool
    has_application: bool

    @property
    def is_open(self) -> bool:
        """Whether the interval is still to be replaced."""
        return self.state in (RequestState.WAITING, RequestState.TAKEN)

    @property
    def needs_application(self) -> bool:
        """Whether this run is the one to start an application: no other does, so that many runs start one."""
        return self.is_open and self.is_next and not self.has_application
