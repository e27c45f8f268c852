"""A counterexample is made as small as what is wrong allows."""

from __future__ import annotations

from tests.differential.case import Case
from tests.differential.coverage import chosen_seeds, features
from tests.differential.grammar import random_case
from tests.differential.oracle import expected
from tests.differential.report import reproduction
from tests.differential.shrinking import shrunk

SEEDS = range(60)


def brings_a_null(case: Case) -> bool:
    """What is wrong here: some row has no key."""
    return any(row["k2"] is None for rows in case.turns for row in rows)


def test_what_does_not_matter_is_left_out() -> None:
    cases = [case for seed in SEEDS if brings_a_null(case := random_case(seed))]

    for case in cases:
        small = shrunk(case, brings_a_null, most_seconds=60)

        assert [len(rows) for rows in small.turns] == [1]
        assert (small.crash, small.evolution, small.where, small.shape, small.source) == (
            None, None, "", "plain", "iceberg",
        )  # fmt: skip
        assert len(small.outputs) == 1
        expected(small, small.turns)  # it is still a case that can be run
    assert len(cases) > len(SEEDS) / 2


def test_a_shrunk_case_keeps_what_it_needs() -> None:
    case = next(one for one in map(random_case, SEEDS) if one.crash is not None and one.crash.turn == 1)

    small = shrunk(case, lambda one: one.crash is not None and one.crash.turn == 1, most_seconds=60)

    assert len(small.turns) == 2
    assert small.crash == case.crash


def test_a_seed_makes_one_case() -> None:
    assert [random_case(seed) for seed in SEEDS] == [random_case(seed) for seed in SEEDS]
    assert len({repr(random_case(seed)) for seed in SEEDS}) == len(SEEDS)


def test_few_cases_have_every_feature() -> None:
    chosen = {feature for seed in chosen_seeds(40, among=300) for feature in features(random_case(seed))}
    drawn = {feature for seed in range(300) for feature in features(random_case(seed))}

    assert len(drawn - chosen) <= len(drawn) / 20


def test_a_counterexample_names_all_that_is_needed_to_repeat_it() -> None:
    for seed in SEEDS:
        case = random_case(seed)
        text = reproduction(case, ["output0: 1 rows missing"])
        assert text.startswith(f"seed {seed}\n")
        assert text.count('{"n": ') == sum(len(rows) for rows in case.turns)
        assert "output0: 1 rows missing" in text
