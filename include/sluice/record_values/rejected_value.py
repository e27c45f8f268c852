"""The error of a value that cannot be decoded."""

from __future__ import annotations


class RejectedValueError(ValueError):
    """A value that goes to the quarantine. The message becomes the reason in its row."""
