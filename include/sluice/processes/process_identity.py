"""The recorded identity of a process, where it was observed, and whether it lives."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

HOSTS_OWN_NAMESPACE = 4026531836
"""The pid namespace of a machine outside any container: a constant of Linux (`PROC_PID_INIT_INO`)."""


RUN_ID_VARIABLE = "SLUICE_RUN_ID"
"""The environment variable that marks a driver and every process that the driver starts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessIdentity:
    """One process, as the ledger records it. A process id is reused later, so the start time belongs to the identity.

    The last three fields are unset for an application of a cluster, and where Linux hides them.

    Parameters
    ----------
    host: the machine's name; for an application of a cluster the name of its Spark connection.
    pid: 0 for an application of a cluster.
    started_at_seconds: seconds since the epoch as the kernel reports them (psutil's `create_time`); for an application
        the moment before it was submitted.
    application: for an application of a cluster the stream, token and run by which it is found; unset for a process.
    boot_id: of the kernel that runs the process; containers of one machine share it, and each boot has another.
    pid_namespace: in which the process id counts; each container has one of its own, and hosts of one name may share
        their name with containers.
    start_ticks: clock ticks from the boot to the start. A correction of the clock does not change them.
    """

    host: str
    pid: int
    started_at_seconds: float
    application: str | None = None
    boot_id: str | None = None
    pid_namespace: int | None = None
    start_ticks: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlace:
    """Where processes are observed. boot_id, pid_namespace: as of `ProcessIdentity`; unset where Linux hides them."""

    host: str
    boot_id: str | None
    pid_namespace: int | None


class ProcessState(StrEnum):
    """Whether a process lives. QUEUED: a cluster has accepted the application and has not given it a place yet.
    UNKNOWN: it could not be determined; an unknown process is never treated as dead."""

    ALIVE = "alive"
    QUEUED = "queued"
    GONE = "gone"
    UNKNOWN = "unknown"
