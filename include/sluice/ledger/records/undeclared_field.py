"""A field of the values of an input that no column takes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeclaredField:
    """A field that senders send and the declaration does not have.

    field: its name, with the path to it in an object; the number of a Protobuf field.
    times: how often it was sent, in all batches of the stream.
    first_batch, last_batch: the generation and number of the first and of the newest batch with it, `1:42`.
    """

    stream: str
    input: str
    field: str
    times: int
    first_seen_at: datetime
    first_batch: str
    last_seen_at: datetime
    last_batch: str
