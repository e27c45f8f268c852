"""The events of streams and tables: every decision that changes something and every command of a person.

An event is saved before it is carried out. There are two ways to save one, both append-only:

    record_event(ledger, event)         before an action outside the ledger, for example the end of a process
    add_event(connection, event)        inside the transaction of a change of the ledger, which happens with it or not

What it has as evidence is stored bounded, and without secrets. The database itself refuses to change an event, and to
delete one other than by `sluice.ledger.retention`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic_core import to_jsonable_python
from sqlalchemy import Connection, Identity, Index, Select, select, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Mapped, mapped_column

from sluice.ledger.connection import Ledger
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.stored_values import record_of, storable_text
from sluice.messages import HIDDEN, SECRET_NAME, redacted

LONGEST_TEXT = 1_000
"""Characters of one text. A sentence for a person is shorter; what is longer is the output of a library."""

MOST_ITEMS = 50
"""Entries of one mapping or list: as many partitions as a person reads. What is left out is counted."""

LARGEST_EVIDENCE_BYTES = 8_192
"""The size of the evidence of one event as JSON. A year of a busy stream (an event a minute) stays below 5 GB even if
every event is that large; typical ones have 200 bytes."""


def stored_evidence(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The evidence as it is stored. Facts that do not fit are dropped from the end, and counted as `left_out`."""
    bounded: dict[str, Any] = _bounded(to_jsonable_python(dict(evidence), inf_nan_mode="null", fallback=str))
    kept = dict(bounded)
    while len(json.dumps(kept).encode()) > LARGEST_EVIDENCE_BYTES:
        facts = [name for name in kept if name != "left_out"]
        kept.pop(facts[-1])
        kept["left_out"] = len(bounded) - len(facts) + 1
    return kept


def stored_text(text: str) -> str:
    """A text without the secrets that it may repeat, cut to `LONGEST_TEXT` characters."""
    clean = redacted(storable_text(text))
    return clean if len(clean) <= LONGEST_TEXT else clean[: LONGEST_TEXT - 1] + "…"


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        return stored_text(value)
    if isinstance(value, Mapping):
        kept = {
            stored_text(name): HIDDEN if _is_secret(name, one) else _bounded(one)
            for name, one in list(value.items())[:MOST_ITEMS]
        }
        return kept | ({"left_out": len(value) - MOST_ITEMS} if len(value) > MOST_ITEMS else {})
    if isinstance(value, Sequence):
        left_out = [f"… and {len(value) - MOST_ITEMS} more"] if len(value) > MOST_ITEMS else []
        return [*(_bounded(one) for one in value[:MOST_ITEMS]), *left_out]
    return value


def _is_secret(name: str, value: Any) -> bool:
    """Whether a fact is secret by its name. The token of a lease is a number, and evidence."""
    return SECRET_NAME.search(name) is not None and not isinstance(value, int)


class EventSubject(StrEnum):
    """What an event is about."""

    STREAM = "stream"
    TABLE = "table"


class ActorKind(StrEnum):
    """Who decided: a person by a command, or a part of Sluice by its rules."""

    PERSON = "person"
    COMPONENT = "component"


class EventAction(StrEnum):
    """What is to be done. An action that a program does not know is shown as it is stored.

    The first group are the commands of a person, the second the decisions about a stream, the third those about a
    table.
    """

    START = "start"
    STOP = "stop"
    RESTART = "restart"
    RESET = "reset"
    CONTINUE = "continue"
    REPAIR = "repair"
    REMOVE_LEFTOVER = "remove_leftover"
    REWIND = "rewind"
    REFRESH = "refresh"
    TAKE_BACK = "take_back"
    ABANDON_REFRESH = "abandon_refresh"
    RESET_BREAKER = "reset_breaker"
    REJECT_BATCH = "reject_batch"
    RELEASE_BATCH = "release_batch"
    PUBLISH_OUTPUT = "publish_output"
    ABANDON_OUTPUT = "abandon_output"
    CREATE_TABLE = "create_table"
    ADOPT_TABLE = "adopt_table"
    MAINTAIN_TABLE = "maintain_table"
    REMOVE_ORPHANS = "remove_orphans"
    RESTORE_ORPHANS = "restore_orphans"
    ERASE_ROWS = "erase_rows"
    BACKFILL = "backfill"
    REPLAY = "replay"
    DISCARD = "discard"

    LAUNCH = "launch"
    ADOPT = "adopt"
    CLOSE_RUN = "close_run"
    TAKE_OVER = "take_over"
    REVOKE = "revoke"
    REPLACE = "replace"
    END_DRIVER = "end_driver"
    END_RUN = "end_run"
    GIVE_UP = "give_up"
    SUSPEND = "suspend"
    RESUME = "resume"
    IGNORE_PAUSE = "ignore_pause"
    HOLD_BATCH = "hold_batch"
    OPEN_GENERATION = "open_generation"
    SEE_FIELD = "see_field"
    SEE_SCHEMA = "see_schema"
    FOLLOW_INPUT = "follow_input"
    ALERT = "alert"
    RECOVER = "recover"

    REMOVE_OLD_ROWS = "remove_old_rows"
    REWRITE_DATA_FILES = "rewrite_data_files"
    REWRITE_MANIFESTS = "rewrite_manifests"
    PIN_SNAPSHOTS = "pin_snapshots"
    EXPIRE_SNAPSHOTS = "expire_snapshots"
    COMPUTE_STATISTICS = "compute_statistics"


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """Who decided. name: a person as Airflow or the operating system names them, or the task or job that decided."""

    kind: ActorKind
    name: str

    @classmethod
    def person(cls, name: str) -> Actor:
        """A person, for example `command line: ann@host` or `airflow: stream_control, ann`."""
        return cls(kind=ActorKind.PERSON, name=name)

    @classmethod
    def component(cls, name: str) -> Actor:
        """A part of Sluice, for example `airflow: stream_reconciler` or `driver`."""
        return cls(kind=ActorKind.COMPONENT, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A decision or a command that is about to be carried out.

    subject, name: the stream or table.
    reason: one word, as the decision has it; `requested` for the command of a person.
    explanation: the sentence for a person; may be empty.
    run_id: the run that it is about; unset when it is about none, or when the run is only admitted with it.
    evidence: the facts that it was decided on. Stored bounded and without secrets (`stored_evidence`).
    occasion: what the decision is about. The same action on the same occasion is saved once, so that a supervisor that
        decides the same on every pass leaves one event; unset: each is saved.
    """

    subject: EventSubject = EventSubject.STREAM
    name: str
    actor: Actor
    action: EventAction
    reason: str
    explanation: str = ""
    run_id: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict, hash=False)
    occasion: str | None = None


WRITE = "write"
"""The key of the evidence with the identity under which the work that an event announces writes files."""

REQUESTED = "requested"
"""The reason of an event that is the command of a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventObservation:
    """An event as the ledger has it.

    number: rises with every event. recorded_at: by the database's clock. action: one of `EventAction`, or a word that
    only a newer program knows.
    """

    number: int
    recorded_at: datetime
    subject: EventSubject
    name: str
    actor: Actor
    action: str
    reason: str
    explanation: str
    run_id: str | None
    evidence: Mapping[str, Any] = field(hash=False)


class LedgerEvent(LedgerTable, record=EventObservation):
    """A decision or a command. Append-only: triggers refuse to change it, and to delete it outside of the retention."""

    __tablename__ = "events"
    __table_args__ = (
        Index(None, "subject", "name", "number"),
        Index(None, "recorded_at"),
        Index(
            "one_event_per_occasion",
            "subject",
            "name",
            "action",
            "occasion",
            unique=True,
            postgresql_where=text("occasion IS NOT NULL"),
        ),
    )

    number: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    occasion: Mapped[str | None]


_COLUMNS = LedgerEvent.columns(without=("occasion",))


def record_event(ledger: Ledger, event: Event) -> bool:
    """Save an event in a transaction of its own. When this raises, the action must not be carried out.

    Returns
    -------
    Whether it was saved; not when its occasion has the same action already.
    """
    with ledger.transaction() as connection:
        return add_event(connection, event)


def add_event(connection: Connection, event: Event, *, run_id: str | None = None) -> bool:
    """Save an event inside the transaction of the change that it is about.

    Parameters
    ----------
    run_id: the run that the change has made; unset: the event's own.

    Returns
    -------
    As `record_event`.
    """
    saved = connection.execute(
        insert(LedgerEvent)
        .values(
            subject=str(event.subject),
            name=event.name,
            actor_kind=str(event.actor.kind),
            actor_name=stored_text(event.actor.name),
            action=str(event.action),
            reason=event.reason,
            explanation=stored_text(event.explanation),
            run_id=run_id or event.run_id,
            evidence=stored_evidence(event.evidence),
            occasion=event.occasion,
        )
        .on_conflict_do_nothing()
        .returning(LedgerEvent.number)
    )
    return saved.one_or_none() is not None


def recent_events(
    ledger: Ledger, subject: EventSubject, name: str, *, limit: int, since: datetime | None = None
) -> tuple[EventObservation, ...]:
    """The newest events of a stream or table, newest first.

    Parameters
    ----------
    limit: at most so many. since: none before this time.
    """
    query = _of(subject, name).order_by(LedgerEvent.number.desc()).limit(limit)
    if since is not None:
        query = query.where(LedgerEvent.recorded_at >= since)
    with ledger.transaction() as connection:
        return tuple(record_of(EventObservation, row) for row in connection.execute(query).all())


def _of(subject: EventSubject, name: str) -> Select[Any]:
    return select(*_COLUMNS).where(LedgerEvent.subject == str(subject), LedgerEvent.name == name)
