"""Which retention of rows may be declared, what tables inherit of it, and what streams say to it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from tests.fixtures.sample_declarations import write_continuous_stream, write_table

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import all_tables

DAILY = "partitioning: [{column: at, transform: day}]\n"
KEPT = "maintenance: {retention: {column: at, older_than: 90 days}}\n"
SKIPS = "{table: bronze.flights, on_delete: skip}"
POLICY = "all_tables:\n  retention: {column: at, older_than: 90 days}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A stream from one table to another, both partitioned by day."""
    write_continuous_stream(tmp_path, "silver_flights")
    for table in ("bronze.flights", "silver.flights"):
        write_table(tmp_path, table, more=DAILY)
    return tmp_path


def problems(folder: Path) -> list[str]:
    """What is wrong in a folder."""
    return [str(problem).replace(f"{folder}/", "") for problem in load_declarations(folder).problems]


def retention_of(folder: Path, table: str) -> tuple[str | None, timedelta | None] | None:
    """The column and the age that hold for a table."""
    found = all_tables(load_declarations(folder))[table].maintenance.retention
    return None if found is None else (found.column, found.older_than)


def edit(folder: Path, stream: str, old: str, new: str) -> None:
    """Change a stream."""
    file = folder / f"{stream}.stream.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (DAILY + KEPT.replace("at,", "when,"), "the table has no column when; it has id, at"),
        (KEPT, "the table is not partitioned by years, months, days or hours of at"),
        (DAILY.replace("day", "bucket, width: 4") + KEPT, "the table is not partitioned by years, months, days or"),
        (DAILY.replace("day", "identity") + KEPT, "the table is not partitioned by years, months, days or hours"),
        (DAILY + KEPT.replace("at,", "id,"), "the table is not partitioned by years, months, days or hours of id"),
        (DAILY + KEPT.replace("90 days", "23 hours"), "rows are kept for a day at least"),
        (DAILY + "maintenance: {retention: {column: at}}\n", "older_than is needed: neither the table nor"),
        (DAILY + "maintenance: {retention: {older_than: 9 days}}\n", "column is needed: neither the table nor"),
    ],
)
def test_what_cannot_be_meant(folder: Path, more: str, problem: str) -> None:
    write_table(folder, "silver.flights", more=more)
    (said,) = problems(folder)
    assert problem in said
    assert said.startswith("silver.flights.table.yaml:")


def test_a_date_may_be_the_partition_itself(folder: Path) -> None:
    file = write_table(folder, "silver.flights", more=DAILY.replace("day", "identity") + KEPT)
    file.write_text(file.read_text().replace("timestamptz", "date"))
    assert problems(folder) == []


def test_a_reader_that_would_stop_is_a_problem_of_the_table(folder: Path) -> None:
    write_table(folder, "bronze.flights", more=DAILY + KEPT)
    (said,) = problems(folder)
    assert said == (
        "bronze.flights.table.yaml:8: `maintenance.retention`: the rows of bronze.flights cannot go: silver_flights "
        "(input rows) reads it as a stream, and stops where rows are deleted. Declare `on_delete: skip` for that "
        "input, or turn the retention of bronze.flights off."
    )
    assert "bronze.flights" not in load_declarations(folder).tables

    edit(folder, "silver_flights", "{table: bronze.flights}", SKIPS)
    assert problems(folder) == []


def test_a_static_input_may_read_it(folder: Path) -> None:
    write_table(folder, "bronze.flights", more=DAILY + KEPT)
    edit(folder, "silver_flights", "{table: bronze.flights}", "{table: silver.airports}")
    edit(
        folder,
        "silver_flights",
        "transformation:",
        "  b: {static: {iceberg: {table: bronze.flights}}}\ntransformation:",
    )
    write_table(folder, "silver.airports")
    assert problems(folder) == []


@pytest.mark.parametrize(
    ("output", "problem"),
    [
        ("mode: complete", "each batch of silver_flights replaces all rows, and brings them back"),
        (
            "mode: merge, keys: [id], ordering_column: id",
            "silver_flights knows a newer row by id, so that an older one",
        ),
        ("mode: merge, keys: [id], ordering_columns: [id, at]", "silver_flights knows a newer row by id, so that"),
        ("mode: merge, keys: [id], ordering_columns: [at, id]", ""),
        ("mode: merge, keys: [id], ordering_column: at", ""),
        ("mode: merge, keys: [id]", ""),
        ("mode: overwrite_partitions", ""),
    ],
)
def test_how_the_table_is_written(folder: Path, output: str, problem: str) -> None:
    write_table(folder, "silver.flights", more=DAILY + KEPT)
    edit(folder, "silver_flights", "{table: silver.flights}", f"{{table: silver.flights, {output}}}")
    found = [said for said in problems(folder) if "maintenance.retention" in said]
    assert len(found) == bool(problem)
    assert all(problem in said for said in found)


def test_a_shared_column_is_for_tables_that_are_partitioned_by_it(folder: Path) -> None:
    (folder / "maintenance.yaml").write_text(POLICY)
    edit(folder, "silver_flights", "{table: bronze.flights}", SKIPS)
    write_table(folder, "silver.flights")
    write_table(folder, "silver.ports", more="maintenance: {retention: null}\n" + DAILY)
    edit(
        folder,
        "silver_flights",
        "transformation: {sql: rows.sql}",
        "quarantine: true\ntransformation: {python: r.py:f}",
    )
    (folder / "r.py").write_text("def f(rows):\n    return rows\n")
    days = timedelta(days=90)
    assert problems(folder) == []
    assert retention_of(folder, "bronze.flights") == ("at", days)
    assert retention_of(folder, "silver.flights") == (None, days)
    assert retention_of(folder, "silver.ports") is None
    assert retention_of(folder, "quarantine.silver_flights") == (None, days), "a quarantine has a retention of its own"
    said = [str(one).replace(f"{folder}/", "") for one in load_declarations(folder).policy_of("silver.flights")]
    assert "retention.older_than: 90 days, all_tables (maintenance.yaml:2)" in said
    assert not any(one.startswith("retention.column") for one in said)


def test_the_age_may_be_shared_alone(folder: Path) -> None:
    (folder / "maintenance.yaml").write_text("namespaces:\n  silver:\n    retention: {older_than: 30 days}\n")
    write_table(folder, "silver.flights", more=DAILY + "maintenance: {retention: {column: at}}\n")
    assert problems(folder) == []
    assert retention_of(folder, "silver.flights") == ("at", timedelta(days=30))
    assert retention_of(folder, "bronze.flights") is None


def test_a_problem_with_what_is_shared_is_one_of_its_file_and_keeps_the_rows_of_that_table(folder: Path) -> None:
    """A stream that somebody adds does not turn off the maintenance of all tables."""
    (folder / "maintenance.yaml").write_text(POLICY)
    (said,) = problems(folder)
    assert said.startswith("maintenance.yaml:2: `maintenance.retention`: the rows of bronze.flights cannot go:")
    declared = load_declarations(folder)
    assert set(declared.tables) == {"bronze.flights", "silver.flights"}
    assert retention_of(folder, "bronze.flights") is None
    assert retention_of(folder, "silver.flights") == ("at", timedelta(days=90))
    assert all(table.maintenance.expiry is not None for table in all_tables(declared).values())
    (shown,) = (one for one in declared.policy_of("bronze.flights") if one.key.startswith("retention"))
    assert (shown.key, shown.value) == ("retention", "off")
