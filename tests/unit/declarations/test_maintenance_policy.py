"""What tables inherit of `maintenance.yaml`, and where each value comes from."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from sluice.declarations.loaded_declarations import all_tables

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder

POLICY = """\
all_tables:
  compaction: {min_input_files: 9, target_file_bytes: 64 MiB}
  expiry: {older_than: 10 days}
  window: {start: "22:00", end: "04:00", days: [saturday]}
namespaces:
  bronze:
    compaction: {min_input_files: 7}
    expiry: null
  quarantine:
    expiry: {retain_last: 3}
"""


def _said(folder: Folder, table: str) -> dict[str, str]:
    found = (str(value).replace(f"{folder.path}/", "") for value in folder.load().policy_of(table))
    return dict(sentence.split(": ", 1) for sentence in found)


def test_the_nearest_value_of_each_key_holds(valid: Folder) -> None:
    valid.write("maintenance.yaml", POLICY)
    file = valid.path / "bronze.flights.table.yaml"
    valid.write(
        file.name,
        file.read_text() + "maintenance:\n  expiry: {retain_last: 5}\n  window: {start: '01:00', end: '02:00'}\n",
    )
    declarations = valid.load()
    assert declarations.problems == ()
    held = declarations.tables["bronze.flights"].declaration.maintenance
    assert held.compaction is not None
    assert held.expiry is not None
    assert held.window is not None
    assert (held.compaction.min_input_files, held.compaction.target_file_bytes) == (7, 64 * 1024**2)
    assert (held.expiry.retain_last, held.expiry.older_than) == (5, timedelta(days=5)), "bronze turned that part off"
    assert len(held.window.days) == 7, "a window is one value"
    said = _said(valid, "bronze.flights")
    assert said["compaction.min_input_files"] == "7, namespace (maintenance.yaml:7)"
    assert said["compaction.target_file_bytes"] == "64.0 MiB, all_tables (maintenance.yaml:2)"
    assert said["expiry.retain_last"] == "5, table (bronze.flights.table.yaml:15)"
    assert said["expiry.older_than"] == "5 days, default"
    assert said["manifest_rewrite.min_manifests"] == "100, default"
    assert said["window"] == "01:00 to 02:00 UTC, table (bronze.flights.table.yaml:16)"


def test_a_part_that_is_turned_off_stays_off_and_says_by_whom(valid: Folder) -> None:
    valid.write("maintenance.yaml", "all_tables:\n  expiry: null\n")
    assert valid.load().tables["silver.flights"].declaration.maintenance.expiry is None
    assert _said(valid, "silver.flights")["expiry"] == "off, all_tables (maintenance.yaml:2)"


def test_a_quarantine_inherits_too(valid: Folder) -> None:
    valid.write("maintenance.yaml", POLICY)
    expiry = all_tables(valid.load())["quarantine.silver_flights"].maintenance.expiry
    assert expiry is not None
    assert (expiry.older_than, expiry.retain_last) == (timedelta(days=10), 3)
    assert _said(valid, "quarantine.silver_flights")["expiry.retain_last"] == "3, namespace (maintenance.yaml:10)"


def test_sorting_is_inherited_by_tables_with_an_order_alone(valid: Folder) -> None:
    valid.write("maintenance.yaml", "all_tables:\n  compaction: {strategy: sort}\n")
    file = valid.path / "silver.flights.table.yaml"
    valid.write(file.name, file.read_text().replace("sort_order:\n  - {column: carrier}\n", ""))
    strategies = {
        name: table.declaration.maintenance.compaction.strategy
        for name, table in valid.load().tables.items()
        if table.declaration.maintenance.compaction is not None
    }
    assert strategies == {"bronze.flights": "sort", "reference.airlines": "sort", "silver.flights": "binpack"}
    assert _said(valid, "silver.flights")["compaction.strategy"] == "binpack, default"


def test_the_digest_of_a_table_changes_with_what_it_inherits(valid: Folder) -> None:
    before = valid.load()
    valid.write("maintenance.yaml", "namespaces:\n  bronze:\n    expiry: {retain_last: 3}\n")
    after = valid.load()
    changed = {name for name, table in after.tables.items() if table.digest != before.tables[name].digest}
    assert changed == {"bronze.flights"}


def test_nothing_is_maintained_while_the_file_has_a_problem(valid: Folder) -> None:
    """By the defaults, snapshots would expire that the file keeps."""
    for text, problem in (
        ("all_tables: {expiry: {older_than: ten}}", "maintenance.yaml:1: `all_tables.expiry.older_than`"),
        ("namespaces: {bronse: {expiry: null}}", "maintenance.yaml:1: `namespaces.bronse`: no table is declared"),
        ("tables: {}", "maintenance.yaml:1: `tables`"),
    ):
        valid.write("maintenance.yaml", text)
        assert [one[: len(problem)] for one in valid.problems()] == [problem]
        declared = valid.load()
        assert set(declared.tables) == {"bronze.flights", "silver.flights", "reference.airlines"}
        assert not any(table.maintenance.is_any for table in all_tables(declared).values())


def test_a_file_in_another_folder_is_a_problem(valid: Folder) -> None:
    valid.write("bronze/maintenance.yaml", POLICY)
    assert [problem.partition(":")[0] for problem in valid.problems()] == ["bronze/maintenance.yaml"]


TIMED = """\
table: bronze.flights
description: flights
owner: me
columns: [{name: id, type: long}, {name: at, type: timestamptz}, {name: city, type: string}]
partitioning: [{column: at, transform: day}]
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("all_tables: {retention: {column: att, older_than: 9 days}}", "is partitioned by att. Did you mean `at`?"),
        ("namespaces: {bronze: {retention: {column: id}}}", "is partitioned by id."),
        ("namespaces: {silver: {retention: {column: at}}}", "is partitioned by at."),
        (
            "all_tables: {compaction: {strategy: z_order, z_order: [citty, id]}}",
            "can be ordered by citty, id. Did you mean `city`?",
        ),
        ("all_tables: {retention: {column: at, older_than: 9 days}}", ""),
        ("all_tables: {compaction: {strategy: z_order, z_order: [city, id]}}", ""),
        ("namespaces: {quarantine: {retention: {column: at}}}", ""),
    ],
)
def test_a_column_that_fits_no_table_is_a_problem(valid: Folder, text: str, problem: str) -> None:
    valid.write("bronze.flights.table.yaml", TIMED)
    valid.write("maintenance.yaml", text)
    found = [said for said in valid.problems() if "no table that it is for" in said]
    assert len(found) == bool(problem), found
    assert all(one.startswith("maintenance.yaml:1: ") and one.endswith(problem) for one in found)


def test_an_unreadable_table_may_have_the_column(valid: Folder) -> None:
    valid.write("maintenance.yaml", "all_tables: {retention: {column: when}}")
    assert len(valid.problems()) == 1, "the whole folder is known"
    valid.write("bronze.flights.table.yaml", "table: [")
    assert not any(said.startswith("maintenance.yaml") for said in valid.problems())
    assert valid.load(only="silver.flights").problems == ()
