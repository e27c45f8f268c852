"""A run executes Python code of a team's own when its transformation or one of its outputs is written in Python."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.streams import continuous_stream

SQL, PYTHON = {"sql": "flights.sql"}, {"python": "transformations.py:flights"}
TABLE = {"rows": {"iceberg": {"table": "bronze.flights"}}}
FUNCTION = {"sent": {"python": {"function": "sending.py:send"}}}


@pytest.mark.parametrize(
    ("transformation", "outputs", "runs_python"),
    [(SQL, TABLE, False), (PYTHON, TABLE, True), (SQL, FUNCTION, True)],
    ids=["a query", "a function", "a query, and a function that gets its rows"],
)
def test_python_of_a_team_is_that_of_its_transformation_and_of_its_outputs(
    transformation: dict[str, str], outputs: dict[str, Any], runs_python: bool
) -> None:
    stream = continuous_stream(transformation=transformation, outputs=outputs)
    assert stream.declaration.runs_python is runs_python
