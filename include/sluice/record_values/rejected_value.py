"""The error of a value that cannot be decoded, and the limits of the values that are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class RejectedValueError(ValueError):
    """A value that goes to the quarantine. The message becomes the reason in its row."""


LARGEST_VALUE_BYTES = 16 * 2**20
"""The most bytes of a value: sixteen times what a Kafka broker takes by default. Decoding takes several times as much
memory."""


def too_large(value: bytes) -> str:
    """The reason for the rejection of a value that is larger."""
    return f"the value has {len(value)} bytes; at most {LARGEST_VALUE_BYTES} are decoded"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodingLimits:
    """What a value may cost.

    seconds: the longest that the decoding of a value may take; a block has more time if it is large.
    tries: how often a value is decoded alone before it is rejected, because a process may also die for another reason.
    """

    seconds: float = 30
    tries: int = 3

    def seconds_of(self, values: Sequence[bytes | None]) -> float:
        """The longest that the decoding of some values may take."""
        return self.seconds * (1 + sum(len(value or b"") for value in values) // LARGEST_VALUE_BYTES)
