"""`sluice table erase`, as a person calls it: the plan, consent, conditions from files, quarantines. No Spark."""

from __future__ import annotations

import io
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from tests.fixtures.erasing import ANN, Household, home
from tests.integration.maintenance.test_maintenance_commands import ended

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import quarantine_declaration
from sluice.ledger.events import EventSubject, recent_events
from sluice.publication.data_files import data_folder
from sluice.tables.declared_tables import create_or_evolve_table
from sluice.tables.stored_files import StoredFolder

__all__ = ["home"]

pytestmark = pytest.mark.parametrize("catalog_place", ["rest"], indirect=True)
"""A command opens the catalog of the settings."""


@pytest.fixture
def condition(home: Household) -> Path:
    """A file with the condition, and a table with rows of the person."""
    home.declare(quarantine=True)
    home.append((ANN, 1), ("Bob", 2))
    file = home.folder / "person.txt"
    file.write_text("kind = 'Ann O''Brien 🌊'\n")
    return file


def test_a_person_sees_the_plan_and_then_does_it(
    home: Household, condition: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["table", "erase", home.name, "--where-file", str(condition)]
    assert ended([*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"erase {home.name}:" in said
    assert "Write again without 1 row: 1 file of the newest snapshot." in said
    assert f"Not searched: the checkpoints of {home.writer}" in said
    assert "Nothing was changed" in said
    assert len(home.rows()) == 2

    assert ended(words) == 2  # no terminal to answer on
    assert len(home.rows()) == 2

    assert ended([*words, "--yes", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["verb"] == "erase"
    (table,) = printed["result"]["tables"]
    assert (table["table"], table["rows"]["live"], table["found"]) == (home.name, 1, 0)
    assert home.rows() == [("Bob", 2)]

    assert ended([*words, "--yes"]) == 0
    assert "hold no such row" in capsys.readouterr().out


@pytest.mark.full  # every run: one that leaves another table as it is
def test_a_refused_plan_ends_with_one(home: Household, condition: Path, capsys: pytest.CaptureFixture[str]) -> None:
    condition.write_text("id > 0")
    words = ["table", "erase", home.name, "--where-file", str(condition)]
    assert ended([*words, "--dry-run"]) == 1
    assert "refused (every_row)" in capsys.readouterr().out
    assert ended([*words, "--yes"]) == 1
    assert "--every-row" in capsys.readouterr().err
    assert ended([*words, "--yes", "--every-row"]) == 0
    assert home.rows() == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "Nothing says which rows"),
        (["--where", "id = 1", "--where-file", "x"], "Both"),
        (["--where-file", "away.txt"], "cannot be read: FileNotFoundError"),
        (["--where", "nothing"], "The condition cannot be read"),
        (["--text", "abc"], "fewer than 4 characters"),
    ],
)
def test_a_wrong_call_ends_with_two(
    home: Household, condition: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    if words[:1] == ["--text"]:
        quarantine(home)
    assert ended(["table", "erase", home.name, *words, "--yes"]) == 2
    assert said in capsys.readouterr().err
    assert len(home.rows()) == 2


@pytest.mark.full  # every run has it from a file
def test_the_condition_may_come_from_stdin(home: Household, condition: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(condition.read_text()))
    assert ended(["table", "erase", home.name, "--where-file", "-", "--yes"]) == 0
    assert home.rows() == [("Bob", 2)]


def quarantine(home: Household) -> str:
    """The quarantine of the writer, with records of the person and of others; its name."""
    stream = load_declarations(home.folder).stream(home.writer).declaration
    declared = quarantine_declaration(stream)
    create_or_evolve_table(home.bench.catalog, declared)
    table = home.bench.catalog.load_table(declared.table)
    now = datetime.now(UTC)
    base: dict[str, Any] = {"stream": home.writer, "generation": 1, "batch": 1, "refused_at": now}
    records: list[dict[str, Any]] = [
        {"reason": f"no {ANN}", "payload": "x", "position": "1"},
        {"reason": "wrong", "payload": f'{{"kind": "{ANN}"}}', "position": "2"},
        {"reason": "wrong", "payload": '{"kind": "Bob"}', "position": "3"},
        {"reason": "wrong", "payload": None, "position": None},
        {"reason": "wrong", "payload": "Ann O", "position": "4"},
    ]
    table.append(pa.Table.from_pylist([base | one for one in records], table.schema().as_arrow()))
    return declared.table


def test_rejected_records_go_by_what_they_contain(
    home: Household, condition: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = quarantine(home)
    texts = home.folder / "texts.txt"
    texts.write_text(f"{ANN}\n\nsomething else\n")
    words = ["table", "erase", home.name, "--where-file", str(condition)]
    assert ended([*words, "--dry-run"]) == 0
    assert f"Not searched: rejected records in {name}" in capsys.readouterr().out
    assert ended([*words, "--text-file", str(texts), "--dry-run", "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)["plans"]
    assert [one["subject"] for one in plans] == [home.name, name]
    assert [one["rows"] for one in plans] == [1, 2]

    assert ended([*words, "--text-file", str(texts), "--yes"]) == 0
    left = home.bench.open_catalog().load_table(name).scan().to_arrow()
    assert sorted(str(one) for one in left.column("position").to_pylist()) == ["3", "4", "None"]
    assert not any(ANN.encode() in content for _, content in home.files(name))
    for table in (home.name, name):
        for event in recent_events(home.ledger, EventSubject.TABLE, table, limit=9):
            assert "Ann" not in str(event)


def test_a_refusal_of_one_table_leaves_the_other_as_it_is(
    home: Household, condition: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = quarantine(home)
    (home.folder / "texts.txt").write_text(ANN)
    table = home.bench.open_catalog().load_table(name)
    StoredFolder.at(table.io, data_folder(table.metadata)).write("torn.parquet", b"PAR1 half a file")
    files = ["--where-file", str(condition), "--text-file", str(home.folder / "texts.txt")]
    assert ended(["table", "erase", home.name, *files, "--yes"]) == 1
    assert f"Refused: erase {name}" in capsys.readouterr().err
    assert len(home.rows()) == 2
