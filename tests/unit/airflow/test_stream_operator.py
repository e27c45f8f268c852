"""What the supervising task knows of its own try."""

from __future__ import annotations

import pytest

from sluice_airflow.operators.stream import is_first_try


@pytest.mark.parametrize(
    ("try_number", "max_tries", "is_first"),
    [
        pytest.param(1, 1000, True, id="a new DAG run"),
        pytest.param(2, 1000, False, id="a retry"),
        pytest.param(2, 1001, True, id="cleared after the first try"),
        pytest.param(3, 1001, False, id="a retry after that"),
        pytest.param(6, 1005, True, id="cleared again"),
    ],
)
def test_a_retry_is_not_taken_for_a_person(try_number: int, max_tries: int, is_first: bool) -> None:
    assert is_first_try(try_number=try_number, max_tries=max_tries, retries=1000) is is_first
