"""The connections that streams name, against those of a deployment; and the columns that expectations name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from sluice.declarations.checks.cross_checks import unknown_connections
from sluice.declarations.checks.rule_checks import installed_expectations

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder

KAFKA = "kafka: {connection: flights_kafka, topics: [flights]}"
PLACE = "silver_flights.stream.yaml:9: `inputs.flights.stream.kafka.connection`:"


@pytest.fixture
def reading_kafka(valid: Folder) -> Folder:
    """A stream that names a connection."""
    file = valid.path / "silver_flights.stream.yaml"
    valid.write(file.name, file.read_text().replace("iceberg: {table: bronze.flights}", KAFKA))
    return valid


@pytest.mark.parametrize(
    ("connections", "problems"),
    [
        ({"flights_kafka": "kafka", "landing": "files"}, []),
        (
            {"flights_kafk": "kafka"},
            [
                f"{PLACE} the deployment has no connection flights_kafka; it has flights_kafk. "
                "Did you mean `flights_kafk`?"
            ],
        ),
        (
            {},
            [
                f"{PLACE} the deployment has no connection flights_kafka; it has none. "
                "Set SLUICE_CONNECTIONS__FLIGHTS_KAFKA__KIND and the rest."
            ],
        ),
        (
            {"flights_kafka": "files"},
            [f"{PLACE} the connection flights_kafka is of kind files, and kafka needs one of kind kafka."],
        ),
    ],
)
def test_connections_exist_and_are_of_the_right_kind(
    reading_kafka: Folder, connections: dict[str, str], problems: list[str]
) -> None:
    declarations = reading_kafka.load()
    found = unknown_connections(declarations.streams.values(), connections)
    assert [str(problem).removeprefix(f"{reading_kafka.path}/") for problem in found] == problems


@pytest.mark.parametrize(
    ("expectation", "problem"),
    [
        ("{type: expect_column_values_to_not_be_null, kwargs: {column: carrier}}", None),
        ("{type: expect_table_row_count_to_be_between, kwargs: {min_value: 1}}", None),
        ("{type: expect_column_to_exist, kwargs: {column: gone}}", None),
        (
            "{type: expect_column_values_to_not_be_null, kwargs: {column: carier}}",
            "bronze.flights.table.yaml:4: `quality.expectations[0].kwargs.column`: bronze.flights has no column "
            "carier; it has carrier, departure, legs. Did you mean `carrier`?",
        ),
        (
            "{type: expect_compound_columns_to_be_unique, kwargs: {column_list: [carrier, gone]}}",
            "bronze.flights.table.yaml:4: `quality.expectations[0].kwargs.column_list`: bronze.flights has no column "
            "gone; it has carrier, departure, legs.",
        ),
    ],
)
def test_expectations_name_columns_of_their_table(valid: Folder, expectation: str, problem: str | None) -> None:
    file = valid.path / "bronze.flights.table.yaml"
    quality = f"owner: flights\nquality: {{expectations: [{expectation}]}}"
    valid.write(file.name, file.read_text().replace("owner: flights", quality))
    assert valid.problems() == ([] if problem is None else [problem])


def test_the_types_of_expectations_are_known_without_importing_them() -> None:
    known = installed_expectations()
    assert {"expect_column_values_to_not_be_null", "expect_compound_columns_to_be_unique"} <= known
    assert "expect_nothing" not in known
