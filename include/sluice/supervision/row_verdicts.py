"""What rows change in the verdict on a stream: a batch that is held, and more rejected rows than its limit."""

from __future__ import annotations

from collections.abc import Collection

from sluice.declarations.supervision_declaration import RejectionLimit
from sluice.ledger.stream_records import StreamRecords
from sluice.supervision.stream_states import StreamState, StreamVerdict

_MAY_HOLD = {
    StreamState.LATE,
    StreamState.STALLED,
    StreamState.ALL_REJECTED,
    StreamState.MANY_REJECTED,
    StreamState.NEVER_STARTED,
}
"""Other states of a stream that can hold a batch. One that fails has a reason of its own."""


def with_limit(
    verdict: StreamVerdict, seen: StreamRecords, limit: RejectionLimit | None, *, does_well: Collection[StreamState]
) -> StreamVerdict:
    """The verdict, when a stream that does well has rejected more rows than it may. does_well: the states of one."""
    found = seen.rejected
    if limit is None or found is None or verdict.state not in does_well:
        return verdict
    if not limit.is_exceeded(rejected=found.rows, read=found.read):
        return verdict
    share = f"{limit.share:.1%} of them" if limit.share is not None else ""
    rows = f"{limit.rows:,} rows" if limit.rows is not None else ""
    text = (
        f"It rejected {found.rows:,} of {found.read:,} rows since {found.since:%Y-%m-%d %H:%M} UTC; `max_rejected` is "
        f"{' and '.join(one for one in (rows, share) if one)}."
    )
    step = f"See the reasons in its quarantine. `sluice stream start {seen.stream}` settles it."
    trouble = seen.trouble
    is_same = trouble is not None and trouble.reason == StreamState.MANY_REJECTED and bool(trouble.occasion)
    occasion = trouble.occasion if trouble is not None and is_same else found.since.isoformat()
    return StreamVerdict(
        state=StreamState.MANY_REJECTED, is_healthy=False, explanation=text, next_step=step, occasion=occasion
    )


def with_held(verdict: StreamVerdict, seen: StreamRecords, *, does_well: Collection[StreamState]) -> StreamVerdict:
    """The verdict, when a batch waits for a person: nothing behind it becomes visible, whatever else the stream does.
    Once a person has decided, a run carries that out. does_well: the states of a stream that does well."""
    held = seen.held
    if held is None or held.decision is not None or verdict.state not in {*does_well, *_MAY_HOLD}:
        return verdict
    behind = f" {held.queued} batches queue behind it." if held.queued else ""
    text = f"Batch {held.key.number} waits for a person: it breaks {held.reason}.{behind}"
    step = f"`sluice batch release {seen.stream} {held.key.batch}` publishes it, `sluice batch reject` discards it."
    return StreamVerdict(
        state=StreamState.HELD, is_healthy=False, explanation=text, next_step=step, occasion=held.key.number
    )
