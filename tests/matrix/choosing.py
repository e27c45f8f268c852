"""Chooses few combinations that together show each thing that could go wrong between two of their parts."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations

from tests.matrix.declaring import unbuilt_part

from sluice.declarations.checks.combinations import Combination, every_combination, judge

_PARTS = ("input", "output", "trigger", "mode")


def judged() -> list[tuple[Combination, str | None]]:
    """All combinations, each with the reason for which it is refused; none of one that runs."""
    return [(one, judge(one) or unbuilt_part(one)) for one in every_combination()]


def runnable_combinations() -> list[Combination]:
    """All that go together and whose parts are built."""
    return [combination for combination, reason in judged() if reason is None]


def pairwise(among: Iterable[Combination]) -> list[Combination]:
    """Combinations that hold every pair of two parts that is among the given ones, but those of input and output.

    Input and output meet in Spark's rows alone, whatever their kinds; `make matrix` runs those pairs too. Greedy: the
    combination with the most pairs that no chosen one holds comes next, the first in order among equals.
    """
    left = list(among)
    missing = {pair for combination in left for pair in _pairs(combination)}
    chosen: list[Combination] = []
    while missing:
        best = max(left, key=lambda combination: len(missing & _pairs(combination)))
        chosen.append(best)
        missing -= _pairs(best)
    return chosen


def _pairs(combination: Combination) -> frozenset[tuple[tuple[str, str], tuple[str, str]]]:
    values = [(part, getattr(combination, part)) for part in _PARTS]
    pairs = combinations(values, 2)
    return frozenset(pair for pair in pairs if (pair[0][0], pair[1][0]) != ("input", "output"))
