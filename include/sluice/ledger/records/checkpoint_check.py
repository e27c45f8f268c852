"""What the ledger stores about the check of a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class CheckpointProperty(StrEnum):
    """What must be true of a healthy checkpoint; each check reports one finding for each of these."""

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
