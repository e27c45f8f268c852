"""When the next increment of a stream is due by its schedule, and whether it is overdue. Pure.

| schedule | due                                         | overdue                                              |
|----------|---------------------------------------------|------------------------------------------------------|
| cron     | at its first time after the newest increment| at its time after that, `PATIENCE` later at least    |
| tables   | when each of them has rows since then       | `TABLES_PATIENCE` later                              |

The newest increment is the one that ended well last, also without anything to read; before the first one it counts from
when a person last asked something of the stream, or when its DAG was first seen unpaused. While one runs or has
failed, that is the state of the stream. Airflow starts increments, and nothing else says when it does not: a paused
DAG, a pool without a free slot, a scheduler that is down.

After a standstill of the reconciler it counts from when that was up again: Airflow was down with it, as a stack is
overnight, and starts what is due now.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from sluice.declarations.stream_declaration import ScheduleDeclaration
from sluice.ledger.stream_records import StreamRecords
from sluice.messages.durations import in_words

PATIENCE = timedelta(minutes=10)
"""How long an increment may wait for its start at least: for a retry, or a busy pool."""

TABLES_PATIENCE = timedelta(minutes=30)
"""How long new rows may wait for an increment that runs by them, and so has no interval of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueIncrement:
    """An increment that was not run in time. due_at: when it was due; it is the occasion of the alert."""

    due_at: datetime
    explanation: str


def find_overdue(
    schedule: ScheduleDeclaration, seen: StreamRecords, *, rows_since: datetime | None = None
) -> OverdueIncrement | None:
    """Whether the next increment of a stream is overdue; none when it is not, or when that is unknown.

    Parameters
    ----------
    rows_since: since when each table of the schedule has had rows that no increment has read; unset: one has none, or
        that was not looked at.
    """
    known = waiting_from(seen)
    if known is None:
        return None
    up_since = seen.up_since
    counts_from = known if up_since is None else max(known, up_since)
    found = [_by_cron(schedule.cron, counts_from, seen.observed_at) if schedule.cron is not None else None]
    may_be_read_from = rows_since if rows_since is None or up_since is None else max(rows_since, up_since)
    if (
        rows_since is not None
        and may_be_read_from is not None
        and seen.observed_at - may_be_read_from > TABLES_PATIENCE
    ):
        waiting = in_words(seen.observed_at - rows_since)
        tables = ", ".join(schedule.tables)
        text = f"New rows in {tables} have waited for {waiting}, and no increment has begun since."
        found.append(OverdueIncrement(due_at=rows_since, explanation=text))
    overdue = [one for one in found if one is not None]
    return min(overdue, key=lambda one: one.due_at, default=None)


def waiting_from(seen: StreamRecords) -> datetime | None:
    """From when on the next increment of a stream is waited for; none before it was ever asked to run."""
    pause, run = seen.dag_pause, seen.newest_run
    unpaused_at = pause.since if pause is not None and not pause.is_paused else None
    ended_at = None if run is None else run.ended_at
    known = (seen.increment_at, ended_at, seen.desired.changed_at, unpaused_at)
    return max((at for at in known if at is not None), default=None)


def _by_cron(cron: str, known: datetime, now: datetime) -> OverdueIncrement | None:
    from croniter import croniter  # it takes a while to import, and most streams have no cron

    times = croniter(cron, known)
    due_at = times.get_next(datetime)
    following = times.get_next(datetime)
    if now < max(following, due_at + PATIENCE):
        return None
    text = f"Its increment of {due_at:%Y-%m-%d %H:%M %Z} is overdue for {in_words(now - due_at)}: none has ended since."
    return OverdueIncrement(due_at=due_at, explanation=text)
