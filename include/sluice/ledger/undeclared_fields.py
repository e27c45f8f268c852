"""The fields that senders send and no column takes, summed over the batches of a stream."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, mapped_column

from sluice.ledger.connection import Ledger
from sluice.ledger.event_evidence import stored_text
from sluice.ledger.events import Actor, Event, EventAction, add_event
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.stored_values import record_of


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeclaredField:
    """A field that senders send and the declaration does not have.

    field: its name, with the path to it in an object; the number of a Protobuf field.
    times: how often it was sent, in all batches of the stream.
    first_batch, last_batch: the generation and number of the first and of the newest batch with it, `1:42`.
    """

    stream: str
    input: str
    field: str
    times: int
    first_seen_at: datetime
    first_batch: str
    last_seen_at: datetime
    last_batch: str


MOST_FIELDS = 200
"""Of one input: a sender whose keys are data, such as ids, sends new fields without end. The others are summed up."""

OTHERS = "(others)"
"""Stands for the fields beyond the limit, as a driver names those of a block of values."""

_NAMED_FIELDS = 10
"""How many the sentence of an event names; its evidence has all."""

_DRIVER = Actor.component("driver")


class SeenField(LedgerTable):
    """A field that was sent and that no column takes, with sums over all batches of the stream."""

    __tablename__ = "undeclared_fields"

    stream: Mapped[str] = mapped_column(primary_key=True)
    input: Mapped[str] = mapped_column(primary_key=True)
    field: Mapped[str] = mapped_column(primary_key=True)
    times: Mapped[int]
    first_seen_at: Mapped[datetime] = mapped_column(server_default=func.now())
    first_batch: Mapped[str]
    last_seen_at: Mapped[datetime] = mapped_column(server_default=func.now())
    last_batch: Mapped[str]


def add_undeclared_fields(
    connection: Connection, stream: str, counted: Mapping[str, Mapping[str, int]], *, batch: str
) -> None:
    """Add the counts of a batch to the sums, in the transaction that records it. The fields of an input that were never
    seen before have one event together.

    Parameters
    ----------
    counted: how often each field was sent, by input. batch: `<generation>:<number>`.
    """
    for name, counts in counted.items():
        _add(connection, stream, batch, name, {stored_text(field): times for field, times in counts.items()})


def _add(connection: Connection, stream: str, batch: str, name: str, counts: Mapping[str, int]) -> None:
    of_input = (SeenField.stream == stream, SeenField.input == name)
    known = set(connection.scalars(select(SeenField.field).where(*of_input)))
    new = [field for field in counts if field not in known][: max(0, MOST_FIELDS - len(known))]
    sums: Counter[str] = Counter()
    for field, times in counts.items():
        sums[field if field in known or field in new else OTHERS] += times
    for field, times in sorted(sums.items()):
        added = insert(SeenField).values(
            stream=stream, input=name, field=field, times=times, first_batch=batch, last_batch=batch
        )
        change = {"times": SeenField.times + times, "last_batch": batch, "last_seen_at": func.now()}
        connection.execute(added.on_conflict_do_update(index_elements=["stream", "input", "field"], set_=change))
    if new:
        add_event(connection, _first_seen(stream, batch, name, sorted(new)))


def _first_seen(stream: str, batch: str, name: str, fields: Sequence[str]) -> Event:
    named = ", ".join(f"`{field}`" for field in fields[:_NAMED_FIELDS])
    more = f" and {len(fields) - _NAMED_FIELDS} more" if len(fields) > _NAMED_FIELDS else ""
    what = f"the field {named}, which is" if len(fields) == 1 else f"the fields {named}{more}, which are"
    return Event(
        name=stream,
        actor=_DRIVER,
        action=EventAction.SEE_FIELD,
        reason="undeclared_field",
        explanation=f"The input {name} has {what} not declared, since batch {stream}:{batch}.",
        evidence={"input": name, "fields": list(fields)},
        occasion=f"undeclared fields {name} {batch}",
    )


def undeclared_fields(ledger: Ledger, stream: str) -> tuple[UndeclaredField, ...]:
    """The undeclared fields of a stream's inputs, by input and name."""
    query = select(*SeenField.columns()).where(SeenField.stream == stream)
    with ledger.transaction() as connection:
        rows = connection.execute(query.order_by(SeenField.input, SeenField.field)).all()
    return tuple(record_of(UndeclaredField, row) for row in rows)
