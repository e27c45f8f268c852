"""The conditions that are known from declared backfills."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog.sql import SqlCatalog

from sluice.declarations.load_declarations import load_declarations
from sluice.layout.pruning import known_filters, read_data_files
from sluice.tables.declared_tables import create_or_evolve_table

NEWEST = datetime(2026, 11, 20, 13, 30, tzinfo=UTC)
LOCAL = NEWEST.replace(tzinfo=None)


def found(
    folder: Path, table: str, *, kind: str = "timestamptz", rows: Sequence[Any] = (NEWEST,), length: str = "day"
) -> list[tuple[str, str]]:
    """The conditions on a table of a stream that reads one table and writes another one, with who reads so."""
    described = {"description": "d", "owner": "me"}
    columns = [{"name": "id", "type": "long"}, {"name": "at", "type": kind}]
    for name in ("n.rows", "n.copies"):
        (folder / f"{name}.table.yaml").write_text(yaml.safe_dump({"table": name, "columns": columns, **described}))
    stream = {
        "stream": "copies",
        "mode": "incremental",
        "schedule": {"cron": "@hourly"},
        "inputs": {"rows": {"stream": {"iceberg": {"table": "n.rows"}}}},
        "transformation": {"sql": "copy.sql"},
        "outputs": {"copies": {"iceberg": {"table": "n.copies"}}},
        "backfill": {"column": "at", "interval": length, "reads": {"rows": "at"}},
    }
    (folder / "copies.stream.yaml").write_text(yaml.safe_dump({**stream, **described}))
    (folder / "copy.sql").write_text("SELECT * FROM rows")
    declarations = load_declarations(folder)
    declarations.require_valid()
    catalog = SqlCatalog("files", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/tables")
    create_or_evolve_table(catalog, declarations.table(table).declaration)
    opened = catalog.load_table(table)
    if rows:
        values = [{"id": number, "at": value} for number, value in enumerate(rows)]
        opened.append(pa.Table.from_pylist(values, schema=opened.schema().as_arrow()))
    filters = known_filters(
        declarations, declarations.table(table).declaration, opened.schema(), read_data_files(opened)
    )
    catalog.close()
    return [(one.text, one.origin) for one in filters]


@pytest.mark.parametrize(("table", "what"), [("n.rows", "reads"), ("n.copies", "replaces")])
def test_the_newest_whole_interval_is_what_a_backfill_reads_and_replaces(tmp_path: Path, table: str, what: str) -> None:
    assert found(tmp_path, table) == [
        (
            "at >= '2026-11-19T00:00:00+00:00' and at < '2026-11-20T00:00:00+00:00'",
            f"a backfill of copies {what} one day",
        )
    ]


@pytest.mark.parametrize(
    ("kind", "value", "length", "condition"),
    [
        ("timestamptz", NEWEST, "hour", "at >= '2026-11-20T12:00:00+00:00' and at < '2026-11-20T13:00:00+00:00'"),
        (
            "timestamp",
            NEWEST.replace(tzinfo=None),
            "month",
            "at >= '2026-10-01T00:00:00' and at < '2026-11-01T00:00:00'",
        ),
        ("date", NEWEST.date(), "month", "at >= '2026-10-01' and at < '2026-11-01'"),
    ],
)
def test_the_interval_is_written_for_the_type_of_the_column(
    tmp_path: Path, kind: str, value: Any, length: str, condition: str
) -> None:
    assert [text for text, _ in found(tmp_path, "n.rows", kind=kind, rows=[value], length=length)] == [condition]


@pytest.mark.parametrize("rows", [(), (None,)], ids=["no rows", "no times"])
def test_without_bounds_no_interval_is_known(tmp_path: Path, rows: Sequence[Any]) -> None:
    assert found(tmp_path, "n.rows", rows=rows) == []
