"""What the ledger knows of a failure: its class, and the reason within it."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.errors import FailureClass, FailureReason


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A failure as it is told: its class, and the reason within it."""

    failure_class: FailureClass
    reason: FailureReason
