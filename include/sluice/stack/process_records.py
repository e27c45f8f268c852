"""What was started: one private file for each service, so that a later command recognises its process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sluice.stack.folder import StackFolder, write_private
from sluice.stack.service_processes import ProcessIdentity, SeenProcess
from sluice.stack.step import Command


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessRecord:
    """A process that was started for a service.

    Parameters
    ----------
    service: the service's name.
    pid, start_ticks: the process's identity.
    started_at: when, ISO 8601 with time zone.
    fingerprint: a digest of the command line and settings it was started with.
    """

    service: str
    pid: int
    start_ticks: int
    started_at: str
    fingerprint: str

    @property
    def identity(self) -> ProcessIdentity:
        """The process for ever."""
        return ProcessIdentity(pid=self.pid, start_ticks=self.start_ticks)

    @property
    def since(self) -> datetime:
        """When it was started."""
        return datetime.fromisoformat(self.started_at)

    def is_alive(self, everything: Mapping[int, SeenProcess]) -> bool:
        """Whether the recorded process is among the living."""
        seen = everything.get(self.pid)
        return seen is not None and seen.identity == self.identity


def write_record(folder: StackFolder, record: ProcessRecord) -> None:
    """Keep a record, in place of the service's last one."""
    write_private(folder.records / f"{record.service}.json", json.dumps(asdict(record)) + "\n")


def read_records(folder: StackFolder) -> dict[str, ProcessRecord]:
    """Every record by service; a damaged one counts as none: its process is found by its marks."""
    records = {}
    for path in sorted(folder.records.glob("*.json")):
        try:
            record = ProcessRecord(**json.loads(path.read_text()))
        except (ValueError, TypeError):
            continue
        records[record.service] = record
    return records


def remove_record(folder: StackFolder, service: str) -> None:
    """Forget the process of a service."""
    (folder.records / f"{service}.json").unlink(missing_ok=True)


def write_selection(folder: StackFolder, services: Sequence[str]) -> None:
    """Keep which services the last `up` was asked for: those that must be healthy."""
    write_private(folder.data / "services.json", json.dumps(list(services)) + "\n")


def read_selection(folder: StackFolder) -> list[str]:
    """Which services the last `up` was asked for; none when there was no `up`."""
    path = folder.data / "services.json"
    return [str(name) for name in json.loads(path.read_text())] if path.exists() else []


def fingerprint(command: Command) -> str:
    """A digest of what a process is started with: when it differs, the process must be started anew."""
    content = [command.argv, str(command.working_folder), sorted(command.environment.items())]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
