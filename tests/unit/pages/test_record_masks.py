"""Beside the declared columns those of bytes are masked, in which a masked field may lie unseen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.unit.pages.test_quarantine_samples import declared

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import LoadedTable
from sluice.pages.record_masks import masked_columns_of

TABLE = """\
table: bronze.records
description: records
owner: shop
columns:
  - {name: value, type: binary}
  - {name: id, type: long}
  - {name: card, type: "struct<chip: list<fixed[4]>, holder: string>"}
  - {name: blobs, type: "map<string, binary>"}
  - {name: words, type: "map<string, string>"}
"""
KAFKA: dict[str, Any] = {"connection": "events", "topics": ["orders"]}
JSON_WITH_BYTES = {"format": "json", "columns": [{"name": "raw", "type": "binary"}, {"name": "id", "type": "long"}]}


@pytest.fixture
def tables(tmp_path: Path) -> dict[str, LoadedTable]:
    """A declared table with bytes in it."""
    (tmp_path / "bronze.records.table.yaml").write_text(TABLE)
    return dict(load_declarations(tmp_path).tables)


@pytest.mark.parametrize(
    ("source", "of_bytes"),
    [
        ({"kafka": KAFKA}, ("key", "value", "headers")),
        ({"kafka": KAFKA | {"value": JSON_WITH_BYTES}}, ("raw",)),
        ({"kinesis": {"connection": "records", "stream": "s"}}, ("data",)),
        ({"iceberg": {"table": "bronze.records"}}, ("value", "card.chip", "blobs")),
        ({"iceberg": {"table": "bronze.unknown"}}, ()),
    ],
    ids=["records as they come", "decoded", "Kinesis", "a table", "a table without a declaration"],
)
def test_columns_of_bytes_are_masked_with_those_that_are_declared(
    tables: dict[str, LoadedTable], source: dict[str, Any], of_bytes: tuple[str, ...]
) -> None:
    assert masked_columns_of(declared("email", rows=source), tables) == ("email", *of_bytes)


def test_a_stream_that_declares_no_masks_has_none(tables: dict[str, LoadedTable]) -> None:
    assert masked_columns_of(declared(rows={"iceberg": {"table": "bronze.records"}}), tables) == ()
