"""What is said of a value that cannot be decoded."""

from __future__ import annotations


class UnfitError(ValueError):
    """A value that goes to the quarantine; the message is the reason that stands there."""
