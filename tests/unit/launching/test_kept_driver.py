"""The messages between a task and a kept driver, and the digest that says whether the driver is of this deployment."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
from sluice.launching.kept_driver import (
    DriverAnswer,
    deployment_digest,
    receive_line,
    send_line,
)
from tests.fixtures.deployment import deployment_environment

from sluice.settings import Settings, load_settings


def test_messages_that_arrive_together_are_received_one_by_one() -> None:
    here, there = socket.socketpair()
    with here, there:
        for exit_code in (1, 2):
            send_line(there, DriverAnswer(state="ended", exit_code=exit_code))
        there.sendall(b'{"state":')
        first, second = (DriverAnswer.model_validate_json(receive_line(here)) for _ in range(2))
        there.sendall(b'"outdated"}\n')
        third = DriverAnswer.model_validate_json(receive_line(here))
        there.close()

        assert (first.exit_code, second.exit_code, third.state) == (1, 2, "outdated")
        assert receive_line(here) == b""


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A deployment in a folder of its own."""
    pipelines = tmp_path / "pipelines"
    pipelines.mkdir()
    (pipelines / "rows.sql").write_text("SELECT 1")
    ledger = "postgresql+psycopg://sluice:a-long-password@127.0.0.1:1/sluice"
    for name, value in deployment_environment(tmp_path, pipelines=pipelines, ledger_url=ledger).items():
        monkeypatch.setenv(name, value)
    return load_settings()


@pytest.mark.parametrize("change", ["nothing", "a file", "a new file", "a password"])
def test_the_digest_of_a_deployment_changes_with_what_a_driver_has_loaded(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    before = deployment_digest(settings)
    match change:
        case "a file":
            os.utime(settings.pipelines / "rows.sql", (0, 0))
        case "a new file":
            (settings.pipelines / "module.py").write_text("ONE = 1\n")
        case "a password":
            monkeypatch.setenv("SLUICE_LEDGER_URL", settings.ledger_url.get_secret_value().replace("long", "short"))

    assert (deployment_digest(load_settings()) == before) == (change == "nothing")
