"""One thing that blocks a backfill or a refresh, as a plan lists it and as a person reads it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

Reason = TypeVar("Reason", bound=StrEnum, covariant=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal(Generic[Reason]):
    """Why something is not done now: the reason, a sentence, and the next step."""

    reason: Reason
    sentence: str
    next_step: str

    @property
    def line(self) -> str:
        """The refusal for a person."""
        return f"refused ({self.reason}): {self.sentence} {self.next_step}".rstrip()
