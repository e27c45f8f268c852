"""The number of shuffle partitions of a stream."""

from __future__ import annotations

import pytest

from sluice_spark.session.state_settings import PartsReason, StateParts, decide_state_parts


@pytest.mark.parametrize(
    ("declared", "frozen", "number", "reason"),
    [
        (None, None, 4, PartsReason.CORES),
        (7, None, 7, PartsReason.DECLARED),
        (None, 3, 3, PartsReason.FROZEN),
        (3, 3, 3, PartsReason.FROZEN),
    ],
)
def test_what_the_checkpoint_says_comes_first(
    declared: int | None, frozen: int | None, number: int, reason: PartsReason
) -> None:
    assert decide_state_parts(declared=declared, frozen=frozen, cores=4) == StateParts(number=number, reason=reason)
