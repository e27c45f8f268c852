"""One attempt to backfill an interval, as the ledger records it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


class BackfillState(StrEnum):
    """How an attempt stands, or how it ended.

    RUNNING: it has begun and not reported an end. PUBLISHED: the interval was replaced. UNCHANGED: the table held the
    very same rows, so nothing was committed. CHANGED_MEANWHILE: somebody else changed the interval; the next attempt
    computes it again. FAILED: with the reason. LOST: its process ended without a report.
    """

    RUNNING = "running"
    PUBLISHED = "published"
    UNCHANGED = "unchanged"
    CHANGED_MEANWHILE = "changed_meanwhile"
    FAILED = "failed"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillAttemptKey:
    """An attempt: the stream, the interval in UTC, and the number of the attempt at this interval, from 1."""

    stream: str
    interval_start: datetime
    interval_end: datetime
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillAttemptObservation:
    """An attempt as it is recorded.

    planned_on: the target's snapshot on which it was planned. end_offsets: how far its sources were read, by input.
    snapshot_id: the snapshot that made its rows visible. rows: numbers of rows by name; see `backfill.balance`.
    """

    key: BackfillAttemptKey
    state: BackfillState
    launched_by: str
    started_at: datetime
    ended_at: datetime | None = None
    planned_on: int | None = None
    end_offsets: Mapping[str, Any] | None = None
    snapshot_id: int | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    reason: str | None = None
