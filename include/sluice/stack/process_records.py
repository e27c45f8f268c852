"""The records of a stack: which process was started for each service, and which services were asked for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sluice.processes.living_processes import LivingProcess
from sluice.stack.folder import StackFolder, write_private
from sluice.stack.stack_plan import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """A process that was started for a service.

    Parameters
    ----------
    service: the service's name.
    pid, start_ticks: the process's key; see `LivingProcess.key`.
    started_at: when, ISO 8601 with time zone.
    fingerprint: a digest of the command line and settings it was started with.
    """

    service: str
    pid: int
    start_ticks: int
    started_at: str
    fingerprint: str

    @property
    def since(self) -> datetime:
        """The time of its start."""
        return datetime.fromisoformat(self.started_at)

    def is_alive(self, everything: Mapping[int, LivingProcess]) -> bool:
        """Whether the recorded process is among the observed ones."""
        return self.is_of(everything.get(self.pid))

    def is_of(self, seen: LivingProcess | None) -> bool:
        """Whether an observed process is the recorded one."""
        return seen is not None and seen.key == (self.pid, self.start_ticks)


def write_record(folder: StackFolder, record: ProcessRecord) -> None:
    """Write a record in place of the service's previous one."""
    write_private(folder.records / f"{record.service}.json", json.dumps(asdict(record)) + "\n")


def read_records(folder: StackFolder) -> dict[str, ProcessRecord]:
    """Every record by service. A damaged one is left out: its process is still found by its marks."""
    records = {}
    for path in sorted(folder.records.glob("*.json")):
        try:
            record = ProcessRecord(**json.loads(path.read_text()))
        except (ValueError, TypeError):
            continue
        records[record.service] = record
    return records


def remove_record(folder: StackFolder, service: str) -> None:
    """Remove the record of a service."""
    (folder.records / f"{service}.json").unlink(missing_ok=True)


def write_selection(folder: StackFolder, services: Sequence[str]) -> None:
    """Write which services `up` was asked for: those that must be healthy."""
    write_private(folder.data / "services.json", json.dumps(list(services)) + "\n")


def read_selection(folder: StackFolder) -> list[str]:
    """The services that `up` was asked for; empty before the first `up`."""
    path = folder.data / "services.json"
    return [str(name) for name in json.loads(path.read_text())] if path.exists() else []


def fingerprint(command: Command) -> str:
    """A digest of what a process is started with. When it changes, the process must be restarted."""
    content = [command.argv, str(command.working_folder), sorted(command.environment.items())]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
