"""A container's command that ends takes its drivers along in order, and their ends are recorded."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fixtures.drivers import await_end, end_drivers

from sluice.launching.launcher_port import LaunchRequest
from sluice.launching.launchers import LocalLauncher
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import admit_run, find_run

FINISHES_ITS_BATCH = "trap 'sleep 1; exit 0' TERM; echo begun; while :; do sleep 0.1; done"


@pytest.fixture
def launcher(ledger: Ledger, ledger_url: str) -> Iterator[LocalLauncher]:
    """The local launcher, and no driver left behind."""
    yield LocalLauncher(ledger_url=ledger_url)
    end_drivers(ledger)


def test_drivers_finish_and_are_recorded_before_the_command_is_over(
    launcher: LocalLauncher, ledger: Ledger, ledger_url: str, tmp_path: Path
) -> None:
    run = admit_run(ledger, stream="flights", mode="continuous", declaration_digest="d", launched_by="a test")
    log_file = tmp_path / "run.log"
    script = ("sh", "-c", FINISHES_ITS_BATCH)
    command = [sys.executable, "-m", "sluice.launching.drained_command", "sh", "-c", "trap 'exit 7' TERM; echo up; "
               "while :; do sleep 0.1; done"]  # fmt: skip
    environment = {**os.environ, "SLUICE_LEDGER_URL": ledger_url}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as container:  # noqa: S603  # ours
        assert container.stdout is not None
        assert container.stdout.readline() == "up\n"
        launcher.launch(LaunchRequest(run_id=run.run_id, stream="flights", command=script, log_file=log_file))
        while "begun" not in log_file.read_text():
            assert find_run(ledger, run.run_id).is_live
        container.send_signal(signal.SIGTERM)
        assert container.wait(30) == 7, "the exit code of its command"
        ended = find_run(ledger, run.run_id)
    assert (ended.state, ended.exit_code) == (RunState.FINISHED, 0), "recorded before the container is over"
    assert await_end(ledger, run.run_id) == ended
