"""Why a value is rejected, as a value itself; its sentence is made here and nowhere else.

Who shows a rejection asks it whether it repeats data. No code reads the sentence back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum


class RejectionKind(StrEnum):
    """What is wrong with a rejected value. The words are in the quarantine tables, where queries count by them."""

    NO_VALUE = "no_value"
    TOO_LARGE = "too_large"
    NOT_TEXT = "not_text"
    NOT_JSON = "not_json"
    TOO_DEEP = "too_deep"
    REPEATED_KEY = "repeated_key"
    NO_SCHEMA_ID = "no_schema_id"
    NO_MESSAGE = "no_message"
    UNUSABLE_SCHEMA = "unusable_schema"
    UNRESOLVED = "unresolved"
    INVALID_AVRO = "invalid_avro"
    INVALID_MESSAGE = "invalid_message"
    DECODER_ENDED = "decoder_ended"
    OTHER_HEADER = "other_header"
    MISMATCH = "mismatch"
    LACKING = "lacking"
    UNAVAILABLE = "unavailable"
    UNDECLARED = "undeclared"
    EVENT_TIME_AHEAD = "event_time_ahead"
    UNKNOWN_OPERATION = "unknown_operation"
    RULE = "rule"


_SUMMARIES: Mapping[RejectionKind, str] = {
    RejectionKind.NO_VALUE: "the record has no value",
    RejectionKind.TOO_LARGE: "the value is too large",
    RejectionKind.NOT_TEXT: "the value is not UTF-8 text",
    RejectionKind.NOT_JSON: "the value is not JSON",
    RejectionKind.TOO_DEEP: "the value is nested too deeply",
    RejectionKind.REPEATED_KEY: "the value has a key twice",
    RejectionKind.NO_SCHEMA_ID: "the value does not begin with the id of a schema in a registry",
    RejectionKind.NO_MESSAGE: "the value does not name its message",
    RejectionKind.UNUSABLE_SCHEMA: "the schema of the value cannot be used",
    RejectionKind.UNRESOLVED: "the schema of the value does not resolve to the declared one",
    RejectionKind.INVALID_AVRO: "the value is not valid Avro of its schema",
    RejectionKind.INVALID_MESSAGE: "the value is not a valid message of its type",
    RejectionKind.DECODER_ENDED: "the process that decoded the value has ended",
    RejectionKind.OTHER_HEADER: "the first line of the file does not name the declared columns",
    RejectionKind.MISMATCH: "the value does not fit the declared columns",
    RejectionKind.LACKING: "the value lacks required columns",
    RejectionKind.UNAVAILABLE: "the sender did not have a value",
    RejectionKind.UNDECLARED: "the value has fields that are not declared",
    RejectionKind.EVENT_TIME_AHEAD: "the event time is too far ahead of the clock",
    RejectionKind.UNKNOWN_OPERATION: "the operation of the change is unknown",
    RejectionKind.RULE: "the row breaks a rule",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """Why a value goes to the quarantine.

    kind: what is wrong with it.
    path: the column or field, in the names of the declaration or of a schema; empty when it is the value as a whole.
    detail: what was found and what is needed; may be empty.
    quotes_data: whether the detail repeats something that was sent. It is then left out where columns are masked.
    schema_id: of the schema in a registry that the value names.
    """

    kind: RejectionKind
    path: str = ""
    detail: str = ""
    quotes_data: bool
    schema_id: int | None = None

    @property
    def sentence(self) -> str:
        """The rejection as a person reads it."""
        before, behind = around_detail(self.kind, self.path)
        schema = f"schema {self.schema_id}: " if self.schema_id is not None else ""
        return f"{schema}{before}: {self.detail}{behind}" if self.detail else f"{schema}{before}{behind}"


def rejection_row(rejection: Rejection) -> dict[str, object]:
    """A rejection as the columns of a quarantine table that say why."""
    return {
        "reason": rejection.sentence,
        "kind": str(rejection.kind),
        "path": rejection.path or None,
        "quotes_data": rejection.quotes_data,
    }


def around_detail(kind: RejectionKind, path: str) -> tuple[str, str]:
    """What stands before the colon of a sentence, and behind its detail: for a detail that is a column of Spark."""
    return _SUMMARIES[kind], f", at `{path}`" if path else ""


class RejectedValueError(ValueError):
    """A value that goes to the quarantine, and why."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection)
        self.rejection = rejection

    def __str__(self) -> str:
        """The sentence."""
        return self.rejection.sentence


NO_VALUE = Rejection(kind=RejectionKind.NO_VALUE, quotes_data=False)

LARGEST_VALUE_BYTES = 16 * 2**20
"""The most bytes of a value: sixteen times what a Kafka broker takes by default. Decoding takes several times as much
memory."""


def too_large(size_bytes: int) -> Rejection:
    """Why a value, or a line, of this size is rejected."""
    detail = f"{size_bytes} bytes; at most {LARGEST_VALUE_BYTES} are decoded"
    return Rejection(kind=RejectionKind.TOO_LARGE, detail=detail, quotes_data=False)


def mismatch(path: str, need: str) -> Rejection:
    """Why a value is rejected that a column cannot hold. need: what the column needs, without anything of the value."""
    return Rejection(kind=RejectionKind.MISMATCH, path=path, detail=f"expected {need}", quotes_data=False)


def lacking(columns: Sequence[str]) -> Rejection:
    """Why a value is rejected that has nothing for required columns."""
    return Rejection(kind=RejectionKind.LACKING, detail=", ".join(columns), quotes_data=False)
