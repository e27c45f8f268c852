"""Rows are z-ordered by two or more columns that the table has, and by which Iceberg can."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluice.declarations.maintenance_declaration import CompactionDeclaration

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder

TABLE = """\
table: gold.places
description: Places, each once.
owner: me
columns:
  - {name: id, type: long}
  - {name: day, type: date}
  - {name: price, type: "decimal(10, 2)"}
  - {name: tags, type: list<string>}
  - {name: city, type: string}
partitioning:
  - {column: day}
  - {column: id, transform: bucket, width: 4}
maintenance:
  compaction: {strategy: %s}
"""


def problems(folder: Folder, compaction: str) -> list[str]:
    """What is wrong with a table that declares a strategy, without the place."""
    folder.write("gold.places.table.yaml", TABLE % compaction)
    return [problem.partition("maintenance.compaction")[2] for problem in folder.problems()]


@pytest.mark.parametrize(
    ("compaction", "sentence"),
    [
        ("z_order, z_order: [id, city]", ""),
        ("z_order, z_order: [id]", ".z_order`: two columns or more; rows are sorted by one with `strategy: sort`"),
        ("z_order", ".z_order`: two columns or more"),
        ("sort, z_order: [id, city]", ".z_order`: is only for `strategy: z_order`"),
        ("binpack, z_order: [id, city]", ".z_order`: is only for `strategy: z_order`"),
        ("binpack, z_order: []", ".z_order`: is only for `strategy: z_order`"),
        ("binpack, z_order: null", ".z_order`: is only for `strategy: z_order`"),
        ("z_order, z_order: [id, city, id]", ".z_order`: the column id is named twice"),
        ("z_order, z_order: [id, town]", ".z_order[1]`: the table has no column town; it has id, day, price, tags"),
        ("z_order, z_order: [id, price]", ".z_order[1]`: rows cannot be z-ordered by a column of type decimal"),
        ("z_order, z_order: [tags, id]", ".z_order[0]`: rows cannot be z-ordered by a column of type list"),
        ("z_order, z_order: [id, day]", ".z_order[1]`: day has one value in each partition; name columns that vary"),
    ],
)
def test_columns_of_a_z_order(valid: Folder, compaction: str, sentence: str) -> None:
    found = problems(valid, compaction)
    assert [one[: len(sentence)] for one in found] == ([sentence] if sentence else [])


def test_a_table_with_icebergs_own_column_is_not_z_ordered(valid: Folder) -> None:
    text = (TABLE % "z_order, z_order: [id, city]").replace(
        "  - {name: id,", "  - {name: icezvalue, type: int}\n  - {name: id,"
    )
    valid.write("gold.places.table.yaml", text)
    assert "Iceberg z-orders no table with a column icezvalue" in "".join(valid.problems())


def compaction_of(folder: Folder, table: str) -> CompactionDeclaration:
    """The compaction that holds for a table."""
    declared = folder.load().tables[table].declaration.maintenance.compaction
    assert declared is not None
    return declared


def test_a_z_order_is_inherited_by_tables_with_its_columns_alone(valid: Folder) -> None:
    valid.write("maintenance.yaml", "all_tables:\n  compaction: {strategy: z_order, z_order: [city, id]}\n")
    valid.write("gold.places.table.yaml", (TABLE % "x").partition("maintenance:")[0])
    assert valid.problems() == []

    assert (compaction_of(valid, "gold.places").strategy, compaction_of(valid, "gold.places").z_order) == (
        "z_order",
        ("city", "id"),
    )
    assert compaction_of(valid, "bronze.flights") == CompactionDeclaration()
    said = {one.key: str(one) for one in valid.load().policy_of("gold.places")}
    assert said["compaction.z_order"].startswith("compaction.z_order: city, id, all_tables (")
    assert "compaction.z_order" not in {one.key for one in valid.load().policy_of("bronze.flights")}


@pytest.mark.parametrize("nearer", ["binpack", "z_order, z_order: [id, city]"])
def test_the_nearest_strategy_brings_its_columns(valid: Folder, nearer: str) -> None:
    valid.write("maintenance.yaml", "all_tables:\n  compaction: {strategy: z_order, z_order: [city, id]}\n")
    assert problems(valid, nearer) == []

    held = compaction_of(valid, "gold.places")
    assert (held.strategy, held.z_order) == (("binpack", None) if nearer == "binpack" else ("z_order", ("id", "city")))
    origin = [str(one) for one in valid.load().policy_of("gold.places") if one.key == "compaction.z_order"]
    assert len(origin) == (nearer != "binpack")


@pytest.mark.parametrize("place", ["namespaces", "table"])
@pytest.mark.parametrize("nothing", ["null", "[]"])
def test_columns_are_not_taken_from_an_inherited_z_order(valid: Folder, place: str, nothing: str) -> None:
    """The strategy would stay without them."""
    own = f"  compaction: {{z_order: {nothing}}}\n"
    policy = "all_tables:\n  compaction: {strategy: z_order, z_order: [city, id]}\n"
    policy += f"namespaces:\n  gold:\n  {own}" if place == "namespaces" else ""
    valid.write("maintenance.yaml", policy)
    table = (TABLE % "x").partition("maintenance:")[0]
    valid.write("gold.places.table.yaml", table + (f"maintenance:\n{own}" if place == "table" else ""))

    (problem,) = valid.problems()
    where = "maintenance.compaction" if place == "table" else "namespaces.gold.compaction"
    assert f"{where}.z_order`: is only for `strategy: z_order`" in problem
