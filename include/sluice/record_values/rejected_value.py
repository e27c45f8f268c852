"""The error of a value that cannot be decoded, and the limit of the values that are."""

from __future__ import annotations


class RejectedValueError(ValueError):
    """A value that goes to the quarantine. The message becomes the reason in its row."""


LARGEST_VALUE_BYTES = 16 * 2**20
"""The most bytes of a value: sixteen times what a Kafka broker takes by default. Decoding takes several times as much
memory."""


def too_large(value: bytes) -> str:
    """The reason for the rejection of a value that is larger."""
    return f"the value has {len(value)} bytes; at most {LARGEST_VALUE_BYTES} are decoded"
