"""Expectations in words: a person reads which column breaks which bound, how often, and with which values."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sluice.ledger.quality_checks import ExpectationObservation
from sluice.quality.check_results import (
    SHOWN_SAMPLES,
    expectation_sentence,
    rule_words,
    without_masked_values,
)

STRONGEST = ExpectationObservation(
    expectation="expect_column_values_to_be_between",
    arguments={"column": "strongest", "min_value": 0, "max_value": 5},
    success=False,
    observed={"element_count": 318, "samples": [5.3, 5.3, 6.1, 7.0, 5.9]},
    unexpected_rows=16,
    unexpected_percent=5.03,
)


def test_a_sentence_has_the_column_the_bounds_the_count_and_three_different_values() -> None:
    assert SHOWN_SAMPLES == 3
    assert expectation_sentence(STRONGEST) == (
        "strongest is between 0 and 5: 16 of 318 rows break it, for example 5.3, 6.1, 7.0"
    )


@pytest.mark.parametrize(
    ("kind", "arguments", "said"),
    [
        ("column_values_to_be_between", {"column": "x", "min_value": 1}, "x is at least 1"),
        ("column_values_to_be_between", {"column": "x", "min_value": 0, "strict_min": True}, "x is more than 0"),
        (
            "column_values_to_be_between",
            {"column": "x", "min_value": 0, "max_value": 1, "strict_max": True},
            "x is at least 0 and less than 1",
        ),
        ("column_values_to_be_between", {"column": "x", "min_value": None, "max_value": None}, "x is without bounds"),
        (
            "column_values_to_not_be_null",
            {"column": "x", "mostly": 0.9},
            "x is not null, in at least 90 % of the rows",
        ),
        ("column_values_to_be_in_set", {"column": "x", "value_set": ["a", "b"]}, "x is one of a, b"),
        ("compound_columns_to_be_unique", {"column_list": ["a", "b"]}, "a, b together are unique"),
        (
            "column_pair_values_a_to_be_greater_than_b",
            {"column_A": "flights", "column_B": "delayed", "or_equal": True},
            "flights is at least delayed",
        ),
        ("column_pair_values_a_to_be_greater_than_b", {"column_A": "a", "column_B": "b"}, "a is greater than b"),
        ("column_values_to_be_unique", {"column": "x", "row_condition": "y > 1"}, "x is unique (row_condition y > 1)"),
        ("column_values_to_be_json_parseable", {"column": "x"}, "column values to be json parseable (column x)"),
        ("table_row_count_to_be_between", {"min_value": 1}, "the number of rows is at least 1"),
    ],
)
def test_rules_in_words(kind: str, arguments: dict[str, Any], said: str) -> None:
    assert rule_words(f"expect_{kind}", arguments) == said


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"success": None, "problem": "no such column"}, "could not be evaluated: no such column"),
        ({"success": True, "unexpected_rows": 0}, "holds"),
        ({"unexpected_rows": None, "observed": {"observed_value": 0}}, "found 0"),
        ({"unexpected_rows": None, "observed": {}}, "does not hold"),
        ({"observed": {}}, "16 rows break it"),
        ({"observed": {"samples": ["", " ", "a\nb"]}}, "16 rows break it, for example '', ' ', a b"),
    ],
)
def test_what_was_found(changed: dict[str, Any], said: str) -> None:
    assert expectation_sentence(replace(STRONGEST, **changed)) == f"strongest is between 0 and 5: {said}"


def test_a_long_value_is_cut() -> None:
    assert len(expectation_sentence(replace(STRONGEST, observed={"samples": ["x" * 10_000]}))) < 200


@pytest.mark.parametrize("column", ["strongest", "Strongest", "strongest.value"])
def test_of_a_masked_column_no_value_is_left(column: str) -> None:
    found = replace(STRONGEST, arguments={**STRONGEST.arguments, "column": column}, problem="cannot cast '5.3'")

    hidden = without_masked_values(found, {"strongest"})

    assert "5.3" not in str(hidden)
    assert hidden.unexpected_rows == 16
    assert without_masked_values(found, {"place"}) == found
    pair = replace(found, arguments={"column_A": "a", "column_B": "strongest"})
    assert "5.3" not in str(without_masked_values(pair, {"strongest"}))
    several = replace(found, arguments={"column_list": ["a", "strongest"]})
    assert "5.3" not in str(without_masked_values(several, {"strongest"}))
