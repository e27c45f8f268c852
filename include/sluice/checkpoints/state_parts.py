"""Decides in how many parts a stream keeps its state. The number freezes in the checkpoint at the first start."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class PartsReason(StrEnum):
    """Why it is so many parts."""

    FROZEN = "as in the checkpoint, which keeps the number of its first start"
    DECLARED = "declared"
    CORES = "one for each core: small batches pay for every further one"


@dataclass(frozen=True, slots=True, kw_only=True)
class StateParts:
    """So many parts, and why."""

    number: int
    reason: PartsReason


def decide_state_parts(*, declared: int | None, frozen: int | None, cores: int) -> StateParts:
    """In how many parts a stream shuffles its rows, and so keeps its state.

    Parameters
    ----------
    declared: what the declaration asks for; unset leaves it to the platform.
    frozen: what the checkpoint says; unset before the first batch.
    cores: what the application has.
    """
    if frozen is not None:
        return StateParts(number=frozen, reason=PartsReason.FROZEN)
    if declared is not None:
        return StateParts(number=declared, reason=PartsReason.DECLARED)
    return StateParts(number=cores, reason=PartsReason.CORES)
