"""What rows change in the verdict on a stream: all of them rejected, more than its limit, or a batch that is held."""

from __future__ import annotations

from sluice.declarations.run_declaration import RejectionLimit
from sluice.ledger.batch_findings import MAX_REJECTED
from sluice.ledger.batches import MOST_REJECTED_FILES, BatchObservation
from sluice.ledger.desired_states import DesiredStateObservation
from sluice.ledger.held_batches import RejectedSince
from sluice.ledger.run_values import DesiredState
from sluice.ledger.stream_records import StreamRecords
from sluice.supervision.supervision_values import DOES_WELL, StreamState, StreamVerdict

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
