"""Chooses few cases that have every pair of features between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from tests.differential.case import Case
from tests.differential.grammar import random_case

Feature = tuple[str, str]


def features(case: Case) -> list[Feature]:
    """What a case has, one value of each dimension."""
    modes = sorted({"feed" if output.is_feed else output.mode for output in case.outputs})
    crash = "none" if case.crash is None else str(case.crash.point or "replayed")
    transforms = sorted({field[1] for output in case.outputs for field in output.partitioning})
    return [
        ("source", case.source),
        ("key", case.key),
        ("shape", case.shape),
        ("join", str(case.join)),
        ("step", case.step.kind),
        ("modes", "+".join(modes)),
        ("outputs", "one" if len(case.outputs) == 1 else "several"),
        ("crash", crash),
        ("evolution", case.evolution.kind if case.evolution is not None else "none"),
        ("watermark", str(case.delay_seconds is not None)),
        ("partitioning", transforms[0] if transforms else "none"),
    ]


def chosen_seeds(number: int, *, among: int) -> Sequence[int]:
    """Seeds of cases, each with the most pairs of features that no case before it had."""
    pairs = {seed: set(combinations(features(random_case(seed)), 2)) for seed in range(among)}
    chosen: list[int] = []
    seen: set[tuple[Feature, Feature]] = set()
    for _ in range(number):
        best = max(pairs, key=lambda seed: len(pairs[seed] - seen))
        chosen.append(best)
        seen |= pairs.pop(best)
    return chosen
