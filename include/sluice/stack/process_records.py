"""The records of a stack's processes and chosen services, and which of the observed processes belong to it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime

from sluice.processes.living_processes import LivingProcess, own_lineage, with_descendants
from sluice.stack.environment import STACK_MARK
from sluice.stack.folder import StackFolder, write_private
from sluice.stack.stack_plan import Command, Service


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


def stack_members(
    folder: StackFolder, *, everything: Mapping[int, LivingProcess], services: Iterable[Service]
) -> dict[int, LivingProcess]:
    """Every process of a stack: those with its mark in their environment, their descendants, strays of its services.

    The calling process and its ancestors are left out, whatever their environment holds.

    Parameters
    ----------
    folder: the stack.
    everything: the machine's processes, by process id.
    services: the services whose stray children are looked for.
    """
    strays = [(service.stray_name, str(folder.data / service.name)) for service in services if service.stray_name]
    roots = [
        process
        for process in everything.values()
        if process.variable(STACK_MARK) == str(folder.data) or (process.name, process.working_folder) in strays
    ]
    members = with_descendants(roots, everything)
    return {pid: process for pid, process in members.items() if pid not in own_lineage(everything)}


def service_members(
    service: Service, record: ProcessRecord | None, *, folder: StackFolder, members: Mapping[int, LivingProcess]
) -> dict[int, LivingProcess]:
    """The processes of one service, also when its first process has ended: those of its session, and its strays.

    A driver that the service has started lives in a session of its own. It is not a part of the service and outlives
    it.

    Parameters
    ----------
    service: the service.
    record: the process that was started for it last.
    folder: the stack.
    members: the processes of the whole stack.
    """
    place = str(folder.data / service.name)
    return {
        pid: process
        for pid, process in members.items()
        if (record is not None and process.session_id == record.pid)
        or (service.stray_name and (process.name, process.working_folder) == (service.stray_name, place))
    }
