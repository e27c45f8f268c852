"""A slice of the drill `tests.faults.ledger_failover`: the ledger forgets a real driver, and another one follows."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy.engine import URL
from tests.faults.ledger_failover import Fault, Output, fail_over, stage_of
from tests.fixtures.stack import Stack


@pytest.mark.drill  # every test run has it without Spark (`test_ledger_failover.py`)
def test_a_forgotten_driver_ends_and_each_row_is_there_once(services: Stack, postgres_url: URL, tmp_path: Path) -> None:
    server_url = postgres_url.render_as_string(hide_password=False)
    with stage_of(services, server_url, tmp_path, Output.APPEND) as stage:
        report = fail_over(stage, Fault.FORGOTTEN, seconds=0)

    assert (report.lost, report.doubled, report.ended_with.partition(":")[0]) == (0, 0, "LeaseLostError")
