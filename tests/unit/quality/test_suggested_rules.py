"""Rules are suggested from what a real table says, and the patch is a declaration that holds."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog

from sluice.declarations.declaration_files import read_document
from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.table_declaration import TableDeclaration
from sluice.quality.declaration_patches import as_patch, suggest_rules
from sluice.tables.column_facts import ColumnFacts, pattern_of, read_column_facts
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
        {"name": "code", "type": "int"},
        {"name": "text", "type": "string"},
        {"name": "at", "type": "timestamptz"},
        {"name": "day", "type": "date"},
    ],
}
LATE, DAY = datetime(2026, 1, 2, 3, tzinfo=UTC), date(2026, 1, 2)


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
                "code": (200, 404)[number % 2],
                "text": "Ja" if number % 2 else f"nein {number % 50}, {'x' * (number % 9)}",
                "at": LATE + timedelta(hours=number),
                "day": DAY + timedelta(days=number),
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
        ("match_regex", {"column": "note", "regex": "^[a-z]{4}\\ [0-9]{1,3}$"}),
        ("not_be_null", {"column": "code"}),
        ("be_between", {"column": "code", "min_value": 200, "max_value": 404}),
        ("be_in_set", {"column": "code", "value_set": [200, 404]}),
        ("not_be_null", {"column": "text"}),
        ("expect_column_value_lengths_to_be_between", {"column": "text", "min_value": 2, "max_value": 17}),
        ("not_be_null", {"column": "at"}),
        ("be_between", {"column": "at", "min_value": "2026-01-02 03:00:00+00:00"}),
        ("not_be_null", {"column": "day"}),
        ("be_between", {"column": "day", "min_value": "2026-01-02"}),
    ]
    assert rules[1].evidence == "none of 200 rows is null, by the counts of all files"
    assert rules[2].evidence == "2 distinct values among 150 of a sample; other rows were not read"


HELD = "{type: expect_column_values_to_not_be_null, kwargs: {column: id}}"
WAYS = {
    "nothing": "",
    "rules": "rules:\n  - {name: low, type: expect_column_values_to_be_between, kwargs: {column: id, min_value: 0}}\n",
    "block": f"quality:\n  on_publication: true\n  expectations:\n  - {HELD}\n  # the end\nproperties: {{}}\n",
    "deep": f"quality:\n    expectations:   # checked\n\n      - {HELD}\n      -\n        type: expect_a_thing\n",
    "flow": f"quality: {{expectations: [{HELD}], on_publication: true}}\n",
}


@pytest.mark.parametrize("way", WAYS)
def test_a_pasted_patch_is_a_valid_declaration_and_nothing_is_suggested_twice(
    facts: tuple[ColumnFacts, ...], way: str, tmp_path: Path
) -> None:
    file = tmp_path / "declared" / "a.b.table.yaml"
    file.parent.mkdir()
    file.write_text(yaml.safe_dump(DECLARED, sort_keys=False) + WAYS[way])
    before = load_declarations(file.parent).table("a.b")
    rules = suggest_rules(before.declaration, facts, masked={"email"}, rules=before.declaration.rules)
    patch = as_patch(before, rules)
    assert "secret@x" not in patch
    assert ("be_between" in [rule.type[-10:] for rule in rules if rule.kwargs["column"] == "id"]) is (way != "rules")

    file.write_text(pasted(file.read_text(), patch))

    after = load_declarations(file.parent).table("a.b")
    assert suggest_rules(after.declaration, facts, masked={"email"}, rules=after.declaration.rules) == ()
    assert before.declaration.quality is None or after.declaration.quality is not None
    if before.declaration.quality is not None and after.declaration.quality is not None:
        assert after.declaration.quality.on_publication == before.declaration.quality.on_publication
        kept = after.declaration.quality.expectations
        assert [one for one in before.declaration.quality.expectations if one not in kept] == []


def pasted(text: str, patch: str) -> str:
    """The file after a person has done what the first line of the patch says."""
    lines, head = text.splitlines(), patch.splitlines()[0]
    if found := re.search(r"insert below line (\d+)", head):
        lines.insert(int(found[1]), patch)
    elif found := re.search(r"in the place of `quality` in line (\d+)", head):
        lines[int(found[1]) - 1] = patch
    else:
        lines.append(patch)
    return "\n".join(lines) + "\n"


def test_numbers_and_texts_of_a_patch_are_read_as_what_they_were(tmp_path: Path) -> None:
    (tmp_path / "a.b.table.yaml").write_text(yaml.safe_dump(DECLARED, sort_keys=False))
    delay = ColumnFacts(name="delay", rows=100, nulls=1, lowest=1e-07, highest=1e20)
    origin = ColumnFacts(name="origin", rows=100, nulls=1, sampled=100, values=("12:30", "no", "1e5", "\U0001f600 é"))
    loaded = load_declarations(tmp_path).table("a.b")
    patch = as_patch(loaded, suggest_rules(loaded.declaration, [delay, origin], masked=()))

    unshowable = ColumnFacts(name="origin", rows=100, nulls=1, sampled=100, values=("\x1b[2J",), pattern="^\x1b[a-z]$")
    assert suggest_rules(loaded.declaration, [unshowable], masked=()) == (), "no file may hold it"

    content = read_document(patch.encode(), file=tmp_path / "patch.yaml").content

    assert [one["kwargs"] for one in content["quality"]["expectations"]] == [
        {"column": "delay", "min_value": 1e-07, "max_value": 1e20},
        {"column": "origin", "value_set": ["12:30", "no", "1e5", "\U0001f600 é"]},
    ]


@pytest.mark.parametrize(
    ("texts", "pattern"),
    [
        (["AB-1", "CD-2345"], "^[A-Z]{2}\\-[0-9]{1,4}$"),
        (["a", "B"], ""),
        (["..", ".."], ""),
        ([""], ""),
        (["a1b2c3d4e5f6g7h8i"], ""),
        ([], ""),
    ],
)
def test_the_pattern_of_texts_that_are_built_alike(texts: list[str], pattern: str) -> None:
    assert pattern_of(texts) == pattern
    assert not pattern or all(re.search(pattern, text) for text in texts)


def test_a_small_table_says_too_little() -> None:
    facts = ColumnFacts(name="id", rows=99, nulls=0, lowest=1, highest=2)
    assert suggest_rules(TableDeclaration.model_validate(DECLARED), [facts], masked=()) == ()
