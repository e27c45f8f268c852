"""What is declared about the records that a stream may quarantine, for their masks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.pages.test_quarantine_samples import declared

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import LoadedTable
from sluice.pages.quarantine_page import record_masks_of

TABLE = """\
table: bronze.records
description: records
owner: shop
columns:
  - {name: value, type: binary}
  - {name: id, type: long}
"""
KAFKA: dict[str, Any] = {"connection": "events", "topics": ["orders"]}
COLUMNS = [{"name": "at", "type": "timestamptz", "unit": "seconds"}, {"name": "id", "type": "long"}]


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, LoadedTable]:
    """A declared table with bytes in it."""
    (tmp_path / "bronze.records.table.yaml").write_text(TABLE)
    return dict(load_declarations(tmp_path).tables)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ({"kafka": KAFKA}, []),
        ({"kafka": KAFKA | {"value": {"format": "json", "columns": COLUMNS}}}, ["at", "id"]),
        ({"kinesis": {"connection": "records", "stream": "s"}}, []),
        ({"iceberg": {"table": "bronze.records"}}, ["value", "id"]),
        ({"iceberg": {"table": "bronze.unknown"}}, []),
    ],
    ids=["records as they come", "decoded", "Kinesis", "a table", "a table without a declaration"],
)
def test_the_columns_of_an_input_are_those_that_are_declared(
    tables: dict[str, LoadedTable], source: dict[str, Any], names: list[str]
) -> None:
    masks = record_masks_of(declared("email", rows=source), tables)

    assert masks is not None
    assert masks.masked == ("email",)
    assert [name for name, _ in masks.columns_of("rows").fields] == names
    assert masks.columns_of("another").fields == masks.columns_of("").fields == ()


def test_a_stream_that_declares_no_masks_has_none(tables: dict[str, LoadedTable]) -> None:
    assert record_masks_of(declared(rows={"iceberg": {"table": "bronze.records"}}), tables) is None
