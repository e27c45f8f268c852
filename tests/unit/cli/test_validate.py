"""`sluice validate` as a person and a program meet it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sluice.cli.app import main

TABLE = """\
table: bronze.flights
description: flights as they came
owner: flights
columns:
  - {name: carrier, type: string}
quality:
  expectations:
    - {type: expect_column_values_to_not_be_null, kwargs: {column: carrier}}
"""


@pytest.fixture(autouse=True)
def no_deployment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment without a deployment, and an empty working folder."""
    monkeypatch.delenv("SLUICE_LEDGER_URL", raising=False)
    monkeypatch.chdir(tmp_path)


def run(*arguments: str) -> int:
    """Run `sluice validate` and return its exit code."""
    with pytest.raises(SystemExit) as leaving:
        main(["validate", *arguments])
    code = leaving.value.code
    return code if isinstance(code, int) else 0


def test_valid_declarations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bronze.flights.table.yaml").write_text(TABLE)
    assert run(".") == 0
    assert capsys.readouterr().out == (
        "0 streams and 1 table are valid in ..\n"
        "Connections were not checked: the environment describes no deployment.\n"
    )


def test_a_problem_is_a_line_with_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bronze.flights.table.yaml").write_text(TABLE.replace("owner", "ownr"))
    assert run(".") == 2
    assert capsys.readouterr().out.splitlines() == [
        "Connections were not checked: the environment describes no deployment.",
        "bronze.flights.table.yaml:1: the declaration lacks the key `owner` (who answers for it). Add `owner`.",
        "bronze.flights.table.yaml:3: `ownr`: unknown key `ownr`; allowed here: columns, description, drop, "
        "filters, maintenance, owner, partitioning, properties, quality, rules, sort_order, table, tags, "
        "unchecked_properties, unusual_rows. Did you mean `owner`?",
        "2 problems in 1 declaration of ..",
    ]


def test_an_expectation_that_is_not_installed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bronze.flights.table.yaml").write_text(TABLE.replace("to_not_be_null", "to_not_be_nul"))
    assert run(".") == 2
    assert capsys.readouterr().out.splitlines()[-2] == (
        "bronze.flights.table.yaml:8: `quality.expectations[0].type`: Great Expectations has no expectation "
        "expect_column_values_to_not_be_nul. Did you mean `expect_column_values_to_not_be_null`?"
    )


def test_one_file_is_checked_among_its_neighbours(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bronze.flights.table.yaml").write_text(TABLE)
    (tmp_path / "broken.table.yaml").write_text("")
    assert run("bronze.flights.table.yaml") == 0
    assert run("broken.table.yaml") == 2
    assert "broken.table.yaml:1: the file is empty." in capsys.readouterr().out


def test_json_for_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bronze.flights.table.yaml").write_text(TABLE)
    (tmp_path / "broken.table.yaml").write_text("")
    assert run(".", "--json") == 2
    assert json.loads(capsys.readouterr().out) == {
        "valid": False,
        "streams": [],
        "tables": ["bronze.flights"],
        "connections_checked": False,
        "inherited_maintenance": {},
        "notes": [],
        "problems": [
            {
                "error": "DeclarationError",
                "file": "broken.table.yaml",
                "line": 1,
                "message": "the file is empty.",
                "next_step": "",
            }
        ],
    }
