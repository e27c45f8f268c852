"""Limits that an increment over an Iceberg table would ignore are refused where they are declared."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.unit.declarations.conftest import STREAM

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder

INCREMENTAL = STREAM.replace(
    "mode: continuous\ntrigger: {processing_time: 2 seconds}", 'mode: incremental\nschedule: {cron: "@hourly"}'
)


@pytest.mark.parametrize("limit", ["max_rows_per_batch", "max_files_per_batch"])
def test_a_limit_of_an_increment_over_a_table_is_refused(valid: Folder, limit: str) -> None:
    limited = INCREMENTAL.replace("{table: bronze.flights}", f"{{table: bronze.flights, {limit}: 5}}")
    valid.write("silver_flights.stream.yaml", limited)

    (problem,) = valid.load().problems

    assert str(problem).startswith(str(valid.path / "silver_flights.stream.yaml:9"))
    assert f"`inputs.flights.stream.iceberg.{limit}`: an increment that reads an Iceberg table is one batch" in str(
        problem
    )


def test_the_same_limit_of_a_continuous_stream_is_obeyed(valid: Folder) -> None:
    limited = STREAM.replace("{table: bronze.flights}", "{table: bronze.flights, max_files_per_batch: 5}")
    valid.write("silver_flights.stream.yaml", limited)

    assert valid.load().problems == ()
