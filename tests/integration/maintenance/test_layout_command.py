"""`sluice table layout` on a real catalog: what conditions read, and the declaration that would help. No Spark."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from tests.fixtures.stack import Stack
from tests.integration.maintenance.test_maintenance_commands import answer, declare, ended

from sluice.tables.catalog import open_catalog

FILES, ROWS = 6, 900


@pytest.fixture
def table(services_environment: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A table of about three full files, in six small ones with values in no order."""
    name = f"n{uuid4().hex[:12]}.rows"
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "200")
    declare_rows(tmp_path, name)
    assert ended(["table", "create"]) == 0
    opened, chance = open_catalog(services_environment.settings()).load_table(name), random.Random(1)  # noqa: S311
    for _ in range(FILES):
        rows = [{"id": chance.randrange(1000), "noise": chance.randbytes(500).hex()} for _ in range(ROWS)]
        opened.append(pa.Table.from_pylist(rows, schema=opened.schema().as_arrow()))
    return name


def declare_rows(folder: Path, name: str, **more: Any) -> None:
    """Declare the table."""
    columns = [{"name": "id", "type": "long"}, {"name": "noise", "type": "string"}]
    policy = {"compaction": {"target_file_bytes": "1MiB"}}
    declare(folder / f"{name}.table.yaml", table=name, columns=columns, maintenance=policy, **more)


def test_the_declaration_that_would_help_is_printed(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()

    assert ended(["table", "layout", table, "--where", "id = 500"]) == 0

    said = capsys.readouterr().out
    assert "id = 500 (--where)\n  now: 6 files" in said
    assert "  suggested, sorted by id: about 1 files" in said
    assert "sort_order:\n- column: id\nmaintenance:\n  compaction:\n    strategy: sort\n" in said


@pytest.mark.full
def test_the_answer_for_a_program(table: str, capsys: pytest.CaptureFixture[str]) -> None:
    document = answer(["table", "layout", table, "--where", "id = 500", "--where", "id < 990"], capsys)

    assert [one["now"]["files"] for one in document["filters"]] == [FILES, FILES]
    assert document["all"]["files"] == document["small"]["files"] == FILES
    assert document["suggested"] is None, "the second condition reads nearly all of every file"
    assert document["sample"] == {**document["sample"], "rows": FILES * ROWS, "files": FILES}


@pytest.mark.full  # every run measures those that are given
def test_declared_conditions_are_measured_without_being_given(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declare_rows(tmp_path, table, filters=["id = 500"])

    document = answer(["table", "layout", table], capsys)

    assert [(one["where"], one["origin"]) for one in document["filters"]] == [("id = 500", "declared")]
    assert document["suggested"]["sort_order"] == [{"column": "id"}]


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "No condition is known by which"),
        (["--where", "none_such = 5"], "The condition `none_such = 5` (--where) cannot be read"),
    ],
)
def test_without_a_condition_on_the_table_nothing_is_suggested(
    table: str, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()

    assert ended(["table", "layout", table, *words]) == 2

    assert said in " ".join(capsys.readouterr().err.split())


def test_a_declared_condition_on_no_column_is_refused_by_validate(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declare_rows(tmp_path, table, filters=["none_such = 5"])
    capsys.readouterr()

    assert ended(["validate", "--tables"]) != 0

    assert "none_such = 5" in capsys.readouterr().out


def test_a_compaction_says_what_conditions_read_before_and_after_it(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declare_rows(tmp_path, table, filters=["id = 500"])
    capsys.readouterr()

    assert ended(["table", "maintain", table]) == 0

    said = capsys.readouterr().out
    assert f"{table}: planning a scan of everything took " in said
    assert f"{table}: id = 500 reads {FILES} files (" in said
    assert "before, 3 files (" in said
    compacted = answer(["table", "history", table], capsys)["runs"][0]["operations"][1]
    assert compacted["step"] == "rewrite_data_files"
    (read,) = compacted["result"]["filters"]
    assert (read["where"], read["before"]["files"], read["after"]["files"]) == ("id = 500", FILES, 3)
    assert set(compacted["result"]["planning_ms"]) == {"before", "after"}


@pytest.mark.full  # every run: `test_layout_probe.py`
def test_a_condition_that_cannot_be_read_keeps_no_table_from_being_compacted(
    table: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declare_rows(tmp_path, table, filters=["none_such = 5"])
    capsys.readouterr()

    assert ended(["table", "maintain", table]) == 0

    assert "rewrite_data_files done" in capsys.readouterr().out
    assert "filters" not in answer(["table", "history", table], capsys)["runs"][0]["operations"][1]["result"]
