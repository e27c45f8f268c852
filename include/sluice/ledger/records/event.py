"""An event: a decision that changes something or a command of a person, saved before it is carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any


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
    REFRESH = "refresh"
    TAKE_BACK = "take_back"
    ABANDON_REFRESH = "abandon_refresh"
    RESET_BREAKER = "reset_breaker"
    REJECT_BATCH = "reject_batch"
    PUBLISH_OUTPUT = "publish_output"
    ABANDON_OUTPUT = "abandon_output"
    CREATE_TABLE = "create_table"
    MAINTAIN_TABLE = "maintain_table"
    BACKFILL = "backfill"

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
    OPEN_GENERATION = "open_generation"
    SEE_FIELD = "see_field"
    ALERT = "alert"
    RECOVER = "recover"

    REWRITE_DATA_FILES = "rewrite_data_files"
    REWRITE_MANIFESTS = "rewrite_manifests"
    PIN_SNAPSHOTS = "pin_snapshots"
    EXPIRE_SNAPSHOTS = "expire_snapshots"


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
    evidence: the facts that it was decided on. Stored bounded and without secrets (`ledger.event_evidence`).
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
