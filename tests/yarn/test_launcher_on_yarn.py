"""The contract of every launcher (`tests/contracts/test_launcher.py`), on a real YARN through the Spark provider."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.contracts.test_launcher import (
    SOON_SECONDS,
    LauncherCase,
    ask,
    launcher,
    run,
    test_a_driver_that_ignores_the_request_is_killed,
    test_a_launched_driver_lives_the_ledger_knows_its_process_and_a_second_launch_is_refused,
    test_a_process_of_another_start_or_of_another_host_is_not_the_driver,
    test_a_stopped_driver_is_gone_its_end_is_recorded_and_another_stop_does_nothing,
    test_nothing_is_started_for_a_run_that_has_ended,
)
from tests.fixtures.drivers import await_condition
from tests.yarn.single_node import SingleNodeYarn

from sluice.errors import LaunchError
from sluice.launching.cluster_launcher import ClusterLauncher, cluster_launcher
from sluice.launching.launcher_port import LaunchRequest
from sluice.launching.submission import Submission
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import find_run
from sluice.processes.process_identity import ProcessState
from sluice_airflow.adapters.spark_connection import read_spark_connection, submit_by_provider

__all__ = [  # the contract's cases and fixtures, which pytest finds in this module by their names
    "ask",
    "launcher",
    "run",
    "test_a_driver_that_ignores_the_request_is_killed",
    "test_a_launched_driver_lives_the_ledger_knows_its_process_and_a_second_launch_is_refused",
    "test_a_process_of_another_start_or_of_another_host_is_not_the_driver",
    "test_a_stopped_driver_is_gone_its_end_is_recorded_and_another_stop_does_nothing",
    "test_nothing_is_started_for_a_run_that_has_ended",
]

DRIVER = str(Path(__file__).with_name("driver.py"))
Ask = Callable[..., LaunchRequest]


class BrokenOffError(BaseException):
    """The launching process dies here."""


@pytest.fixture
def case(yarn_connection: str, ledger: Ledger, ledger_url: str) -> LauncherCase:
    """The launcher as Airflow has it, with small drivers."""
    on_yarn = cluster_launcher(
        yarn_connection,
        read_spark_connection(yarn_connection),
        ledger=ledger,
        ledger_url=ledger_url,
        submit=submit_by_provider,
    )
    python = {
        "spark.yarn.appMasterEnv.PYSPARK_PYTHON": sys.executable,
        "spark.yarn.appMasterEnv.PYSPARK_DRIVER_PYTHON": sys.executable,
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.ui.enabled": "false",
    }
    small = replace(on_yarn, conf_for=lambda *given: {**on_yarn.conf_for(*given), **python})
    return LauncherCase(launcher=small, works=(DRIVER,), ignores=(DRIVER, "hangs"), asked_exit_code=None)


def test_a_launch_that_breaks_off_after_the_submission_has_one_application(
    case: LauncherCase, yarn: SingleNodeYarn, ledger: Ledger, run: RunObservation, ask: Ask
) -> None:
    assert isinstance(case.launcher, ClusterLauncher)

    def submit(submission: Submission) -> None:
        submit_by_provider(submission)
        raise BrokenOffError

    with pytest.raises(BrokenOffError):
        replace(case.launcher, submit=submit).launch(ask(run))
    process = find_run(ledger, run.run_id).process
    assert process is not None
    await_condition(lambda: case.launcher.observe(process) is ProcessState.ALIVE, within_seconds=SOON_SECONDS)
    with pytest.raises(LaunchError, match="has a process already"):
        case.launcher.launch(ask(run))
    assert len(yarn.running()) == 1


def test_a_submission_that_yarn_refuses_is_one_sentence(
    case: LauncherCase, yarn: SingleNodeYarn, run: RunObservation, ask: Ask
) -> None:
    request = replace(ask(run), conf={"spark.yarn.queue": "no_such_queue"})
    with pytest.raises(LaunchError, match=r"was not accepted, .* connection the_cluster: .*unknown queue"):
        case.launcher.launch(request)
    assert yarn.running() == []
