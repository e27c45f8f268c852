"""Rows and numbers as the verification compares them."""

from __future__ import annotations

from sluice.demo.lakehouse_copy import compare, compare_number, open_database


def test_rows_are_compared_as_often_as_they_occur_and_null_equals_null() -> None:
    database = open_database()
    same = compare(
        database,
        name="n",
        statement="s",
        expected="select * from (values (1, null), (1, null), (2, 'b'))",
        seen="select * from (values (2, 'b'), (1, null), (1, null))",
    )
    assert same.is_true
    twice = compare(
        database,
        name="n",
        statement="s",
        expected="select * from (values (1, 'a'))",
        seen="select * from (values (1, 'a'), (1, 'a'))",
    )
    assert (twice.missing_rows, twice.surplus_rows) == (0, 1)


def test_numbers_are_compared_in_both_directions() -> None:
    assert compare_number(name="n", statement="s", expected=2, seen=2).is_true
    assert compare_number(name="n", statement="s", expected=2, seen=1).missing_rows == 1
    assert compare_number(name="n", statement="s", expected=2, seen=5).surplus_rows == 3
