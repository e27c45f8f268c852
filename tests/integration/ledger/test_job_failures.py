"""What a failed job on a cluster leaves to its task, in a real PostgreSQL."""

from __future__ import annotations

from pathlib import Path

import pytest
from sluice.ledger.job_failures import record_job_failure, take_job_failure
from tests.fixtures.deployment import deployment_environment

from sluice.errors import UnhealthyError
from sluice.launching.job_output import JOB_RUN_VARIABLE
from sluice.ledger.connection import Ledger
from sluice_spark.run.job import run_job


def test_the_last_lines_are_taken_once_and_by_their_own_run(ledger: Ledger) -> None:
    record_job_failure(ledger, "check_quality silver.flights", run_id="run-1", last_lines="first")
    record_job_failure(ledger, "check_quality silver.flights", run_id="run-2", last_lines="second")
    assert take_job_failure(ledger, run_id="run-1") is None
    assert take_job_failure(ledger, run_id="run-2") == "second"
    assert take_job_failure(ledger, run_id="run-2") is None


def test_a_job_whose_log_stays_on_a_cluster_leaves_its_last_lines(
    ledger: Ledger, ledger_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        raise UnhealthyError("2 of 3 expectations failed")

    for name, value in deployment_environment(tmp_path, pipelines=tmp_path, ledger_url=ledger_url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(JOB_RUN_VARIABLE, "check_quality silver.flights run-3")
    assert run_job(fails) == UnhealthyError.exit_code
    left = take_job_failure(ledger, run_id="run-3")
    assert left is not None
    assert left.splitlines()[-1] == "sluice: failed: UnhealthyError: 2 of 3 expectations failed"
