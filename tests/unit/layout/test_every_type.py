"""Orders are estimated by columns of every type that may be declared."""

from __future__ import annotations

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.unit.layout.test_layout_advice import NAME, Place

from sluice.declarations.table_declaration import TableDeclaration
from sluice.tables.declared_tables import create_or_evolve_table

MIDNIGHT = datetime(2026, 11, 1, tzinfo=UTC)
LOCAL = MIDNIGHT.replace(tzinfo=None)


@pytest.mark.parametrize(
    ("kind", "values", "condition"),
    [
        ("int", range(8), "v = 1"),
        ("long", range(8), "v < 1"),
        ("float", [n / 2 for n in range(7)] + [float("nan")], "v = 0.5"),
        ("double", [n / 2 for n in range(8)], "v = 0.5"),
        ("decimal(10, 2)", [Decimal(n) for n in range(8)], "v = 1.00"),
        ("string", list("abcdefgh"), "v = 'b'"),
        ("uuid", [UUID(int=n) for n in range(8)], f"v = '{UUID(int=1)}'"),
        ("binary", [bytes([n]) for n in range(8)], "v is not null"),
        ("fixed[2]", [bytes([n, n]) for n in range(8)], "v is not null"),
        ("boolean", [n > 6 for n in range(8)], "v = true"),
        ("date", [date(2026, 11, n + 1) for n in range(8)], "v = '2026-11-02'"),
        ("timestamp", [LOCAL + timedelta(days=n) for n in range(8)], "v < '2026-11-02T00:00:00'"),
        ("timestamptz", [MIDNIGHT + timedelta(days=n) for n in range(8)], "v < '2026-11-02T00:00:00+00:00'"),
    ],
)
def test_an_order_by_a_column_of_each_type_is_estimated(tmp_path: Path, kind: str, values: Any, condition: str) -> None:
    columns = [{"name": "v", "type": kind}, {"name": "other", "type": "long"}, {"name": "noise", "type": "string"}]
    policy = {"compaction": {"target_file_bytes": "1MiB"}}
    declaration = TableDeclaration.model_validate(
        {"table": NAME, "description": "d", "owner": "o", "columns": columns, "maintenance": policy}
    )
    catalog = SqlCatalog("files", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    create_or_evolve_table(catalog, declaration)
    place = Place(catalog=catalog, declaration=declaration)
    schema = place.table.schema().as_arrow()
    chance = random.Random(1)  # noqa: S311  # no secret
    for number in range(8):
        rows = {
            "v": pa.array([*values, None] * 60, schema.field("v").type),
            "other": pa.array(range(number, number + 540)),
            "noise": pa.array([chance.randbytes(500).hex() for _ in range(540)]),
        }
        place.table.append(pa.table(rows).cast(schema))

    advice = place.advice(condition, "other = 5")

    assert {str(one.order) for one in advice.estimates} >= {"as the rows lie", "sorted by v", "sorted by v, then other"}
    assert any(one.order.is_z_order for one in advice.estimates) == ("v" in declaration.z_orderable)
    assert all(0 <= one.read[0].files <= advice.all_files.files for one in advice.estimates)
    assert advice.declared is not None
    assert advice.declared.read[0].files == 2, "in a single file no order would change anything"
    catalog.close()
