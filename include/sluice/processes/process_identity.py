"""The recorded identity of a process, and whether the process lives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process, as the ledger records it. A process id is reused later, so the start time belongs to the identity.

    Parameters
    ----------
    host: the machine's name; for an application of a cluster the name of its Spark connection.
    pid: 0 for an application of a cluster.
    started_at_seconds: seconds since the epoch as the kernel reports them (psutil's `create_time`); for an application
        the moment before it was submitted.
    application: for an application of a cluster the stream, token and run by which it is found; unset for a process.
    """

    host: str
    pid: int
    started_at_seconds: float
    application: str | None = None


class ProcessState(StrEnum):
    """Whether a process lives. QUEUED: a cluster has accepted the application and has not given it a place yet.
    UNKNOWN: it could not be determined; an unknown process is never treated as dead."""

    ALIVE = "alive"
    QUEUED = "queued"
    GONE = "gone"
    UNKNOWN = "unknown"
