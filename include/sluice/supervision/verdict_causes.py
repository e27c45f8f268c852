"""What decides about a stream beside its runs: its rows, an overdue increment, a run that fits no declaration. Pure.

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

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from sluice.declarations.loaded_declarations import STREAM_SUFFIX, Declarations
from sluice.declarations.run_declaration import RejectionLimit
from sluice.declarations.stream_declaration import ScheduleDeclaration
from sluice.ledger.batch_findings import MAX_REJECTED
from sluice.ledger.batches import MOST_REJECTED_FILES, BatchObservation
from sluice.ledger.desired_states import DesiredStateObservation
from sluice.ledger.held_batches import RejectedSince
from sluice.ledger.run_values import DesiredState, RunObservation
from sluice.ledger.stream_records import StreamRecords
from sluice.messages.plain_text import in_words
from sluice.supervision.supervision_decision import DOES_WELL, StreamState, StreamVerdict

STOPPED_BY_LIMIT = MAX_REJECTED
"""Who asks that a stream stops which has rejected too many rows, where the ledger names a person otherwise."""

_MAY_HOLD = DOES_WELL | {
    StreamState.LATE,
    StreamState.STALLED,
    StreamState.ALL_REJECTED,
    StreamState.MANY_REJECTED,
    StreamState.NEVER_STARTED,
}
"""The states of a stream that can hold a batch. One that fails has a reason of its own."""

_MAY_BE_STOPPED = _MAY_HOLD - {StreamState.NEVER_STARTED} | {StreamState.SOURCES_UNOBSERVED}
"""The states of a stream that publishes, and so is stopped beyond its limit, also when it lags."""

PATIENCE = timedelta(minutes=10)
"""How long an increment may wait for its start at least: for a retry, or a busy pool."""

TABLES_PATIENCE = timedelta(minutes=30)
"""How long new rows may wait for an increment that runs by them, and so has no interval of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OverdueIncrement:
    """An increment that was not run in time. due_at: when it was due; it is the occasion of the alert."""

    due_at: datetime
    explanation: str


class OrphanReason(StrEnum):
    """Why a run does not fit what is declared."""

    UNDECLARED = "undeclared"
    BROKEN = "declaration broken"
    MODE_CHANGED = "mode changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphanedRun:
    """The newest run of a stream that does not fit what is declared.

    may_end: whether it is to end; a run whose file is broken continues until the file is corrected or deleted.
    """

    run: RunObservation
    reason: OrphanReason
    explanation: str
    may_end: bool

    @property
    def stream(self) -> str:
        """The name of the stream in the ledger."""
        return self.run.stream


def with_rows(verdict: StreamVerdict, seen: StreamRecords, limit: RejectionLimit | None) -> StreamVerdict:
    """The verdict, once what became of the rows is looked at. limit: how many the stream may reject; unset: any."""
    return with_held(with_limit(with_rejections(verdict, seen), seen, limit), seen)


def is_stopped_by_limit(desired: DesiredStateObservation) -> bool:
    """Whether a stream is stopped because it has rejected too many rows, and no person has asked anything since."""
    return desired.desired_state is DesiredState.STOPPED and desired.requested_by == STOPPED_BY_LIMIT


def with_limit(verdict: StreamVerdict, seen: StreamRecords, limit: RejectionLimit | None) -> StreamVerdict:
    """The verdict, when a stream that does well has rejected more rows than it may, or was stopped for that."""
    trouble = seen.trouble
    known = trouble if trouble is not None and trouble.reason == StreamState.MANY_REJECTED else None
    step = f"See the reasons in its quarantine. `sluice stream start {seen.stream}` "
    if is_stopped_by_limit(seen.desired):
        if not verdict.is_healthy:
            return verdict
        text = known.explanation if known is not None else "It rejected more rows than `max_rejected`, so it stops."
        occasion = known.occasion if known is not None else ""
        return _many_rejected(text, step=f"{step}starts it again.", occasion=occasion)
    found = seen.rejected
    stops = limit is not None and limit.action == "stop"
    if limit is None or found is None or verdict.state not in (_MAY_BE_STOPPED if stops else DOES_WELL):
        return verdict
    if not limit.is_exceeded(rejected=found.rows, read=found.read):
        return verdict
    text = f"{_counted(found, limit)}{', so it stops' if stops else ''}."
    occasion = known.occasion if known is not None and known.occasion else found.since.isoformat()
    return _many_rejected(text, step=f"{step}{'starts it again' if stops else 'settles it'}.", occasion=occasion)


def _many_rejected(text: str, *, step: str, occasion: str) -> StreamVerdict:
    return StreamVerdict(
        state=StreamState.MANY_REJECTED, is_healthy=False, explanation=text, next_step=step, occasion=occasion
    )


def _counted(found: RejectedSince, limit: RejectionLimit) -> str:
    share = f"{limit.share:.1%} of them" if limit.share is not None else ""
    rows = f"{limit.rows:,} rows" if limit.rows is not None else ""
    return (
        f"It rejected {found.rows:,} of {found.read:,} rows since {found.since:%Y-%m-%d %H:%M} UTC; `max_rejected` is "
        f"{' and '.join(one for one in (rows, share) if one)}"
    )


def with_held(verdict: StreamVerdict, seen: StreamRecords) -> StreamVerdict:
    """The verdict, when a batch waits for a person: nothing behind it becomes visible, whatever else the stream does.
    Once a person has decided, a run carries that out."""
    held = seen.held
    if held is None or held.decision is not None or verdict.state not in _MAY_HOLD:
        return verdict
    step = f"`sluice batch release {seen.stream} {held.key.batch}` publishes it, `sluice batch reject` discards it."
    return StreamVerdict(
        state=StreamState.HELD,
        is_healthy=False,
        explanation=held.sentence,
        next_step=step,
        occasion=held.key.number,
    )


def with_rejections(verdict: StreamVerdict, seen: StreamRecords) -> StreamVerdict:
    """The verdict, when every row of the newest batch with rows was rejected, or every one of a file: the stream does
    well, and nothing of what is sent arrives. What a person rejected does not count; a batch without rows says nothing.
    The next good file does not bring the rejected one back, so that one counts for as long as the ledger has its batch.

    On a quiet topic one bad record would be the newest for ever: it is settled by a later request, as to start the
    stream, or by a run of another declaration.
    """
    newest = next((batch for batch in seen.batches if batch.input_rows), None)
    if verdict.state not in DOES_WELL:
        return verdict
    if newest is not None and newest.is_all_refused and not _is_settled(newest, seen):
        number = newest.key.number
        text = f"It rejected all {newest.input_rows:,} rows of batch {number}, so nothing of what is sent arrives."
    elif (refusing := _file_refused(seen)) is not None:
        number, text = refusing.key.number, _rejected_files_text(refusing)
    else:
        return verdict
    step = (
        "See the reasons in its quarantine: has the sender changed its format, or is the declaration wrong? "
        f"`sluice stream start {seen.stream}` settles it."
    )
    return StreamVerdict(
        state=StreamState.ALL_REJECTED,
        is_healthy=False,
        explanation=text,
        next_step=step,
        occasion=_refused_since(number, seen),
    )


def _file_refused(seen: StreamRecords) -> BatchObservation | None:
    """The newest batch with a file of which no record was good, while that counts: a reset reads the file again."""
    batch = seen.refusing
    if batch is None or batch.is_rejected or batch.key.generation != seen.generation or _is_settled(batch, seen):
        return None
    return batch


def _rejected_files_text(batch: BatchObservation) -> str:
    files, count = batch.rejected_files, len(batch.rejected_files)
    more = "" if count == 1 else f", and of {count - 1}{' or more' if count == MOST_REJECTED_FILES else ''} other files"
    return f"It rejected every record of the file {files[0]}{more}, in batch {batch.key.number}."


def _refused_since(number: str, seen: StreamRecords) -> str:
    """The batch with which it began: the next refused one of a stream that has a batch each second is no news."""
    trouble, asked_at = seen.trouble, seen.desired.changed_at
    if trouble is None or trouble.reason != StreamState.ALL_REJECTED or not trouble.occasion:
        return number
    return number if asked_at is not None and asked_at > trouble.since else trouble.occasion


def _is_settled(refused: BatchObservation, seen: StreamRecords) -> bool:
    """Whether a person has asked something of the stream since it refused a batch, or has changed its declaration."""
    asked_at, digest = seen.desired.changed_at, seen.digest_of(refused.run_id)
    if asked_at is not None and refused.recorded_at is not None and asked_at > refused.recorded_at:
        return True
    return digest is not None and seen.newest_run is not None and seen.newest_run.declaration_digest != digest


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


def find_orphaned_runs(declarations: Declarations, newest: Iterable[RunObservation]) -> tuple[OrphanedRun, ...]:
    """The newest runs that do not fit what is declared now. Pure.

    While a folder holds no declaration at all, nothing is known about what is declared, and no run is to end.

    Parameters
    ----------
    newest: the newest run of every stream that ever ran.
    """
    is_known = bool(declarations.stream_names)
    return tuple(orphan for run in newest if (orphan := _orphan_of(declarations, run, is_known=is_known)) is not None)


def _orphan_of(declarations: Declarations, run: RunObservation, *, is_known: bool) -> OrphanedRun | None:
    name = run.stream
    declared = declarations.streams.get(name)
    if declared is None and name in declarations.stream_names:
        return _broken(declarations, run)
    if not run.is_live:
        return None
    lives = f"run {run.run_id} of the {run.mode} stream {name} still lives"
    if declared is None:
        text = (
            f"No file in {declarations.folder} declares {name} any more, and {lives}. It ends after its batch; to keep "
            "it, restore its declaration."
        )
        return OrphanedRun(run=run, reason=OrphanReason.UNDECLARED, explanation=text, may_end=is_known)
    if run.mode == declared.declaration.mode or run.mode != "continuous":
        return None  # the supervision of a continuous stream replaces a run of an increment itself
    text = f"{name} is declared {declared.declaration.mode} now, and {lives}. It ends after its batch."
    return OrphanedRun(run=run, reason=OrphanReason.MODE_CHANGED, explanation=text, may_end=True)


def _broken(declarations: Declarations, run: RunObservation) -> OrphanedRun:
    file_name = f"{run.stream}{STREAM_SUFFIX}"
    problems = [problem for problem in declarations.problems if problem.location.file.name == file_name]
    state = "continues with its previous declaration" if run.is_live else "has ended, and none is started"
    why = str(problems[0]).replace("\n", " ") if problems else "another declaration contradicts it"
    text = f"The declaration of {run.stream} is broken; run {run.run_id} {state}: {why}"
    return OrphanedRun(run=run, reason=OrphanReason.BROKEN, explanation=text, may_end=False)
