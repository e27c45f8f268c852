"""A refresh in the ledger: a table that is rebuilt in a shadow generation of its stream, and swapped in one commit."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from sluice.stored_keys import REFRESH_TAG_PREFIX

_SHADOW = re.compile(r"refresh_[0-9]+_of_.*")
_LONGEST_NAME = 63


class RefreshState(StrEnum):
    """How far a refresh is.

    BUILDING: the shadow is built; the table is as it was. SWAPPING: the stream is fenced off, and the commit may have
    landed; the mark on the table shows whether it has. SWAPPED: the stream goes on in the new generation.
    TAKING_BACK: the old content is about to come back; the mark shows whether it has. TAKEN_BACK: it has.
    ABANDONED: a person gave the refresh up before the swap.
    """

    BUILDING = "building"
    SWAPPING = "swapping"
    SWAPPED = "swapped"
    TAKING_BACK = "taking_back"
    TAKEN_BACK = "taken_back"
    ABANDONED = "abandoned"


OPEN_STATES = frozenset({RefreshState.BUILDING, RefreshState.SWAPPING, RefreshState.TAKING_BACK})
"""In these a command has to go on; a stream has at most one such refresh."""

UNSETTLED_STATES = frozenset({RefreshState.SWAPPING, RefreshState.TAKING_BACK})
"""In these a generation may be on the table that the ledger does not have yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RefreshObservation:
    """One refresh.

    number: rises with every refresh. digest: of the declaration that the shadow is built with.
    leaves: the generation of the stream before the swap. opens: the one that the swap, or the way back, opens.
    previous: the position of the mark before that commit: generation, batch and digest of the end offsets.
    keeps: for how long the old content can be taken back. keeps_until: by when; unset before the swap.
    snapshot_id: the one that made the new content visible.
    """

    number: int
    stream: str
    state: RefreshState
    digest: str
    leaves: int
    opens: int | None
    previous: Mapping[str, Any] = field(default_factory=dict, hash=False)
    keeps: timedelta
    keeps_until: datetime | None
    rows: int | None
    snapshot_id: int | None
    asked_by: str
    began_at: datetime
    ended_at: datetime | None

    @property
    def shadow(self) -> str:
        """The name under which the shadow generation runs."""
        return shadow_name(self.number, self.stream)

    @property
    def tag(self) -> str:
        """The tag of the table that keeps the old content."""
        return f"{REFRESH_TAG_PREFIX}{self.number}"

    def can_be_taken_back(self, now: datetime) -> bool:
        """Whether the old content is kept at a time."""
        return self.state is RefreshState.SWAPPED and self.keeps_until is not None and now < self.keeps_until


def shadow_name(number: int, stream: str) -> str:
    """The name under which a refresh runs its stream: no declared stream may have it."""
    return f"refresh_{number}_of_{stream}"[:_LONGEST_NAME].rstrip("_")


def is_shadow_name(name: str) -> bool:
    """Whether a name has the form of those under which refreshes run."""
    return _SHADOW.fullmatch(name) is not None
