"""The schema that each input of a stream was last seen with, since when, what of it had changed, and the newest change.

A sender that changes is seen with both sides: what the schema was, what it is, and what the stream did about it. The
newest schema of each input is kept in a table; every change is an event, which has those before.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256

from pydantic import TypeAdapter
from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.postgresql import distinct_on, insert

from sluice.ledger.connection import Ledger
from sluice.ledger.events import (
    LONGEST_TEXT,
    MOST_ITEMS,
    Actor,
    Event,
    EventAction,
    EventSubject,
    LedgerEvent,
    add_event,
    stored_text,
)
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.run_leases import Run
from sluice.ledger.stored_values import record_of


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSchema:
    """The schema of an input as it was just seen.

    source: what has it, such as `table bronze.orders`. fields: the type of each field, by its path.
    answer: the sentence that says what the stream does about it.
    is_one_of_many: whether the source has several at a time, as a folder of files of two senders: one that was seen
        before is no change then.
    """

    input: str
    source: str
    fields: Mapping[str, str] = field(hash=False)
    answer: str
    is_one_of_many: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldChange:
    """What changed of a field. was, now: its type; empty where there is none."""

    field: str
    was: str = ""
    now: str = ""

    def __str__(self) -> str:
        if not self.was:
            return f"`{self.field}` is new: {self.now}"
        return f"`{self.field}` was {self.was} and is {self.now or 'gone'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSchema:
    """The schema that an input was last seen with.

    source, fields, answer: as `SeenSchema` has them. seen_at: since when it is the last one.
    source_before: what had the one before it; empty for the first. changes: against that one.
    known: digests of those that were seen of a source that has several at a time.
    """

    stream: str
    input: str
    source: str
    fields: Mapping[str, str] = field(hash=False)
    answer: str
    seen_at: datetime
    source_before: str = ""
    changes: tuple[FieldChange, ...] = ()
    known: tuple[str, ...] = ()


MOST_FIELDS = 1_000
"""Of a schema; the others are left out. A table has hundreds of columns at most, a sender's keys may be data."""

_MOST_KNOWN = 200
"""Schemas of one input that are known again. More are an event each, as often as they come."""

_NAMED_CHANGES = 5
"""How many the sentence of an event names."""

_LARGEST_CHANGES_BYTES = 5_000
"""Of the changes in the evidence of an event, as JSON: the others are counted, and nothing else is dropped for them."""

_DIGEST_CHARACTERS = 8

_ITS_VALUES = ", its values"

_DRIVER = Actor.component("driver")
_CHANGES = TypeAdapter(tuple[FieldChange, ...])


class LastSchema(LedgerTable, record=SourceSchema, key=("stream", "input"), now=("seen_at",)):
    """A row for each input whose schema was seen."""

    __tablename__ = "source_schemas"


def changed_fields(was: Mapping[str, str], now: Mapping[str, str]) -> tuple[FieldChange, ...]:
    """What changed from one schema to another, by field: first what is another or gone, then what is new."""
    names = [*was, *(name for name in now if name not in was)]
    both = (FieldChange(field=name, was=was.get(name, ""), now=now.get(name, "")) for name in names)
    return tuple(one for one in both if one.was != one.now)


def record_seen_schema(ledger: Ledger, stream: str, seen: SeenSchema) -> bool:
    """Keep the schema that an input was just seen with, in a transaction of its own; see `add_seen_schema`."""
    with ledger.transaction() as connection:
        return add_seen_schema(connection, stream, seen)


def add_seen_schema(connection: Connection, stream: str, seen: SeenSchema) -> bool:
    """Keep the schema that an input was just seen with; one that differs from the last one is an event.

    Returns
    -------
    Whether it is a change.
    """
    seen = _storable(seen)
    last = _last(connection, stream, seen.input)
    digest = _digest(seen.fields)
    if last is not None and last.fields == seen.fields:
        return False
    known = () if last is None else last.known
    values = {
        "source": seen.source,
        "fields": dict(seen.fields),
        "answer": seen.answer,
        "source_before": "" if last is None else last.source,
        "changes": [] if last is None else _CHANGES.dump_python(changed_fields(last.fields, seen.fields)),
        "known": [*(one for one in known if one != digest), digest][-_MOST_KNOWN:] if seen.is_one_of_many else [],
    }
    row = insert(LastSchema).values(stream=stream, input=seen.input, **values)
    change = {**values, "seen_at": func.now()}
    connection.execute(row.on_conflict_do_update(index_elements=["stream", "input"], set_=change))
    is_change = last is not None and digest not in known
    if last is not None and is_change:
        add_event(connection, _changed(stream, last, seen))
    return is_change


def name_of_values(name: str) -> str:
    """The name under which the schema of an input's values is kept, where its source has a schema of its own."""
    return f"{name}{_ITS_VALUES}"


def input_of(name: str) -> str:
    """The input under whose name a schema is kept, be it that of its values."""
    return name.removesuffix(_ITS_VALUES)


def source_schemas(ledger: Ledger, stream: str, *, inputs: Collection[str] | None = None) -> tuple[SourceSchema, ...]:
    """The schemas that the inputs of a stream were last seen with, by input.

    Parameters
    ----------
    inputs: those that are declared; others are left out. Unset for all that were seen.
    """
    query = select(*LastSchema.columns()).where(LastSchema.stream == stream).order_by(LastSchema.input)
    if inputs is not None:
        query = query.where(LastSchema.input.in_([*inputs, *map(name_of_values, inputs)]))
    with ledger.transaction() as connection:
        return tuple(record_of(SourceSchema, row) for row in connection.execute(query).all())


def _last(connection: Connection, stream: str, name: str) -> SourceSchema | None:
    query = select(*LastSchema.columns()).where(LastSchema.stream == stream, LastSchema.input == name)
    row = connection.execute(query.with_for_update()).one_or_none()
    return None if row is None else record_of(SourceSchema, row)


def _storable(seen: SeenSchema) -> SeenSchema:
    fields = {_bounded(name): _bounded(kind) for name, kind in list(seen.fields.items())[:MOST_FIELDS]}
    return SeenSchema(
        input=seen.input,
        source=stored_text(seen.source),
        fields=fields,
        answer=stored_text(seen.answer),
        is_one_of_many=seen.is_one_of_many,
    )


def _bounded(text: str) -> str:
    """A text as it is stored; one that is cut ends with a digest, by which two that begin alike differ."""
    stored = stored_text(text)
    if len(text) <= LONGEST_TEXT:
        return stored
    digest = sha256(text.encode(errors="backslashreplace")).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{stored[: LONGEST_TEXT - _DIGEST_CHARACTERS - 3]}… #{digest}"


def _digest(fields: Mapping[str, str]) -> str:
    return sha256("\n".join(f"{name}\t{kind}" for name, kind in sorted(fields.items())).encode()).hexdigest()[:16]


def _changed(stream: str, last: SourceSchema, seen: SeenSchema) -> Event:
    changes = changed_fields(last.fields, seen.fields)
    named = _fitting(changes)
    evidence = {
        "input": seen.input,
        "answer": seen.answer,
        "was": last.source,
        "now": seen.source,
        "changes": named,
        **({"more_changes": len(changes) - len(named)} if len(named) < len(changes) else {}),
    }
    explanation = f"The schema of the input {seen.input} changed, {seen.source}. {seen.answer} {phrase_of(changes)}."
    return Event(
        name=stream,
        actor=_DRIVER,
        action=EventAction.SEE_SCHEMA,
        reason="source_schema_changed",
        explanation=explanation,
        evidence=evidence,
    )


def _fitting(changes: Sequence[FieldChange]) -> list[dict[str, str]]:
    """The first changes as evidence, as many as its size allows."""
    found: list[dict[str, str]] = []
    size_bytes = 0
    for one in _CHANGES.dump_python(tuple(changes[:MOST_ITEMS])):
        size_bytes += len(json.dumps(one))
        if size_bytes > _LARGEST_CHANGES_BYTES:
            break
        found.append(one)
    return found


def phrase_of(changes: Sequence[FieldChange]) -> str:
    """Changes in words; those beyond the first few are counted."""
    named = "; ".join(map(str, changes[:_NAMED_CHANGES]))
    return named if len(changes) <= _NAMED_CHANGES else f"{named}; and {len(changes) - _NAMED_CHANGES} more"


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
