"""A process and no other: its identity, and whether it lives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process and no other: a process id is reused, its start time is not.

    host: the machine's name; for an application of a cluster the name of its Spark connection.
    pid: 0 for an application of a cluster.
    started_at_seconds: seconds since the epoch as the kernel tells them (psutil's `create_time`); for an application
        when it was about to be submitted.
    application: for an application of a cluster the stream, token and run that it is found by; unset for a process.
    """

    host: str
    pid: int
    started_at_seconds: float
    application: str | None = None


class ProcessState(StrEnum):
    """Whether a process lives. UNKNOWN: we could not tell; it is never treated as dead. QUEUED: a cluster has taken it
    in and not given it a place yet."""

    ALIVE = "alive"
    QUEUED = "queued"
    GONE = "gone"
    UNKNOWN = "unknown"
