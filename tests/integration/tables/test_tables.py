"""Creating and evolving tables: one contract for every catalog, with rows that must survive it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from sluice.declarations.loaded_declarations import quarantine_declaration
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.declarations.table_declaration import TableDeclaration
from sluice.errors import LakehouseError
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import apply_table_changes, create_or_evolve_table, load_table, plan_table

COLUMNS: tuple[dict[str, Any], ...] = (
    {"name": "carrier", "type": "string", "required": True},
    {"name": "id", "type": "int"},
    {"name": "at", "type": "timestamptz"},
    {"name": "legs", "type": "list<struct<miles: int>>"},
)


@pytest.fixture(params=["rest", "sql"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Catalog]:
    """The deployment's REST catalog on SeaweedFS, and pyiceberg's own catalog in a file."""
    if request.param == "rest":
        opened: Catalog = open_catalog(request.getfixturevalue("services_stack").settings())
    else:
        opened = SqlCatalog("files", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    yield opened
    opened.close()


@pytest.fixture
def name() -> str:
    """A table that no other test knows, in a namespace that does not exist yet."""
    return f"n{uuid4().hex[:8]}.flights"


def declare(name: str, columns: tuple[dict[str, Any], ...] = COLUMNS, **more: Any) -> TableDeclaration:
    """The declaration of a table with these columns."""
    # Partitioned by the first column, because the SeaweedFS catalog refuses just this when Spark asks for it.
    layout = {"partitioning": [{"column": "carrier"}], "sort_order": [{"column": "id"}]}
    return TableDeclaration.model_validate(
        {"table": name, "description": "flights", "owner": "o", "columns": columns} | layout | more
    )


def write_row(table: Table, **values: Any) -> None:
    """Append one row."""
    table.append(pa.Table.from_pylist([values], schema=table.schema().as_arrow()))


def rows(catalog: Catalog, name: str) -> list[dict[str, Any]]:
    """Every row of a table."""
    return list(catalog.load_table(name).scan().to_arrow().to_pylist())


def test_a_table_is_created_as_declared_with_its_namespace(catalog: Catalog, name: str) -> None:
    assert load_table(catalog, name) is None
    changes = create_or_evolve_table(catalog, declare(name))
    assert [str(change) for change in changes] == ["create the table with 4 columns"]
    table = catalog.load_table(name)
    assert [(field.name, str(field.field_type), field.required) for field in table.schema().fields] == [
        ("carrier", "string", True),
        ("id", "int", False),
        ("at", "timestamptz", False),
        ("legs", str(table.schema().find_type("legs")), False),
    ]
    assert [(field.name, str(field.transform)) for field in table.spec().fields] == [("carrier", "identity")]
    assert len(table.sort_order().fields) == 1
    assert table.metadata.format_version == 2
    assert table.properties["commit.retry.num-retries"] == "15"
    assert table.properties["comment"] == "flights"


def test_a_second_run_changes_nothing(catalog: Catalog, name: str) -> None:
    create_or_evolve_table(catalog, declare(name))
    before = catalog.load_table(name).metadata_location
    assert create_or_evolve_table(catalog, declare(name)) == ()
    assert catalog.load_table(name).metadata_location == before


def test_a_dry_run_is_the_plan_of_the_run(catalog: Catalog, name: str) -> None:
    declaration = declare(name)
    planned = plan_table(catalog, declaration)
    assert load_table(catalog, name) is None
    assert create_or_evolve_table(catalog, declaration) == planned


def test_a_table_evolves_in_one_commit_and_keeps_its_rows(catalog: Catalog, name: str) -> None:
    create_or_evolve_table(catalog, declare(name, properties={"write.distribution-mode": "none"}))
    write_row(catalog.load_table(name), carrier="UA", id=1, at=None, legs=[{"miles": 7}])
    evolved = declare(
        name,
        (
            {"name": "id", "type": "long", "doc": "the number"},
            {"name": "carrier", "type": "string"},
            {"name": "tail", "type": "string"},
            {"name": "at", "type": "timestamptz"},
            {"name": "legs", "type": "list<struct<miles: long, dest: string>>"},
        ),
        partitioning=[{"column": "tail"}],
        sort_order=[{"column": "tail", "direction": "desc"}],
    )
    before = len(catalog.load_table(name).metadata.metadata_log)
    changes = [str(change) for change in create_or_evolve_table(catalog, evolved)]
    assert changes[:-2] == [
        "widen the column id from int to long",
        "describe the column id as 'the number'",
        "make the column carrier optional",
        "add the column tail of type string",
        "widen the column legs.element.miles from int to long",
        "add the column legs.element.dest of type string",
        "order the columns as id, carrier, tail, at, legs",
        "no longer partition new rows by carrier",
        "partition new rows by tail",
        "sort new rows by tail desc",
    ]
    assert changes[-1] == "remove the property write.distribution-mode"
    table = catalog.load_table(name)
    assert len(table.metadata.metadata_log) == before + 1, "one commit"
    assert [field.name for field in table.schema().fields] == ["id", "carrier", "tail", "at", "legs"]
    assert table.properties.get("write.distribution-mode") is None
    assert plan_table(catalog, evolved) == ()
    write_row(table, id=2**40, carrier=None, tail="N1", at=None, legs=[{"miles": 2**40, "dest": "LGA"}])
    assert sorted(rows(catalog, name), key=lambda row: int(row["id"])) == [
        {"id": 1, "carrier": "UA", "tail": None, "at": None, "legs": [{"miles": 7, "dest": None}]},
        {"id": 2**40, "carrier": None, "tail": "N1", "at": None, "legs": [{"miles": 2**40, "dest": "LGA"}]},
    ]


def test_columns_are_renamed_and_dropped_and_come_back_empty(catalog: Catalog, name: str) -> None:
    create_or_evolve_table(catalog, declare(name))
    write_row(catalog.load_table(name), carrier="UA", id=1, at=None, legs=[{"miles": 7}])
    renamed: tuple[dict[str, Any], ...] = (
        {"name": "airline", "type": "string", "required": True, "renamed_from": "carrier"},
        {"name": "number", "type": "long", "renamed_from": "id"},
        COLUMNS[2],
    )
    layout = {"partitioning": [{"column": "airline"}], "sort_order": [{"column": "number"}]}
    evolved = declare(name, renamed, drop=["legs"], **layout)

    create_or_evolve_table(catalog, evolved)

    assert plan_table(catalog, evolved) == ()
    write_row(catalog.load_table(name), airline="AA", number=2**40, at=None)
    again = declare(name, (*renamed, COLUMNS[3]), **layout)
    create_or_evolve_table(catalog, again)
    assert sorted(rows(catalog, name), key=lambda row: int(row["number"])) == [
        {"airline": "UA", "number": 1, "at": None, "legs": None},
        {"airline": "AA", "number": 2**40, "at": None, "legs": None},
    ]


def test_a_refused_evolution_changes_nothing(catalog: Catalog, name: str) -> None:
    create_or_evolve_table(catalog, declare(name))
    write_row(catalog.load_table(name), carrier="UA", id=1, at=None, legs=None)
    before = catalog.load_table(name).metadata_location
    with pytest.raises(LakehouseError, match="name it under `drop`"):
        create_or_evolve_table(catalog, declare(name, (*COLUMNS[:3], {"name": "more", "type": "int"})))
    assert catalog.load_table(name).metadata_location == before
    assert len(rows(catalog, name)) == 1


def test_two_who_create_at_the_same_time_both_succeed(catalog: Catalog, name: str) -> None:
    declaration = declare(name)
    plan = plan_table(catalog, declaration)
    apply_table_changes(catalog, declare(name, properties={"write.distribution-mode": "hash"}), plan)
    apply_table_changes(catalog, declaration, plan)
    assert plan_table(catalog, declaration) == ()


def test_a_partition_may_go_and_come_back(catalog: Catalog, name: str) -> None:
    for partitioning in ([{"column": "carrier"}], [], [{"column": "carrier"}]):
        declaration = declare(name, partitioning=partitioning)
        create_or_evolve_table(catalog, declaration)
        assert plan_table(catalog, declaration) == ()
    write_row(catalog.load_table(name), carrier="UA", id=1, at=None, legs=None)
    assert len(rows(catalog, name)) == 1


def test_a_sort_order_may_go_and_come_back(catalog: Catalog, name: str) -> None:
    for sort_order in ([{"column": "id"}], [], [{"column": "id"}]):
        declaration = declare(name, sort_order=sort_order)
        create_or_evolve_table(catalog, declaration)
        assert plan_table(catalog, declaration) == ()


def test_the_quarantine_of_a_stream_is_a_table_like_any_other(catalog: Catalog) -> None:
    stream = StreamDeclaration.model_validate(
        {
            "stream": f"s{uuid4().hex[:8]}",
            "description": "d",
            "owner": "o",
            "mode": "continuous",
            "trigger": {"processing_time": "1 second"},
            "inputs": {"a": {"stream": {"iceberg": {"table": "a.b"}}}},
            "transformation": {"python": "t.py:f"},
            "outputs": {"b": {"iceberg": {"table": "a.c"}}},
            "quarantine": True,
        }
    )
    declaration = quarantine_declaration(stream)
    create_or_evolve_table(catalog, declaration)
    assert plan_table(catalog, declaration) == ()
    assert [(field.name, str(field.field_type)) for field in catalog.load_table(declaration.table).schema().fields] == [
        ("stream", "string"),
        ("generation", "int"),
        ("batch", "long"),
        ("reason", "string"),
        ("kind", "string"),
        ("path", "string"),
        ("quotes_data", "boolean"),
        ("position", "string"),
        ("payload", "string"),
        ("refused_at", "timestamptz"),
        ("resolved_at", "timestamptz"),
        ("resolution", "string"),
        ("resolved_by", "string"),
    ]
