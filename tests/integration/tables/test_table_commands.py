"""`sluice table` against a real catalog."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from sluice.cli.app import main
from sluice.settings import load_settings
from sluice.tables.catalog import open_catalog

if TYPE_CHECKING:
    from tests.fixtures.stack import Stack


@pytest.fixture
def namespace() -> str:
    """A namespace that no other test knows."""
    return f"n{uuid4().hex[:8]}"


@pytest.fixture
def pipelines(services_environment: Stack, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two declared tables, and a stream with a quarantine between them."""
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    for table in ("flights", "delays"):
        (tmp_path / f"{namespace}.{table}.table.yaml").write_text(
            f"table: {namespace}.{table}\ndescription: {table}\nowner: me\ncolumns:\n  - {{name: id, type: int}}\n"
        )
    (tmp_path / "rows.py").write_text("def rows(flights):\n    pass\n")
    (tmp_path / f"{namespace}_s.stream.yaml").write_text(
        f"stream: {namespace}_s\ndescription: d\nowner: me\nmode: continuous\ntrigger: {{processing_time: 1 second}}\n"
        f"inputs:\n  flights:\n    stream:\n      iceberg: {{table: {namespace}.flights}}\n"
        f"transformation: {{python: rows.py:rows}}\n"
        f"outputs:\n  delays:\n    iceberg: {{table: {namespace}.delays}}\nquarantine: true\n"
    )
    return tmp_path


def run(*words: str) -> int:
    """Run `sluice table` and return its exit code."""
    with pytest.raises(SystemExit) as leaving:
        main(["table", *words])
    code = leaving.value.code
    return code if isinstance(code, int) else 0


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    """What a command that succeeds prints as JSON."""
    assert run(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def states(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The state of every declared table."""
    return {table["table"]: table["state"] for table in answer(capsys, "list")}


def test_a_dry_run_prints_the_plan_and_the_run_carries_it_out(
    pipelines: Path, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [f"{namespace}.delays", f"{namespace}.flights", f"quarantine.{namespace}_s"]
    assert states(capsys) == dict.fromkeys(names, "not created")
    planned = answer(capsys, "create", "--dry-run")
    assert states(capsys) == dict.fromkeys(names, "not created")
    done = answer(capsys, "create")
    assert done["tables"] == [table | {"exists": True} for table in planned["tables"]]
    assert [table["table"] for table in done["tables"]] == names
    assert states(capsys) == dict.fromkeys(names, "as declared")
    assert all(table["changes"] == [] for table in answer(capsys, "create")["tables"])


def test_the_quarantine_of_its_stream_comes_with_a_table(
    pipelines: Path, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = answer(capsys, "create", f"{namespace}.delays")
    assert [table["table"] for table in done["tables"]] == [f"{namespace}.delays", f"quarantine.{namespace}_s"]
    assert states(capsys)[f"quarantine.{namespace}_s"] == "as declared"
    assert states(capsys)[f"{namespace}.flights"] == "not created"


def test_one_refused_table_does_not_stop_the_others(
    pipelines: Path, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("create") == 0
    for table, column in (("delays", "{name: id, type: string}"), ("flights", "{name: id, type: long}")):
        file = pipelines / f"{namespace}.{table}.table.yaml"
        file.write_text(file.read_text().replace("{name: id, type: int}", column))
    capsys.readouterr()
    assert run("create") == 1
    assert capsys.readouterr().out.splitlines() == [
        f"{namespace}.delays: refused. The table {namespace}.delays cannot become as it is declared: the column id "
        "would change from int to string, and not every value fits. Correct the declaration, or declare a table of "
        "another name.",
        f"{namespace}.flights: widen the column id from int to long",
        f"quarantine.{namespace}_s: as declared",
    ]


def validated(capsys: pytest.CaptureFixture[str], path: Path) -> tuple[int, Any]:
    """The exit code of `sluice validate --tables`, and its answer."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as leaving:
        main(["validate", str(path), "--tables", "--json"])
    return int(leaving.value.code or 0), json.loads(capsys.readouterr().out)


def test_validation_against_the_catalog_names_what_would_change_and_what_cannot(
    pipelines: Path, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = {name: pipelines / f"{namespace}.{name}.table.yaml" for name in ("delays", "flights")}
    quarantine = f"quarantine.{namespace}_s"
    created = {f"{namespace}.{name}": ["create the table with 1 columns"] for name in tables}
    created[quarantine] = ["create the table with 13 columns"]
    assert validated(capsys, pipelines)[0] == 0
    assert validated(capsys, pipelines)[1]["table_changes"] == created
    assert run("create") == 0
    assert validated(capsys, pipelines)[1]["table_changes"] == {}
    tables["flights"].write_text(tables["flights"].read_text().replace("int}", "long}"))

    assert validated(capsys, pipelines)[1]["table_changes"] == {
        f"{namespace}.flights": ["widen the column id from int to long"]
    }

    tables["delays"].write_text(tables["delays"].read_text().replace("int}", "string}"))
    code, found = validated(capsys, pipelines)
    assert (code, list(found["table_changes"])) == (2, [f"{namespace}.flights"])
    (problem,) = found["problems"]
    assert problem["file"].endswith(f"{namespace}.delays.table.yaml")
    assert "the column id would change from int to string" in problem["message"]
    assert validated(capsys, tables["flights"])[0] == 0
    assert validated(capsys, tables["delays"])[1]["table_changes"] == {}
    assert states(capsys)[f"{namespace}.flights"] != "as declared", "it changes nothing"
    with open_catalog(load_settings()).load_table(quarantine).update_schema() as update:
        update.delete_column("resolved_by")  # as a quarantine of an earlier version lacks a column
    assert validated(capsys, pipelines / f"{namespace}_s.stream.yaml")[1]["table_changes"] == {
        quarantine: ["add the column resolved_by of type string"]
    }


def test_a_broken_declaration_is_reported_after_the_valid_ones_are_done(
    pipelines: Path, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (pipelines / "broken.table.yaml").write_text("table: broken\n")
    assert run("create") == 2
    printed = capsys.readouterr()
    assert f"{namespace}.flights: create the table with 1 columns" in printed.out
    assert "broken.table.yaml:1: " in printed.err
    assert run("create", f"{namespace}.flights") == 0


def test_a_table_is_shown_with_its_writers_and_readers(
    pipelines: Path, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = answer(capsys, "show", f"{namespace}.flights")
    assert shown["state"] == "not created"
    assert shown["read_by"] == [f"{namespace}_s"]
    assert shown["written_by"] == []
    assert run("show", f"quarantine.{namespace}_s") == 0
    assert "refused_at" in capsys.readouterr().out
    assert run("show", f"{namespace}.flihgts") == 2
    assert f"Did you mean `{namespace}.flights`?" in capsys.readouterr().err
