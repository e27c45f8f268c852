"""What the checks of the checkpoints found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from sqlalchemy import Identity, Index, insert, select
from sqlalchemy.orm import Mapped, mapped_column

from sluice.ledger.connection import Ledger
from sluice.ledger.ledger_table import LedgerTable
from sluice.ledger.stored_values import record_of, values_of


class CheckpointProperty(StrEnum):
    """What must be true of a healthy checkpoint; each check reports one finding for each of these.

    POSITION: tables, ledger, checkpoint and sources agree where the stream stands.
    PUBLISHED_FILES: those of the published files that were looked for exist.
    COPIES: nothing shows that the newest copy of the state could not be put back.
    """

    EXISTS = "exists"
    IDENTITY = "identity"
    OFFSETS_CONTIGUOUS = "offsets_contiguous"
    OFFSETS_READABLE = "offsets_readable"
    COMMITS_FOLLOW_OFFSETS = "commits_follow_offsets"
    COMMITS_READABLE = "commits_readable"
    FILES_COMPLETE = "files_complete"
    STATE_COMPLETE = "state_complete"
    NO_LEFTOVERS = "no_leftovers"
    PROGRESS = "progress"
    POSITION = "position"
    PUBLISHED_FILES = "published_files"
    COPIES = "copies"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointFinding:
    """One thing that was looked at: whether it is as it must be, and the sentence for a person."""

    name: CheckpointProperty
    healthy: bool
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointObservation:
    """One check of one checkpoint.

    location: the URI of the checkpoint folder.
    checked_at: the time against which ages were judged.
    newest_batch: the newest batch that is committed; unset before the first.
    newest_commit_age_seconds: how long ago it was committed; unset before the first.
    recorded_at: the database's clock; unset until the ledger has it.
    """

    stream: str
    generation: int
    location: str
    checked_at: datetime
    findings: tuple[CheckpointFinding, ...]
    newest_batch: int | None
    newest_commit_age_seconds: float | None
    recorded_at: datetime | None = None

    @property
    def problems(self) -> Sequence[CheckpointFinding]:
        """What is not as it must be."""
        return tuple(finding for finding in self.findings if not finding.healthy)

    @property
    def healthy(self) -> bool:
        """Whether everything that was looked at is as it must be."""
        return not self.problems


class CheckpointCheck(LedgerTable, record=CheckpointObservation):
    """One check of one checkpoint."""

    __tablename__ = "checkpoint_checks"
    __table_args__ = (Index(None, "stream", "number"),)

    number: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)


_COLUMNS = CheckpointCheck.columns(without=("number",))


def record_checkpoint_check(ledger: Ledger, check: CheckpointObservation) -> None:
    """Record what a check of a checkpoint found."""
    with ledger.transaction() as connection:
        connection.execute(insert(CheckpointCheck).values(**values_of(check)))


def newest_checkpoint_check(ledger: Ledger, stream: str) -> CheckpointObservation | None:
    """The newest check of a stream's checkpoint; none before its first."""
    return next(iter(recent_checkpoint_checks(ledger, stream, limit=1)), None)


def recent_checkpoint_checks(ledger: Ledger, stream: str, limit: int) -> tuple[CheckpointObservation, ...]:
    """The newest checks of a stream's checkpoint, newest first, at most `limit`."""
    newest = select(*_COLUMNS).where(CheckpointCheck.stream == stream).order_by(CheckpointCheck.number.desc())
    with ledger.transaction() as connection:
        rows = connection.execute(newest.limit(limit)).all()
    return tuple(record_of(CheckpointObservation, row) for row in rows)
