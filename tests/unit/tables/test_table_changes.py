"""Plans of table changes: one declared difference, the exact changes, and what is refused because rows would suffer."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from pyiceberg.table.metadata import TableMetadata, new_table_metadata

from sluice.declarations.table_declaration import TableDeclaration
from sluice.errors import LakehouseError
from sluice.stored_keys import DECLARED_PROPERTIES
from sluice.tables.change_plan import declared_before, plan_table_changes
from sluice.tables.table_schemas import partition_spec_of, properties_of, schema_of, sort_order_of

COLUMNS: tuple[dict[str, Any], ...] = (
    {"name": "id", "type": "int", "required": True},
    {"name": "at", "type": "timestamptz", "doc": "when"},
    {"name": "price", "type": "decimal(9, 2)"},
    {"name": "legs", "type": "list<struct<origin: string, miles: int>>"},
    {"name": "names", "type": "map<string, int>"},
)


def declare(columns: tuple[dict[str, Any], ...] = COLUMNS, **more: Any) -> TableDeclaration:
    """The declaration of a table with these columns."""
    layout = {"partitioning": [{"column": "at", "transform": "day"}], "sort_order": [{"column": "id"}]}
    return TableDeclaration.model_validate(
        {"table": "a.b", "description": "d", "owner": "o", "columns": columns} | layout | more
    )


def with_column(of: str, /, **change: Any) -> TableDeclaration:
    """The declaration with one column changed."""
    return declare(tuple(column | change if column["name"] == of else column for column in COLUMNS))


def existing(declaration: TableDeclaration | None = None, properties: Mapping[str, str] | None = None) -> TableMetadata:
    """The metadata of a table that was created from a declaration, with further properties set by someone else."""
    made_from = declaration or declare()
    schema = schema_of(made_from)
    return new_table_metadata(
        schema,
        partition_spec_of(made_from, schema),
        sort_order_of(made_from, schema),
        "s3://lakehouse/a/b",
        {"format-version": "2", **properties_of(made_from), **(properties or {})},
    )


def plan(declaration: TableDeclaration, table: TableMetadata | None) -> list[str]:
    """The plan as a person reads it."""
    return [str(change) for change in plan_table_changes(declaration, table)]


def test_a_table_that_is_missing_is_created() -> None:
    assert plan(declare(), None) == ["create the table with 5 columns"]


def test_a_table_that_is_as_declared_is_left_alone() -> None:
    assert plan(declare(), existing()) == []


@pytest.mark.parametrize(
    ("declaration", "changes"),
    [
        (declare((*COLUMNS, {"name": "x", "type": "string", "doc": "y"})), ["add the column x of type string"]),
        (
            declare(({"name": "x", "type": "string"}, *COLUMNS)),
            ["add the column x of type string", "order the columns as x, id, at, price, legs, names"],
        ),
        (declare(COLUMNS[::-1]), ["order the columns as names, legs, price, at, id"]),
        (with_column("id", type="long"), ["widen the column id from int to long"]),
        (
            with_column("price", type="decimal(18, 2)"),
            ["widen the column price from decimal(9, 2) to decimal(18, 2)"],
        ),
        (with_column("id", required=False), ["make the column id optional"]),
        (with_column("at", doc="the time"), ["describe the column at as 'the time'"]),
        (with_column("at", doc=""), ["describe the column at as ''"]),
        (
            with_column("legs", type="list<struct<origin: string, miles: long, dest: string>>"),
            ["widen the column legs.element.miles from int to long", "add the column legs.element.dest of type string"],
        ),
        (with_column("names", type="map<string, long>"), ["widen the column names.value from int to long"]),
        (
            declare(partitioning=[{"column": "at", "transform": "hour"}]),
            ["no longer partition new rows by at_day", "partition new rows by at_hour"],
        ),
        (
            declare(
                partitioning=[
                    {"column": "id", "transform": "bucket", "width": 4},
                    {"column": "at", "transform": "day"},
                ]
            ),
            ["partition new rows by id_bucket_4"],
        ),
        (declare(partitioning=[]), ["no longer partition new rows by at_day"]),
        (declare(sort_order=[]), ["no longer sort new rows"]),
        (
            declare(sort_order=[{"column": "id", "direction": "desc"}, {"column": "at"}]),
            ["sort new rows by id desc, at asc"],
        ),
        (declare(sort_order=[{"column": "id", "nulls": "first"}]), []),
        (declare(sort_order=[{"column": "id", "nulls": "last"}]), ["sort new rows by id asc"]),
        (
            declare((*COLUMNS, {"name": "x", "type": "int"}), sort_order=[{"column": "x"}]),
            ["add the column x of type int", "sort new rows by x asc"],
        ),
        (declare(description="e"), ["set the property comment to 'e'"]),
        (with_column("names", name="labels", renamed_from="names"), ["rename the column names to labels"]),
        (
            with_column("price", name="fare", renamed_from="price", type="decimal(18, 2)"),
            ["rename the column price to fare", "widen the column fare from decimal(9, 2) to decimal(18, 2)"],
        ),
        (
            declare(
                tuple(
                    {"name": "when", "type": "timestamptz", "doc": "when", "renamed_from": "at"}
                    if column["name"] == "at"
                    else column
                    for column in COLUMNS
                ),
                partitioning=[{"column": "when", "transform": "day"}],
            ),
            ["rename the column at to when"],
        ),
        (with_column("names", renamed_from="titles"), []),
        (declare(COLUMNS[:-1], drop=["names"]), ["drop the column names with its values"]),
        (declare(drop=["titles"]), []),
        (
            declare((*COLUMNS[:2], *COLUMNS[3:], {"name": "fee", "type": "int"}), drop=["price"]),
            ["add the column fee of type int", "drop the column price with its values"],
        ),
    ],
)
def test_what_can_be_done_without_loss_is_planned(declaration: TableDeclaration, changes: list[str]) -> None:
    assert plan(declaration, existing()) == changes


@pytest.mark.parametrize(
    ("names", "refusal"),
    [
        ({"drop": ["id"]}, "drop[0]: id is declared as a column, or as its former name"),
        ({"drop": ["x", "x"]}, "drop[1]: x is dropped twice"),
        ({"renamed": {"price": "id"}}, "columns[2].renamed_from: id is a column of the table"),
        ({"renamed": {"price": "x", "legs": "x"}}, "columns[3].renamed_from: x is the former name of another column"),
        ({"renamed": {"price": "x"}, "drop": ["x"]}, "drop[0]: x is declared as a column, or as its former name"),
    ],
)
def test_former_names_that_contradict_the_columns_are_refused(names: dict[str, Any], refusal: str) -> None:
    former = names.get("renamed", {})
    columns = tuple(
        column | ({"renamed_from": former[column["name"]]} if column["name"] in former else {}) for column in COLUMNS
    )
    with pytest.raises(ValueError, match=re.escape(refusal.partition(": ")[2])):
        declare(columns, drop=names.get("drop", []))


@pytest.mark.parametrize("name", ["at", "id"], ids=["of a partition", "of the order"])
def test_a_column_that_the_layout_is_made_of_is_not_dropped(name: str) -> None:
    """Old files keep their partitions, whatever is declared now."""
    columns = tuple(column for column in COLUMNS if column["name"] != name)
    declaration = declare(columns, partitioning=[], sort_order=[], drop=[name])
    with pytest.raises(LakehouseError, match=f"{name} cannot be dropped"):
        plan_table_changes(declaration, existing())


def test_a_table_that_has_the_former_and_the_new_name_keeps_both() -> None:
    both = declare((*COLUMNS, {"name": "labels", "type": "map<string, int>"}))
    with pytest.raises(LakehouseError, match="the column names is in the table and no longer in the declaration"):
        plan_table_changes(with_column("names", name="labels", renamed_from="names"), existing(both))


@pytest.mark.parametrize(
    ("declaration", "refusal"),
    [
        (
            declare(COLUMNS[:-1]),
            "the column names is in the table and no longer in the declaration (add `renamed_from` to the column that "
            "it becomes, or name it under `drop`)",
        ),
        (
            declare((*COLUMNS, {"name": "x", "type": "int", "required": True})),
            "the column x is new and required, and rows written so far have no value for it",
        ),
        (
            with_column("at", required=True),
            "the column at is optional and declared as required, and rows may lack a value",
        ),
        (
            with_column("id", type="string"),
            "the column id would change from int to string, and not every value fits",
        ),
        (
            with_column("price", type="decimal(8, 2)"),
            "the column price would change from decimal(9, 2) to decimal(8, 2), and not every value fits",
        ),
        (
            # pyiceberg would let this pass.
            with_column("price", type="decimal(18, 3)"),
            "the column price would change from decimal(9, 2) to decimal(18, 3), and not every value fits",
        ),
        (
            with_column("at", type="timestamp"),
            "the column at would change from timestamptz to timestamp, and not every value fits",
        ),
        (
            with_column("legs", type="list<struct<origin: string>>"),
            "the column legs.element.miles is in the table and no longer in the declaration (fields of a column are "
            "never dropped)",
        ),
        (
            with_column("names", type="map<int, int>"),
            "the column names.key would change from string to int",
        ),
        (
            declare((*COLUMNS[1:], {"name": "id", "type": "date"}, {"name": "y", "type": "int", "required": True})),
            "the column id would change from int to date, and not every value fits; the column y is new and required, "
            "and rows written so far have no value for it",
        ),
    ],
)
def test_what_would_cost_rows_or_promises_is_refused(declaration: TableDeclaration, refusal: str) -> None:
    with pytest.raises(LakehouseError) as refused:
        plan_table_changes(declaration, existing())
    assert str(refused.value) == (
        f"The table a.b cannot become as it is declared: {refusal}. "
        "Correct the declaration, or declare a table of another name."
    )


def test_a_property_of_an_earlier_declaration_is_taken_back_and_no_other() -> None:
    table = existing(
        declare(properties={"write.distribution-mode": "none"}),
        {"sluice.mark.silver_flights.main": "{}", "set.by.hand": "yes"},
    )
    names = ["commit.retry.num-retries", "comment", "owner", "write.delete.mode", "write.merge.mode"]
    names += ["write.metadata.delete-after-commit.enabled", "write.metadata.previous-versions-max"]
    names += ["write.target-file-size-bytes", "write.update.mode"]
    changes = plan(declare(), table)
    assert changes == [
        f"set the property {DECLARED_PROPERTIES} to '{str(sorted(names)).replace(chr(39), chr(34))}'",
        "remove the property write.distribution-mode",
    ]


def test_a_property_that_someone_changed_is_set_again() -> None:
    table = existing(properties={"commit.retry.num-retries": "4"})
    assert plan(declare(), table) == ["set the property commit.retry.num-retries to '15'"]


@pytest.mark.parametrize("text", ["", "{", "5", '{"a": 1}', "null"])
def test_nothing_is_taken_back_when_the_earlier_declaration_is_unknown(text: str) -> None:
    assert declared_before({DECLARED_PROPERTIES: text}) == ()
    assert declared_before({}) == ()


def test_a_declaration_has_the_last_word_over_the_platforms_properties() -> None:
    properties = properties_of(declare(properties={"commit.retry.num-retries": "3"}))
    assert properties["commit.retry.num-retries"] == "3"
    assert properties["write.target-file-size-bytes"] == str(128 * 1024**2)
    without_compaction = properties_of(declare(maintenance={"compaction": None}))
    assert "write.target-file-size-bytes" not in without_compaction


def test_a_partition_field_never_takes_the_name_of_a_column() -> None:
    declaration = declare((*COLUMNS, {"name": "at_day", "type": "date"}))
    assert [field.name for field in existing(declaration).spec().fields] == ["at_day_partition"]
