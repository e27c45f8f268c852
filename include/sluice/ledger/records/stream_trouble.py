"""What is wrong with a stream, and since when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTrouble:
    """An unhealthy state of a stream.

    reason: the state, in the words of `sluice stream status`. explanation: the sentence for a person.
    since: when the stream was first seen in it without a break. observed_at: now; both by the database's clock.
    reported_at: when a person was first alerted; unset before.
    """

    stream: str
    reason: str
    explanation: str
    since: datetime
    observed_at: datetime
    reported_at: datetime | None = None

    @property
    def lasted(self) -> timedelta:
        """How long the stream has been in it."""
        return self.observed_at - self.since
