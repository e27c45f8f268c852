"""Which types of PostgreSQL are refused, because Spark would read another value."""

from __future__ import annotations

import pytest

from sluice.sources.source_types import checked_columns, unreadable_columns, unreadable_type


@pytest.mark.parametrize(
    "kind",
    [
        "numeric",
        "numeric[]",
        "numeric(40,2)",
        "numeric(5,-2)",
        "money",
        "time without time zone",
        "time(3) with time zone",
    ],
)
def test_what_spark_would_change_is_refused(kind: str) -> None:
    assert unreadable_type(kind) is not None


@pytest.mark.parametrize(
    "kind",
    [
        "numeric(38,18)",
        "numeric(9,2)[]",
        "bigint",
        "text",
        "character varying(10)",
        "timestamp with time zone",
        "timestamp(3) without time zone",
        "uuid",
        "jsonb",
        "bytea",
        "interval",
        "int4range",
        "double precision",
    ],
)
def test_all_else_is_left_to_spark(kind: str) -> None:
    assert unreadable_type(kind) is None


def test_the_values_of_times_and_numbers_are_checked() -> None:
    terms = list(checked_columns({'a"b': "bigint", "it's": "date", "n": "numeric(9,2)"}))

    assert terms[0] == '"a""b"'
    assert 'isfinite("it\'s")' in terms[1]
    assert "in column it''s" in terms[1]
    assert "<> 'NaN'" in terms[2]
    assert terms[2].endswith('AS numeric(9,2)) AS "n"')


def test_a_column_is_named_with_its_type() -> None:
    (phrase,) = unreadable_columns({"id": "bigint", "amount": "numeric"})
    assert (
        phrase == "column amount of type numeric has no scale, and Spark would round it to 18 digits behind the point"
    )
