"""Statistics are declared for columns that have distinct values, by the table or for many tables at once."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from sluice.declarations.maintenance_declaration import StatisticsDeclaration

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder

TABLE = """\
table: gold.places
description: Places, each once.
owner: me
columns:
  - {name: id, type: long}
  - {name: tags, type: list<string>}
  - {name: city, type: string}
"""


def statistics_of(folder: Folder, table: str) -> StatisticsDeclaration | None:
    """The statistics that hold for a table."""
    return folder.load().tables[table].declaration.maintenance.statistics


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ("{}", ""),
        ("{columns: [], older_than: 1 hour}", ""),
        ("{columns: [id, city]}", ""),
        ("{columns: [id, city, id]}", ".columns`: the column id is named twice"),
        ("{columns: [town]}", ".columns[0]`: the table has no column town; it has id, tags, city"),
        ("{columns: [id, tags]}", ".columns[1]`: tags has values within its values, and no distinct ones are counted"),
    ],
)
def test_columns_of_statistics(valid: Folder, declared: str, sentence: str) -> None:
    valid.write("gold.places.table.yaml", f"{TABLE}maintenance:\n  statistics: {declared}\n")

    found = [problem.partition("maintenance.statistics")[2] for problem in valid.problems()]

    assert [one[: len(sentence)] for one in found] == ([sentence] if sentence else [])


def test_no_table_has_statistics_unless_it_is_declared(valid: Folder) -> None:
    valid.write("gold.places.table.yaml", TABLE)

    assert statistics_of(valid, "gold.places") is None


def test_statistics_of_all_tables_are_of_the_columns_that_each_has(valid: Folder) -> None:
    valid.write(
        "maintenance.yaml", "all_tables:\n  statistics: {columns: [city, tags, none_such], older_than: 2 days}\n"
    )
    valid.write("gold.places.table.yaml", TABLE)
    assert valid.problems() == []

    assert statistics_of(valid, "gold.places") == StatisticsDeclaration(columns=("city",), older_than=timedelta(days=2))
    assert statistics_of(valid, "bronze.flights") == StatisticsDeclaration(columns=(), older_than=timedelta(days=2))
    said = {one.key: str(one) for one in valid.load().policy_of("bronze.flights")}
    assert said["statistics.columns"].startswith("statistics.columns: none, all_tables (")


def test_a_table_turns_the_statistics_of_its_namespace_off(valid: Folder) -> None:
    valid.write("maintenance.yaml", "namespaces:\n  gold: {statistics: {}}\n")
    valid.write("gold.places.table.yaml", f"{TABLE}maintenance:\n  statistics: null\n")

    assert statistics_of(valid, "gold.places") is None
