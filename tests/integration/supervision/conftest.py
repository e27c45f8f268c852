"""A supervisor with drivers in memory, on a real ledger."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.launcher import FakeLauncher

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.launching.launcher_port import LaunchRequest
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import RunObservation
from sluice.supervision import supervisor as supervisor_module
from sluice.supervision.supervisor import Supervisor


@pytest.fixture
def launcher(ledger: Ledger) -> FakeLauncher:
    """Drivers in memory."""
    return FakeLauncher(ledger)


@pytest.fixture
def supervisor(ledger: Ledger, launcher: FakeLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    """A supervisor that does not wait for fake drivers."""
    monkeypatch.setattr(supervisor_module, "EXIT_RECORD_SECONDS", 0.0)
    monkeypatch.setattr(supervisor_module, "HEARD_AGAIN_SECONDS", 0.0)

    def request_for(wanted: LoadedStream, run: RunObservation) -> LaunchRequest:
        log_file = tmp_path / f"{run.run_id}.log"
        return LaunchRequest(run_id=run.run_id, stream=wanted.name, command=("true",), log_file=log_file)

    return Supervisor(ledger=ledger, launcher=launcher, request_for=request_for, launched_by="a test")
