"""How far the streams that read a table have come: what snapshot expiry must know."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

BEGINNING = -1
"""The snapshot id in the offset of a reader that found the table empty; the oldest listed snapshot takes its place.

Source: Iceberg's `StreamingOffset.START_OFFSET`.
"""


class Knowledge(StrEnum):
    """What is known of a reader. UNKNOWN is never treated as NOT_STARTED."""

    NOT_STARTED = "not_started"
    KNOWN = "known"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderObservation:
    """One input of a stream that reads a table's appended rows.

    position: the snapshot from which the reader would go on at the earliest; set when KNOWN.
    problem: why nothing is known, a sentence; empty otherwise.
    """

    stream: str
    input: str
    knowledge: Knowledge
    position: int | None = None
    problem: str = ""
