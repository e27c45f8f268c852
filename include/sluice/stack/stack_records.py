"""The records of a stack: its ports, processes and chosen services, and which of the observed processes are its own."""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import chain
from pathlib import Path

from sluice.errors import StackError, UsageError
from sluice.processes.host_processes import LivingProcess, observe_processes, own_lineage, with_descendants
from sluice.stack.environment import STACK_MARK
from sluice.stack.folder import StackFolder, write_private
from sluice.stack.services import all_services, all_steps
from sluice.stack.stack_plan import Command, PortRequest, Service, Step, holder_of, is_free, listened_by

_LOWEST = 20_000
_HIGHEST = 22_700
"""Below 32768, where Linux begins to give ports to outgoing connections: a recorded port above could be taken by chance
while the stack is down. The upper end leaves room for `GRPC_OFFSET`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPorts:
    """The ports of a stack by name, and the recorded ones that were given up because another process has taken them."""

    ports: Mapping[str, int]
    given_up: Mapping[str, int]


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


def read_ports(path: Path) -> dict[str, int]:
    """The recorded ports by name; empty when none were recorded yet."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def write_ports(path: Path, ports: Mapping[str, int]) -> None:
    """Record the ports."""
    write_private(path, json.dumps(dict(ports), indent=2) + "\n")


def requested_ports(requests: Collection[PortRequest], environ: Mapping[str, str] | None = None) -> dict[str, int]:
    """The ports that a user asks for through environment variables, by name.

    Raises
    ------
    UsageError: when a variable does not hold a port number.
    """
    values = os.environ if environ is None else environ
    return {
        request.name: _port_number(values[request.variable], variable=request.variable)
        for request in requests
        if request.variable and values.get(request.variable)
    }


def _port_number(text: str, *, variable: str) -> int:
    if not text.isdecimal() or not 1024 <= int(text) <= 65535:
        raise UsageError(f"{variable} is {text!r}, but a port is a number from 1024 to 65535.")
    return int(text)


def choose_ports(
    requests: Collection[PortRequest],
    *,
    asked: Mapping[str, int],
    recorded: Mapping[str, int],
    ours: Collection[int],
    is_running: bool,
    is_free: Callable[[int], bool] = is_free,
    pick: Callable[[], int] = lambda: random.randint(_LOWEST, _HIGHEST),  # noqa: S311  # no secret: any free port will do
) -> ChosenPorts:
    """Choose a port for every request: the one asked for, or the recorded one, or the preferred one, or any.

    Parameters
    ----------
    requests: the ports that are needed.
    asked: the ports the user asks for; they are never replaced.
    recorded: the ports of the last `up`.
    ours: the ports that this stack's own processes listen on; they count as free.
    is_running: whether any process of this stack runs.
    is_free: whether a port can be listened on.
    pick: proposes a port.

    Raises
    ------
    StackError: when a port that was asked for is taken, or when a recorded one is taken while parts of the stack run:
        they use the old port, so replacing it would cut them off.
    """
    chosen: dict[str, int] = {}
    given_up: dict[str, int] = {}
    taken: set[int] = set()

    def usable(request: PortRequest, port: int) -> bool:
        return all(n not in taken and (n in ours or is_free(n)) for n in request.numbers(port))

    for request in sorted(requests, key=lambda r: (r.name not in asked, r.name not in recorded)):
        known = asked.get(request.name) or recorded.get(request.name)
        port = known
        if port is None or not usable(request, port):
            if known is not None:
                _refuse_replacement(request, known, is_asked=request.name in asked, is_running=is_running)
                given_up[request.name] = known
            preferred = (request.preferred,) if request.preferred else ()
            port = next(p for p in chain(preferred, iter(pick, None)) if usable(request, p))
        chosen[request.name] = port
        taken.update(request.numbers(port))
    return ChosenPorts(ports=chosen, given_up=given_up)


def _refuse_replacement(request: PortRequest, port: int, *, is_asked: bool, is_running: bool) -> None:
    if is_asked:
        raise StackError(
            f"{request.variable} asks for port {port}, but {holder_of(port)} listens on it already.",
            next_step=f"Stop that process, or set {request.variable} to another port.",
        )
    if is_running:
        raise StackError(
            f"Port {port}, recorded for {request.name}, was taken by {holder_of(port)} while parts of the stack run.",
            next_step="Stop that process and run `sluice stack up` again. `sluice stack down` before it lets it choose "
            "other ports.",
        )


def port_requests(steps: Mapping[str, Step]) -> list[PortRequest]:
    """The ports that the services among some steps need."""
    return [port for step in steps.values() if isinstance(step, Service) for port in step.ports]


def choose_stack_ports(steps: Mapping[str, Step], folder: StackFolder) -> ChosenPorts:
    """Choose the ports of the selected services. The others keep their recorded ports, taken or not.

    Parameters
    ----------
    steps: the selected steps.
    folder: the stack.

    Raises
    ------
    UsageError, StackError: see `requested_ports` and `choose_ports`.
    """
    selected = port_requests(steps)
    requests = port_requests(all_steps())
    recorded = read_ports(folder.ports)
    resting = {n for r in requests if r not in selected and r.name in recorded for n in r.numbers(recorded[r.name])}
    members = stack_members(folder, everything=observe_processes(), services=all_services().values())
    return choose_ports(
        requests,
        asked=requested_ports(selected),
        recorded=recorded,
        ours=listened_by(members) | resting,
        is_running=bool(members),
    )
