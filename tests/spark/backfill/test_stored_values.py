"""A backfill of records of which several have one place: values that a table stores, and lines of a file."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.backfills import backfill, delete_days
from tests.fixtures.workshop import Workshop

from sluice.errors import SluiceError
from sluice.settings import FilesConnection

DAY = datetime(2026, 1, 31, tzinfo=UTC)
WATERMARK = {"column": "at", "delay": "1 hour"}
RAW = {"raw": "binary", "at": "timestamptz"}


def declare(
    workshop: Workshop, columns: list[dict[str, Any]], *, is_timed: bool = False, **parts: Any
) -> tuple[str, str]:
    """A stream that decodes a column of bytes; its name and that of its source. is_timed: with a watermark on `at`."""
    name = f"s{workshop.namespace}"
    source = workshop.declare_table("source", RAW)
    target = workshop.declare_table("target", {"id": "long", "at": "timestamptz"})
    value = {"format": "json", "columns": columns}
    reading = {"table": source, "value_column": "raw", "value": value}
    workshop.declare_stream(
        name,
        inputs={"orders": {"stream": {"iceberg": reading}} | ({"watermark": WATERMARK} if is_timed else {})},
        outputs={"main": {"iceberg": {"table": target}}},
        quarantine=True,
        **parts,
    )
    return name, source


def append(workshop: Workshop, *rows: tuple[dict[str, Any], datetime]) -> None:
    workshop.append("source", [{"raw": json.dumps(value).encode(), "at": at} for value, at in rows])


@pytest.mark.full
def test_a_backfill_loses_no_record_whose_place_another_one_has(workshop: Workshop) -> None:
    parts: dict[str, Any] = {
        "sql": "SELECT id, record.at FROM orders",
        "backfill": {"column": "at", "interval": "day", "balance": "rows"},
    }
    before = [{"name": "id", "type": "long"}, {"name": "n", "type": "long"}]
    after = [{"name": "id", "type": "long"}, {"name": "n", "type": "string"}]
    stream, _ = declare(workshop, before, **parts)
    append(workshop, ({"id": 1, "n": "x"}, DAY), ({"id": 2, "n": 5}, DAY))  # 1 is rejected, 2 is published
    workshop.run(stream)
    assert [row["id"] for row in workshop.rows("target")] == [2]
    declare(workshop, after, **parts)  # 1 is published, 2 is rejected

    backfill(workshop, stream, start="2026-01-31", end="2026-02-01")

    published = {row["id"] for row in workshop.rows("target")}
    quarantined = {json.loads(row["payload"])["id"] for row in workshop.rows(f"quarantine.{stream}")}
    assert published == {1}
    assert 2 in published | quarantined


@pytest.mark.full
def test_a_time_of_the_value_is_not_that_of_the_table_with_the_same_name(workshop: Workshop) -> None:
    """`reads` names a column of the table, by which its rows are chosen; the value has a column of that name, too, with
    another time: a `margin` is asked for, as for any other time."""
    columns = [{"name": "id", "type": "long"}, {"name": "at", "type": "timestamptz"}]
    parts: dict[str, Any] = {
        "sql": "SELECT id, at FROM orders",
        "backfill": {"column": "at", "interval": "day", "balance": "rows", "reads": {"orders": "at"}},
    }
    stream, _ = declare(workshop, columns, **parts)
    late = datetime(2026, 2, 1, 0, 5, tzinfo=UTC)
    append(
        workshop,
        ({"id": 1, "at": "2026-01-31T12:00:00Z"}, datetime(2026, 1, 31, 12, 1, tzinfo=UTC)),
        ({"id": 2, "at": "2026-01-31T23:55:00Z"}, late),  # stored behind midnight
    )
    workshop.run(stream)
    assert len(workshop.rows("target")) == 2
    delete_days(workshop, "target", "2026-01-31", "2026-02-01")

    for is_timed in (False, True):
        declare(workshop, columns, is_timed=is_timed, **parts)
        with pytest.raises(SluiceError) as refused:
            backfill(workshop, stream, start="2026-01-31", end="2026-02-01")
        assert "Declare `margin`" in str(refused.value.next_step)
    parts["backfill"]["margin"] = "1 hour"
    declare(workshop, columns, **parts)
    backfill(workshop, stream, start="2026-01-31", end="2026-02-01")

    assert [row["id"] for row in workshop.rows("target")] == [1, 2]


def with_folder(workshop: Workshop, folder: Path) -> Workshop:
    """A workshop with a connection `here` to the folder."""
    folder.mkdir()
    here = FilesConnection(kind="files", root=folder.as_uri())
    settings = workshop.settings.model_copy(update={"connections": {**workshop.settings.connections, "here": here}})
    return replace(workshop, settings=settings)


@pytest.mark.full
def test_a_line_of_a_file_is_not_lost_whose_place_another_one_has(workshop: Workshop, tmp_path: Path) -> None:
    """The same of files: the position of a line is its file."""
    folder = tmp_path / "in"
    shop = with_folder(workshop, folder)
    name, target = f"s{shop.namespace}", shop.declare_table("target", {"id": "long", "at": "timestamptz"})

    def declared(kind_of_n: str) -> None:
        columns = [
            {"name": "id", "type": "long"},
            {"name": "n", "type": kind_of_n},
            {"name": "at", "type": "timestamptz"},
        ]
        source = {"connection": "here", "format": "json", "columns": columns, "on_malformed": "quarantine"}
        shop.declare_stream(
            name,
            sql="SELECT id, at FROM records",
            inputs={"records": {"stream": {"files": source}}},
            outputs={"main": {"iceberg": {"table": target}}},
            quarantine=True,
            backfill={"column": "at", "interval": "day", "balance": "rows"},
        )

    declared("long")
    at = DAY.isoformat()
    lines = [{"id": 1, "n": "x", "at": at}, {"id": 2, "n": 5, "at": at}]
    (folder / "a.json").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    shop.run(name)
    declared("string")

    backfill(shop, name, start="2026-01-31", end="2026-02-01")

    published = {row["id"] for row in shop.rows("target")}
    quarantined = {json.loads(row["payload"])["id"] for row in shop.rows(f"quarantine.{name}")}
    assert 2 in published | quarantined
