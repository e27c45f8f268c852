"""What a person does to a stream or a table: the plan that is shown first, and what blocks it.

    plan ──► refusals and steps ──► consent ──► act ──► event

Each verb is planned by its own room. The command line, the pages and the DAG `stream_control` show the same plan.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Generic, Self, TypeVar

from pydantic_core import to_jsonable_python

from sluice.errors import UnpublishableError, UsageError

Seen = TypeVar("Seen", covariant=True)


class OperationVerb(StrEnum):
    """What is done; SHOW does nothing."""

    SHOW = "show"
    START = "start"
    STOP = "stop"
    RESTART = "restart"
    RESET_BREAKER = "reset-breaker"
    RESET = "reset"
    CONTINUE = "continue"
    REPAIR = "repair"
    ADOPT = "adopt"
    REWIND = "rewind"
    CLEAN = "clean"
    REJECT_BATCH = "reject-batch"
    RELEASE_BATCH = "release-batch"
    SEPARATE_BATCH = "separate-batch"
    PUBLISH_OUTPUT = "publish-output"
    ABANDON_OUTPUT = "abandon-output"
    BACKFILL = "backfill"
    REFRESH = "refresh"
    TAKE_BACK = "take-back"
    ABANDON_REFRESH = "abandon-refresh"
    MAINTAIN = "maintain"
    REMOVE_ORPHANS = "remove-orphans"
    RESTORE_ORPHANS = "restore-orphans"
    ERASE = "erase"
    REPLAY = "replay"
    DISCARD = "discard"


class Stake(StrEnum):
    """What is at stake. ROWS: rows of a table are replaced, removed, discarded or made visible. CHECKPOINT: a
    checkpoint is left. Whoever carries such a plan out asks for consent first."""

    NOTHING = "nothing"
    ROWS = "rows"
    CHECKPOINT = "checkpoint"


class RefusalReason(StrEnum):
    """What blocks an operation.

    NOTHING_PUBLISHED: the stream has published nothing in its open generation.
    OFFSETS_UNKNOWN: neither the table nor the ledger has the offsets of the newest published batch.
    GENERATION_BEHIND: since a reset the stream has not read as far as before it.
    OPEN_INTERVAL: windows or joins of the interval are incomplete; the live stream still publishes rows of them.
    REACH_UNKNOWN: how far windows, joins or shifted times reach beyond an interval cannot be derived.
    MARGIN_TOO_SHORT: the declared margin is shorter than that reach.
    SOURCE_UNREADABLE: a source cannot be read exactly as far as the stream has read it.
    SOURCE_GONE: records or files that the stream has read, or may have read, are gone from a source, or were replaced.
    SOURCE_INCOMPLETE: an input cannot be read from its beginning any more.
    OTHER_WRITERS: rows of other streams lie in the table, and would be deleted.
    READER_STOPS: a stream reads the table, and its declaration says that it fails when rows are overwritten.
    DELETE_FILES: the table has some, or its MERGE writes some.
    READERS_REPEAT: streams that read the table get rows a second time.
    OTHER_REFRESH: an open refresh of the stream is of another kind, or of another declaration.
    BATCH_HELD: a staged batch of the stream waits for a person.
    CATALOG_BEHIND: the catalog does not list snapshots of the table that the ledger knows.
    NOT_AT_REST: a run of the stream lives, or it is to run.
    NOT_PROVABLE: what has to be written back is not known from what is left.
    OTHER_REMEDY: something else has to be repaired first.
    NOT_YET: the stream has something that the operation does not handle yet.
    EVERY_ROW: every row of the table is meant.
    """

    NOTHING_PUBLISHED = "nothing_published"
    OFFSETS_UNKNOWN = "offsets_unknown"
    GENERATION_BEHIND = "generation_behind"
    OPEN_INTERVAL = "open_interval"
    REACH_UNKNOWN = "reach_unknown"
    MARGIN_TOO_SHORT = "margin_too_short"
    SOURCE_UNREADABLE = "source_unreadable"
    SOURCE_GONE = "source_gone"
    SOURCE_INCOMPLETE = "source_incomplete"
    OTHER_WRITERS = "other_writers"
    READER_STOPS = "reader_stops"
    DELETE_FILES = "delete_files"
    READERS_REPEAT = "readers_repeat"
    OTHER_REFRESH = "other_refresh"
    BATCH_HELD = "batch_held"
    CATALOG_BEHIND = "catalog_behind"
    NOT_AT_REST = "not_at_rest"
    NOT_PROVABLE = "not_provable"
    OTHER_REMEDY = "other_remedy"
    NOT_YET = "not_yet"
    EVERY_ROW = "every_row"

    @property
    def is_passing(self) -> bool:
        """Whether the next batch of the stream usually removes the reason."""
        return self in (RefusalReason.OFFSETS_UNKNOWN, RefusalReason.SOURCE_UNREADABLE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why something is not done now: the reason, a sentence, and the next step."""

    reason: RefusalReason
    sentence: str
    next_step: str

    @property
    def line(self) -> str:
        """The refusal for a person."""
        return f"refused ({self.reason}): {self.sentence} {self.next_step}".rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One step of a plan: a sentence, and the argv when a program is started."""

    sentence: str
    command: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationPlan(Generic[Seen]):
    """What an operation will do, in order, or what blocks it.

    subject: the stream or the table. part: which part of it: an interval, a batch, an output; empty for all of it.
    steps: what is done, for a person. refusals: it is carried out only without any.
    rows: how many rows are at stake, where that is known.
    evidence: the facts on which it was planned, for a program.
    seen: what was observed, for whoever carries the plan out.
    """

    verb: OperationVerb
    subject: str
    seen: Seen = field(repr=False)
    part: str = ""
    steps: tuple[PlannedStep, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    at_stake: Stake = Stake.NOTHING
    rows: int | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def title(self) -> str:
        """What is done to what."""
        return f"{self.verb} {self.subject}" + (f", {self.part}" if self.part else "")

    @property
    def is_refused(self) -> bool:
        """Whether it must not be carried out now."""
        return bool(self.refusals)

    @property
    def is_refused_for_now(self) -> bool:
        """Whether it is refused for reasons alone that the next batch of the stream usually removes."""
        return self.is_refused and all(refusal.reason.is_passing for refusal in self.refusals)

    @property
    def digest(self) -> str:
        """Names what was planned, so that what is carried out is what a person was shown."""
        planned = [self.verb, self.subject, self.part, to_jsonable_python(dict(self.evidence))]
        return hashlib.sha256(json.dumps(planned, sort_keys=True).encode()).hexdigest()

    def sentences(self) -> Iterator[str]:
        """The steps and the refusals for a person, a line each."""
        yield from (step.sentence for step in self.steps)
        yield from (refusal.line for refusal in self.refusals)

    def followed_by(self, *sentences: str) -> Self:
        """The plan with more steps at its end."""
        return replace(self, steps=(*self.steps, *steps_of(*sentences)))

    def as_json(self) -> dict[str, Any]:
        """The plan for a program: the same keys for every verb."""
        return {
            "verb": str(self.verb),
            "subject": self.subject,
            "part": self.part,
            "at_stake": str(self.at_stake),
            "rows": self.rows,
            "steps": [to_jsonable_python(step) for step in self.steps],
            "refusals": [to_jsonable_python(refusal) for refusal in self.refusals],
            "evidence": to_jsonable_python(dict(self.evidence)),
            "digest": self.digest,
        }

    def require_unrefused(self) -> None:
        """Require a plan that may be carried out.

        Raises
        ------
        UnpublishableError: with every reason.
        """
        if self.is_refused:
            raise UnpublishableError(
                f"Refused: {self.title}. {' '.join(refusal.sentence for refusal in self.refusals)}",
                next_step=" ".join(dict.fromkeys(refusal.next_step for refusal in self.refusals)),
            )

    def require_same(self, digest: str | None) -> None:
        """Require the plan that a person agreed to elsewhere. digest: of that one; unset: there is none.

        Raises
        ------
        UsageError: when it is another one.
        """
        if digest is not None and digest != self.digest:
            raise UsageError(
                f"The plan is out of date: {self.title} is another one than was shown.",
                next_step="Look at the plan again; nothing was changed.",
            )


NO_FEWER = "Publish nothing where fewer rows would come than go, unless `--allow-fewer` is given."
"""The step of a plan that replaces rows by computed ones."""


def require_no_fewer(*, came: int, gone: int, what: str) -> None:
    """The brake of what replaces rows by computed ones: rows that are missing in a source, and rows that a
    transformation drops by mistake, look like rows that are not there any more.

    Parameters
    ----------
    came: the rows that would be there afterwards. gone: the rows that are there. what: where, for the message.

    Raises
    ------
    UnpublishableError: when they would be fewer; nothing was published.
    """
    if came < gone:
        raise UnpublishableError(
            f"Refused: {what} holds {gone:,} rows, and {came:,} would take their place. Nothing was published.",
            next_step="Look for what is missing in the sources or left out by the transformation. If fewer rows are "
            'right, repeat it with `--allow-fewer`; a run of a DAG takes the conf `{"allow_fewer": true}`.',
        )


def steps_of(*sentences: str) -> tuple[PlannedStep, ...]:
    """Steps that start no program."""
    return tuple(PlannedStep(sentence=sentence) for sentence in sentences)
