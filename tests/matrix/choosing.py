"""Chooses few combinations that together show each thing that could go wrong between two of their parts."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
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

    Input and output meet in Spark's rows alone, whatever their kinds; `make matrix` runs those pairs too.
    """
    return _covering(among, _pairs)


def each_once(among: Iterable[Combination]) -> list[Combination]:
    """Combinations that hold every input, every output, every trigger and every mode that is among the given ones."""
    return _covering(among, _values)


def _covering(
    among: Iterable[Combination], features: Callable[[Combination], frozenset[Hashable]]
) -> list[Combination]:
    """Few combinations with all features. Greedy: the one with the most features that no chosen one has comes next,
    the first in order among equals."""
    left = list(among)
    missing = {feature for combination in left for feature in features(combination)}
    chosen: list[Combination] = []
    while missing:
        best = max(left, key=lambda combination: len(missing & features(combination)))
        chosen.append(best)
        missing -= features(best)
    return chosen


def _values(combination: Combination) -> frozenset[Hashable]:
    return frozenset((part, getattr(combination, part)) for part in _PARTS)


def _pairs(combination: Combination) -> frozenset[Hashable]:
    values = [(part, getattr(combination, part)) for part in _PARTS]
    pairs = combinations(values, 2)
    return frozenset(pair for pair in pairs if (pair[0][0], pair[1][0]) != ("input", "output"))
