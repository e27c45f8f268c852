"""The batch of each stream that waits for a person, what a person has decided about it, and how many rows streams have
rejected of late, which is what a batch is held for by `max_rejected`.

A held batch is staged, and its summary says which rules it breaks: that is what holds it. This table has the oldest one
of each stream, so that people find it, and takes their decision, which a run of the stream carries out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Interval,
    Text,
    and_,
    cast,
    column,
    delete,
    func,
    not_,
    or_,
    select,
    true,
    update,
    values,
)
from sqlalchemy.dialects.postgresql import JSONPATH, insert
from sqlalchemy.orm import Mapped, mapped_column

from sluice.ledger.batch_findings import LIMITED_OUTPUT, MAX_REJECTED, StoredRuleResult
from sluice.ledger.batches import Batch, PublicationKey
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import StreamDesiredState
from sluice.ledger.events import Event, add_event
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.run_leases import RUN_IS_LIVE, Run
from sluice.ledger.stored_values import record_of


class HeldDecision(StrEnum):
    """What a person has decided.

    RELEASED: all of its rows become visible. REJECTED: none does. SEPARATED: those that break a rule which holds it go
    to the quarantine, and the others become visible.
    """

    RELEASED = "released"
    REJECTED = "rejected"
    SEPARATED = "separated"

    @property
    def is_release(self) -> bool:
        """Whether rows of it become visible."""
        return self is not HeldDecision.REJECTED


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBatch:
    """The oldest batch of a stream that waits for a person.

    reason: the rules that it breaks, with their counts. rows: by output. queued: how many batches wait behind it.
    failed: by output, the rules that hold it, with how many rows break each; 0 of one about the batch as a whole.
    samples: by output and rule about single rows, some rows that break it, as a JSON list of texts, each the columns
        that it looks at as JSON; without those of which a column was masked when it was staged.
    decision, decided_by, decided_at: unset until a person has decided.
    """

    key: PublicationKey
    reason: str
    rows: Mapping[str, int] = field(hash=False)
    queued: int = 0
    failed: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)
    samples: Mapping[str, Mapping[str, str]] = field(default_factory=dict, hash=False)
    held_at: datetime | None = None
    decision: HeldDecision | None = None
    decided_by: str | None = None
    decided_at: datetime | None = None

    @property
    def sentence(self) -> str:
        """That it waits, for what, and how many batches behind it."""
        behind = f" {self.queued} batches queue behind it." if self.queued else ""
        return f"Batch {self.key.number} waits for a person: it breaks {self.reason}.{behind}"


class HeldBatchOfStream(LedgerTable, record=HeldBatch, key=("stream",)):
    """The oldest batch of a stream that waits for a person."""

    __tablename__ = "held_batches"

    held_at: Mapped[datetime] = mapped_column(server_default=func.now())


def hold_batch(ledger: Ledger, held: HeldBatch) -> HeldBatch:
    """Record the batch of a stream that waits. A decision about this very batch stays.

    Returns
    -------
    The batch as the ledger has it, with the decision.
    """
    table = HeldBatchOfStream
    values = {
        "generation": held.key.generation,
        "batch": held.key.batch,
        "reason": held.reason,
        "rows": held.rows,
        "failed": held.failed,
        "samples": held.samples,
    }
    nothing = dict.fromkeys(("decision", "decided_by", "decided_at"))
    is_other = or_(table.generation != held.key.generation, table.batch != held.key.batch)
    with ledger.transaction() as connection:
        connection.execute(
            insert(table)
            .values(stream=held.key.stream, queued=held.queued, **values)
            .on_conflict_do_update(
                index_elements=["stream"],
                set_={**values, **nothing, "queued": held.queued, "held_at": func.now()},
                where=is_other,
            )
        )
        counts = {"queued": held.queued, "failed": held.failed, "rows": held.rows, "samples": held.samples}
        is_stale = or_(*(getattr(table, name) != value for name, value in counts.items()))
        connection.execute(update(table).where(table.stream == held.key.stream, is_stale).values(**counts))
    found = find_held(ledger, held.key.stream)
    return found if found is not None else held


def find_held(ledger: Ledger, stream: str) -> HeldBatch | None:
    """The batch of a stream that waits; none when nothing is held."""
    query = select(*HeldBatchOfStream.columns()).where(HeldBatchOfStream.stream == stream)
    with ledger.transaction() as connection:
        row = connection.execute(query).one_or_none()
    return None if row is None else record_of(HeldBatch, row)


def undecided_batches(ledger: Ledger, streams: Collection[str]) -> tuple[HeldBatch, ...]:
    """The batches of these streams that wait for a person, about which none has decided."""
    table = HeldBatchOfStream
    query = select(*table.columns()).where(table.stream.in_(list(streams)), table.decision.is_(None))
    with ledger.transaction() as connection:
        return tuple(record_of(HeldBatch, row) for row in connection.execute(query.order_by(table.stream)).all())


def decided_batches(ledger: Ledger, streams: Sequence[str]) -> tuple[HeldBatch, ...]:
    """The batches of these streams about which a person has decided, and which no run has carried out yet. Those with a
    live run are left out: it does."""
    table = HeldBatchOfStream
    live = select(Run.stream).where(Run.stream == table.stream, RUN_IS_LIVE).exists()
    query = select(*table.columns()).where(table.stream.in_(streams), table.decision.is_not(None), not_(live))
    with ledger.transaction() as connection:
        return tuple(record_of(HeldBatch, row) for row in connection.execute(query.order_by(table.stream)).all())


def decide_held(ledger: Ledger, key: PublicationKey, decision: HeldDecision, event: Event, *, by: str) -> bool:
    """Record what a person has decided, once, with the event of it.

    Returns
    -------
    Whether the batch waited and nothing was decided before.
    """
    table = HeldBatchOfStream
    with ledger.transaction() as connection:
        decided = connection.execute(
            update(table)
            .where(_is(key), table.decision.is_(None))
            .values(decision=decision, decided_by=by, decided_at=func.now())
        ).rowcount
        if decided:
            add_event(connection, event)
    return bool(decided)


def withdraw_decision(ledger: Ledger, key: PublicationKey, event: Event) -> None:
    """Let a batch wait for a person again, because what was decided cannot be carried out, with the event of it."""
    nothing = dict.fromkeys(("decision", "decided_by", "decided_at"))
    with ledger.transaction() as connection:
        connection.execute(update(HeldBatchOfStream).where(_is(key)).values(**nothing))
        add_event(connection, event)


def let_go(ledger: Ledger, key: PublicationKey) -> None:
    """Forget a batch that waits no more."""
    with ledger.transaction() as connection:
        connection.execute(delete(HeldBatchOfStream).where(_is(key)))


def hold_nothing(ledger: Ledger, stream: str) -> None:
    """Forget what was held of a stream: a start has found that nothing is."""
    with ledger.transaction() as connection:
        forget_held(connection, stream)


def forget_held(connection: Connection, stream: str) -> None:
    """Forget what was held of a stream, in a transaction of the caller."""
    connection.execute(delete(HeldBatchOfStream).where(HeldBatchOfStream.stream == stream))


def _is(key: PublicationKey) -> ColumnElement[bool]:
    table = HeldBatchOfStream
    return and_(table.stream == key.stream, table.generation == key.generation, table.batch == key.batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedSince:
    """How many rows a stream has read and rejected since a moment."""

    since: datetime
    rows: int
    read: int


def _newest_judged(stream: ColumnElement[str], since: ColumnElement[datetime]) -> ColumnElement[Any]:
    """When the newest batch was recorded that was held for its rejected rows, as a SQL expression."""
    found = StoredRuleResult
    is_same = and_(found.stream == Batch.stream, found.generation == Batch.generation, found.batch == Batch.batch)
    newest = (
        select(func.max(Batch.recorded_at))
        .join(found, and_(is_same, found.output == LIMITED_OUTPUT, found.rules.has_key(MAX_REJECTED)))
        .where(Batch.stream == stream, Batch.recorded_at > since)
    )
    return newest.scalar_subquery()


def _separated() -> ColumnElement[int]:
    """How many rows a person has separated from a batch, as a SQL expression."""
    found, path = StoredRuleResult, cast("$.*.separated ? (@ > 0)", JSONPATH)
    counts = (
        select(cast(cast(func.jsonb_path_query(found.rules, path), Text), BigInteger).label("rows"))
        .where(found.stream == Batch.stream, found.generation == Batch.generation, found.batch == Batch.batch)
        .correlate(Batch)
        .subquery("separated")
    )
    return func.coalesce(select(func.sum(counts.c.rows)).scalar_subquery(), 0)


def rejected_within(ledger: Ledger, windows: Mapping[str, timedelta]) -> Mapping[str, RejectedSince]:
    """What each of these streams has rejected in its window, or since a person has last asked something of it or has
    decided about a batch that was held for its rejected rows. What a person rejected, the whole batch or some of its
    rows, does not count.
    """
    if not windows:
        return {}
    given = [(stream, window) for stream, window in windows.items()]
    asked = values(column("stream", Text), column("length", Interval), name="asked").data(given)
    window_start = func.now() - cast(asked.c.length, Interval)
    judged = _newest_judged(asked.c.stream, window_start)
    known = StreamDesiredState
    since = func.greatest(window_start, known.requested_at, known.suspended_at, judged)
    of_stream = (
        select(asked.c.stream, since.label("since"))
        .select_from(asked.outerjoin(known.__table__, known.stream == asked.c.stream))
        .subquery("of_stream")
    )
    counts = and_(Batch.stream == of_stream.c.stream, Batch.recorded_at > of_stream.c.since, not_(Batch.is_rejected))
    rejected = Batch.refused_rows - _separated()
    sums = (func.coalesce(func.sum(one), 0) for one in (rejected, Batch.input_rows))
    counted = select(*(one.label(name) for one, name in zip(sums, ("rows", "read"), strict=True))).where(counts)
    total = counted.lateral("total")
    query = select(of_stream, total.c.rows, total.c.read).select_from(of_stream.join(total, true()))
    with ledger.transaction() as connection:
        rows = connection.execute(query).all()
    return {row.stream: RejectedSince(since=row.since, rows=int(row.rows), read=int(row.read)) for row in rows}
