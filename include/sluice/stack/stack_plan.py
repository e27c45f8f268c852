"""What a service needs to know in order to be started, all of it decided before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sluice.stack.credentials import Credentials
from sluice.stack.folder import StackFolder
from sluice.stack.tcp_ports import LOOPBACK
from sluice.stack.tools import Tools


@dataclass(frozen=True, slots=True, kw_only=True)
class StackPlan:
    """One stack, decided.

    Parameters
    ----------
    home: the project's root.
    folder: the stack's data folder.
    ports: every port by name.
    credentials: every secret.
    tools: the programs.
    environment: the settings of Airflow, drivers and commands; empty until they are made from the rest.
    """

    home: Path
    folder: StackFolder
    ports: Mapping[str, int]
    credentials: Credentials
    tools: Tools
    environment: Mapping[str, str]

    def address(self, port: str) -> str:
        """`host:port` of a named port."""
        return f"{LOOPBACK}:{self.ports[port]}"

    def url(self, port: str) -> str:
        """`http://host:port` of a named port."""
        return f"http://{self.address(port)}"
