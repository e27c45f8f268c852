"""What `sluice stack down` says when a port of the stack went to another program meanwhile."""

from __future__ import annotations

import os
import socket

import pytest

from sluice.cli.app import main
from sluice.stack import stopping
from sluice.stack.stopping import DownReport


def test_a_taken_port_is_a_note_and_not_the_last_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(stopping, "_RELEASE_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        taken = stopping._taken_ports({port})
    monkeypatch.setattr(stopping, "down", lambda: DownReport(ended_processes=9, taken_ports=taken))

    with pytest.raises(SystemExit) as left:
        main(["stack", "down"])

    output, errors = capsys.readouterr()
    assert left.value.code == 0
    assert output == "The stack is down: 9 processes have ended.\n"
    assert f"Meanwhile other programs have taken ports that it had: {port} by " in errors
    assert f"(pid {os.getpid()})" in errors
