"""The values of the queue: what Spark is asked to do, and the Spark applications that do it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any


class WorkKind(StrEnum):
    """What a work item asks for. Each ends by itself."""

    INCREMENT = "increment"
    INTERVAL = "interval"
    REFRESH = "refresh"
    FIND_GAPS = "find_gaps"
    MAINTAIN_TABLE = "maintain_table"
    CHECK_TABLE = "check_table"
    REPLAY = "replay"
    REHEARSE = "rehearse"


def trouble_of(kind: str, subject: str) -> str | None:
    """Under which name it is recorded that the newest work of a kind on a table failed; none for other work, which a
    person asks for, or whose stream has a trouble of its own. No stream has such a name."""
    return f"{kind} {subject}" if kind in (WorkKind.MAINTAIN_TABLE, WorkKind.CHECK_TABLE) else None


class WorkState(StrEnum):
    """How a work item stands, or how it ended.

    WAITING: no application works on it.
    CLAIMED: one does, or died while it did.
    FAILED: with a reason of its own.
    WITHDRAWN: it is not asked for any more.
    """

    WAITING = "waiting"
    CLAIMED = "claimed"
    DONE = "done"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"

    @property
    def is_open(self) -> bool:
        """Whether the item is still to be done."""
        return self in (WorkState.WAITING, WorkState.CLAIMED)


class ApplicationState(StrEnum):
    """Whether a Spark application takes work.

    STARTING: it has not reported yet.
    ENDING: it takes none any more, and does what it has claimed.
    ENDED: it does nothing any more.
    """

    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Which applications may do an item.

    name: of the engine settings, which are the same for all of its applications.
    digest: of everything that an application has loaded (`sluice.work.pools.deployment_digest`).
    """

    name: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NewItem:
    """What is asked for.

    subject: the stream or the table.
    payload: what the kind needs beside it, without secrets.
    asked_by: the run of a DAG, or the command and its user; what is done is recorded under this name.
    priority: of two waiting items the one with the higher number is first; of equal ones the older one.
    linger_seconds: how long its application waits for further work afterwards.
    """

    kind: WorkKind
    subject: str
    payload: Mapping[str, str]
    asked_by: str
    pool: Pool
    priority: int = 0
    linger_seconds: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkItem:
    """An item of the queue as the applications see it.

    attempt: the number of applications that have claimed it.
    runs_alone: whether an application died while it did this item, so that it is done beside no other one.
    """

    item: str
    kind: WorkKind
    subject: str
    payload: Mapping[str, str]
    asked_by: str
    asked_at: datetime
    attempt: int
    runs_alone: bool
    linger_seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkObservation:
    """An item as who has asked for it sees it.

    failure: the last lines of the item, when it failed.
    result: what it returned, when it is done.
    application: the one that has claimed it.
    log_file: that application's, on the host where it runs.
    needs_application: whether the one who looks is to start an application: none takes this item, and no item that
        waits longer is to start it.
    """

    item: str
    state: WorkState
    failure: str | None
    result: Any
    application: str | None
    log_file: str | None
    needs_application: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplicationObservation:
    """A Spark application that takes work items.

    heartbeat_at: when it last reported, by the database's clock.
    reason: why it ended.
    """

    application: str
    pool: Pool
    state: ApplicationState
    started_by: str
    started_at: datetime
    host: str | None
    pid: int | None
    log_file: str | None
    heartbeat_at: datetime | None
    ended_at: datetime | None
    reason: str | None
