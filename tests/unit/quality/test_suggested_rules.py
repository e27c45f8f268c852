"""Rules are suggested from what a real table says, and the patch is a declaration that holds."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog

from sluice.declarations.table_declaration import QualityDeclaration, TableDeclaration
from sluice.quality.suggested_rules import as_patch, suggest_rules
from sluice.tables.column_facts import ColumnFacts, read_column_facts
from sluice.tables.declared_tables import create_or_evolve_table

DECLARED = {
    "table": "a.b",
    "description": "rows",
    "owner": "me",
    "columns": [
        {"name": "id", "type": "long", "required": True},
        {"name": "origin", "type": "string"},
        {"name": "email", "type": "string"},
        {"name": "delay", "type": "double"},
        {"name": "note", "type": "string"},
    ],
}


@pytest.fixture
def facts(tmp_path: Path) -> tuple[ColumnFacts, ...]:
    """Those of a table with two files."""
    catalog = SqlCatalog("files", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    create_or_evolve_table(catalog, TableDeclaration.model_validate(DECLARED))
    table = catalog.load_table("a.b")
    for first in (0, 100):
        rows = [
            {
                "id": number,
                "origin": ("EWR", "JFK")[number % 2],
                "email": "secret@x" if number % 2 else "other@x",
                "delay": None if number == 3 else number / 2,
                "note": f"note {number}",
            }
            for number in range(first, first + 100)
        ]
        table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))
    found = read_column_facts(catalog.load_table("a.b"), sample_rows=150)
    catalog.close()
    return found


def test_rules_are_suggested_with_their_evidence(facts: tuple[ColumnFacts, ...]) -> None:
    rules = suggest_rules(TableDeclaration.model_validate(DECLARED), facts, masked={"email"})

    assert [(rule.type.removeprefix("expect_column_values_to_"), dict(rule.kwargs)) for rule in rules] == [
        ("be_between", {"column": "id", "min_value": 0, "max_value": 199}),
        ("not_be_null", {"column": "origin"}),
        ("be_in_set", {"column": "origin", "value_set": ["EWR", "JFK"]}),
        ("not_be_null", {"column": "email"}),
        ("be_between", {"column": "delay", "min_value": 0.0, "max_value": 99.5}),
        ("not_be_null", {"column": "note"}),
    ]
    assert rules[1].evidence == "none of 200 rows is null, by the counts of all files"
    assert rules[2].evidence == "2 distinct values among 150 of a sample; other rows were not read"


def test_the_patch_is_the_yaml_of_a_declaration_and_nothing_is_suggested_twice(facts: tuple[ColumnFacts, ...]) -> None:
    patch = as_patch("a.b", suggest_rules(TableDeclaration.model_validate(DECLARED), facts, masked={"email"}))
    assert "secret@x" not in patch

    quality = QualityDeclaration.model_validate(yaml.safe_load(patch)["quality"])

    accepted = TableDeclaration.model_validate(DECLARED | {"quality": quality.model_dump()})
    assert suggest_rules(accepted, facts, masked={"email"}) == ()


def test_a_small_table_says_too_little() -> None:
    facts = ColumnFacts(name="id", rows=99, nulls=0, lowest=1, highest=2)
    assert suggest_rules(TableDeclaration.model_validate(DECLARED), [facts], masked=()) == ()
