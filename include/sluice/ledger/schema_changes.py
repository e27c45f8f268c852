"""The newest change of the schema of each input, as events have it, with the declaration that met it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import distinct_on

from sluice.ledger.connection import Ledger
from sluice.ledger.events import EventAction, EventSubject, LedgerEvent
from sluice.ledger.run_table import Run
from sluice.ledger.stored_values import record_of

LOOKED_BACK = timedelta(days=30)
"""A change without an answer for so long is what the sender is like."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaChange:
    """A change of the schema of an input.

    input: as its schema is kept. number: of the event. explanation: what changed, and what the stream did about it.
    declaration_digest: of the newest run before it; empty when that is not known any more.
    """

    stream: str
    input: str
    number: int
    seen_at: datetime
    explanation: str
    declaration_digest: str


def newest_schema_changes(ledger: Ledger, streams: Collection[str]) -> tuple[SchemaChange, ...]:
    """The newest change of each input of some streams, by stream and input."""
    event = LedgerEvent
    name_of_input = event.evidence["input"].as_string()
    digest = (
        select(Run.declaration_digest)
        .where(Run.stream == event.name, Run.launched_at <= event.recorded_at)
        .order_by(Run.number.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = (
        select(
            event.name.label("stream"),
            name_of_input.label("input"),
            event.number,
            event.recorded_at.label("seen_at"),
            event.explanation,
            func.coalesce(digest, "").label("declaration_digest"),
        )
        .ext(distinct_on(event.name, name_of_input))
        .where(
            event.subject == EventSubject.STREAM,
            event.name.in_(list(streams)),
            event.action == EventAction.SEE_SCHEMA,
            event.recorded_at > func.now() - LOOKED_BACK,
        )
        .order_by(event.name, name_of_input, event.number.desc())
    )
    with ledger.transaction() as connection:
        return tuple(record_of(SchemaChange, row) for row in connection.execute(query))
