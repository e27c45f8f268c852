"""Expectations in words: what must be true of which column, how many rows break it, and some of their values. Pure."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any

from sluice.ledger.quality_checks import ExpectationObservation

SHOWN_SAMPLES = 3
"""How many values of rows a sentence quotes: enough to see what kind of mistake it is."""

SHOWN_SENTENCES = 5
"""How many broken expectations the sentence of a check names; the rest is counted."""

LONGEST_SAMPLE = 60

_COLUMN_ARGUMENTS = ("column", "column_A", "column_B", "column_list")

_RULES: Mapping[str, str] = {
    "expect_column_values_to_not_be_null": "{column} is not null",
    "expect_column_values_to_be_null": "{column} is null",
    "expect_column_values_to_be_unique": "{column} is unique",
    "expect_column_values_to_be_between": "{column} is {bounds}",
    "expect_column_values_to_be_in_set": "{column} is one of {value_set}",
    "expect_column_values_to_not_be_in_set": "{column} is none of {value_set}",
    "expect_column_values_to_match_regex": "{column} matches {regex}",
    "expect_column_values_to_not_match_regex": "{column} does not match {regex}",
    "expect_column_value_lengths_to_be_between": "the length of {column} is {bounds}",
    "expect_column_value_lengths_to_equal": "the length of {column} is {value}",
    "expect_column_min_to_be_between": "the smallest {column} is {bounds}",
    "expect_column_max_to_be_between": "the largest {column} is {bounds}",
    "expect_column_mean_to_be_between": "the mean of {column} is {bounds}",
    "expect_column_stdev_to_be_between": "the standard deviation of {column} is {bounds}",
    "expect_column_proportion_of_non_null_values_to_be_between": "the share of {column} that is not null is {bounds}",
    "expect_column_sum_to_be_between": "the sum of {column} is {bounds}",
    "expect_column_unique_value_count_to_be_between": "the number of values of {column} is {bounds}",
    "expect_column_to_exist": "the column {column} exists",
    "expect_column_pair_values_to_be_equal": "{column_A} equals {column_B}",
    "expect_column_pair_values_a_to_be_greater_than_b": "{column_A} is greater than {column_B}",
    "expect_compound_columns_to_be_unique": "{column_list} together are unique",
    "expect_table_row_count_to_be_between": "the number of rows is {bounds}",
    "expect_table_row_count_to_equal": "the number of rows is {value}",
    "column_values_to_be_unique_in_table": "{column} is unique in the table",
    "compound_columns_to_be_unique_in_table": "{column_list} together are unique in the table",
    "column_to_be_fresh": "the newest {column} is at most {within} old",
    "column_values_to_exist_in_table": "{column} is in {table}",
}
"""The rules that are used most; every other one is named with its arguments."""

_IN_WORDS = frozenset(
    {"min_value", "max_value", "strict_min", "strict_max", "mostly", "value_set", "regex", "value", "or_equal"}
    | {"within", "table"}
)


def rule_words(expectation: str, arguments: Mapping[str, Any]) -> str:
    """What must be true, with its columns and bounds: `strongest is between 0 and 5`."""
    given = {name: value for name, value in arguments.items() if value is not None}
    words = {name: _value_words(value) for name, value in given.items()} | {"bounds": _bounds(given)}
    pattern = _RULES.get(expectation, "")
    if given.get("or_equal") and "greater than" in pattern:
        pattern = pattern.replace("greater than", "at least")
    try:
        rule = pattern.format_map(words)
    except KeyError:
        rule = ""
    left = given if not rule else {k: v for k, v in given.items() if k not in (*_COLUMN_ARGUMENTS, *_IN_WORDS)}
    rule = rule or expectation.removeprefix("expect_").replace("_", " ")
    shown = ", ".join(f"{name} {_value_words(value)}" for name, value in left.items() if name != "mostly")
    mostly = given.get("mostly")
    most = f", in at least {100 * mostly:g} % of the rows" if isinstance(mostly, int | float) and mostly < 1 else ""
    return f"{rule}{f' ({shown})' if shown else ''}{most}"


def found_words(found: ExpectationObservation) -> str:
    """What was found: `3 of 318 rows are not, for example 5.3, 5.6, 6.1`."""
    if found.success is None:
        return f"could not be evaluated: {found.problem or 'it is unknown why'}"
    if found.unexpected_rows is None:
        value = found.observed.get("observed_value")
        return "holds" if found.success else f"found {_value_words(value)}" if value is not None else "does not hold"
    if not found.unexpected_rows:
        return "holds"
    elements = found.observed.get("element_count")
    of = f" of {elements:,}" if isinstance(elements, int) else ""
    samples = list(sample_words(found))
    examples = f", for example {', '.join(samples)}" if samples else ""
    return f"{found.unexpected_rows:,}{of} rows break it{examples}"


def expectation_sentence(found: ExpectationObservation) -> str:
    """An expectation with what was found."""
    return f"{rule_words(found.expectation, found.arguments)}: {found_words(found)}"


def without_masked_values(found: ExpectationObservation, masked: Collection[str]) -> ExpectationObservation:
    """The result without values of rows, when it is about a masked column; counts stay.

    Parameters
    ----------
    masked: the names of the columns, in lower case.
    """
    if not set(columns_of(found.arguments)) & set(masked):
        return found
    problem = "why is hidden, because it is about a masked column" if found.problem else ""
    kept = {name: value for name, value in found.observed.items() if name == "element_count"}
    return replace(found, observed=kept, problem=problem)


def columns_of(arguments: Mapping[str, Any]) -> Iterator[str]:
    """The columns that an expectation is about, in lower case."""
    for name in _COLUMN_ARGUMENTS:
        named = arguments.get(name)
        for column in named if isinstance(named, list | tuple) else [named]:
            if isinstance(column, str):
                yield column.partition(".")[0].lower()


def _bounds(given: Mapping[str, Any]) -> str:
    least, most = (_value_words(given[name]) if name in given else "" for name in ("min_value", "max_value"))
    if least and most and not given.get("strict_min") and not given.get("strict_max"):
        return f"between {least} and {most}"
    parts = []
    if least:
        parts.append(f"{'more than' if given.get('strict_min') else 'at least'} {least}")
    if most:
        parts.append(f"{'less than' if given.get('strict_max') else 'at most'} {most}")
    return " and ".join(parts) or "without bounds"


def sample_words(found: ExpectationObservation) -> Iterator[str]:
    """Some of the values that break an expectation, at most `SHOWN_SAMPLES` different ones."""
    seen = (_value_words(value) for value in found.observed.get("samples") or ())
    for number, words in enumerate(dict.fromkeys(seen)):
        if number == SHOWN_SAMPLES:
            return
        yield words


def _value_words(value: object) -> str:
    """A value on one line, cut to `LONGEST_SAMPLE` characters."""
    if isinstance(value, list | tuple):
        text = ", ".join(str(one) for one in value)
    elif isinstance(value, str):
        text = value or "''"
    else:
        text = json.dumps(value, default=str, ensure_ascii=False)
    text = " ".join(text.split()) or "' '"
    return text if len(text) <= LONGEST_SAMPLE else f"{text[: LONGEST_SAMPLE - 1]}…"
