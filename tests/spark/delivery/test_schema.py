"""Rows are written into the table as it is declared, and a declaration may grow: columns added, widened, relaxed."""

from __future__ import annotations

import pytest
from pyspark.sql.types import StructType
from tests.fixtures.workshop import Workshop

from sluice.errors import SchemaError
from sluice_spark.query.stream_outputs import find_differences


def schema(ddl: str) -> StructType:
    """Columns as DDL writes them."""
    parsed = StructType.fromDDL(ddl)
    assert isinstance(parsed, StructType)
    return parsed


@pytest.mark.parametrize(
    ("rows", "table", "differences"),
    [
        ("id INT, word STRING", "word STRING, id INT", []),
        ("id INT", "id BIGINT", ["id: declared bigint, got int"]),
        ("id INT, ID INT", "id INT", ["ID: declared nothing, got int"]),
        (
            "place STRUCT<x: INT, y: INT>",
            "place STRUCT<x: DOUBLE, z: INT>",
            [
                "place.x: declared double, got int",
                "place.z: declared int, got nothing",
                "place.y: declared nothing, got int",
            ],
        ),
        (
            "a ARRAY<STRUCT<x: INT>>, m MAP<STRING, INT>, d DECIMAL(9, 2)",
            "a ARRAY<STRUCT<x: STRING>>, m MAP<STRING, BIGINT>, d DECIMAL(9, 3)",
            [
                "a.element.x: declared string, got int",
                "m.value: declared bigint, got int",
                "d: declared decimal(9,3), got decimal(9,2)",
            ],
        ),
    ],
)
@pytest.mark.usefixtures("spark")  # which parses DDL
def test_differences_are_reported_by_their_place(rows: str, table: str, differences: list[str]) -> None:
    found = find_differences(schema(rows), schema(table))
    assert [str(difference) for difference in found] == differences


@pytest.mark.usefixtures("spark")
def test_a_column_that_comes_twice_is_a_difference() -> None:
    rows = schema("id INT").add("id", "string")
    (difference, *_) = find_differences(rows, schema("id INT"))
    assert str(difference) == "id: declared int, got it twice: int, string"


def test_a_table_grows_by_its_declaration_and_the_stream_follows(workshop: Workshop) -> None:
    name = f"s{workshop.namespace}"
    source = workshop.declare_table("source", {"id": "int", "word": "string"})
    target = workshop.declare_table("target", {"id": "int"}, required=["id"])

    def declare(sql: str) -> None:
        workshop.declare_stream(
            name,
            sql=sql,
            inputs={"records": {"stream": {"iceberg": {"table": source}}}},
            outputs={"copies": {"iceberg": {"table": target}}},
        )

    declare("SELECT id FROM records WHERE id IS NOT NULL")
    workshop.append("source", [{"id": 1, "word": "one"}])
    workshop.run(name)

    workshop.declare_table("target", {"id": "long", "word": "string"})
    workshop.append("source", [{"id": None, "word": "none"}])
    with pytest.raises(SchemaError) as refusal:
        workshop.run(name)
    assert [str(difference) for difference in refusal.value.differences] == [
        "id: declared bigint, got int",
        "word: declared string, got nothing",
    ]
    assert "declare the columns in" in refusal.value.next_step

    declare("SELECT CAST(id AS BIGINT) AS id, word FROM records")
    (batch,) = workshop.run(name).batches

    assert batch.published_rows == {"copies": 1}
    assert workshop.rows("target") == [{"id": 1, "word": None}, {"id": None, "word": "none"}]
