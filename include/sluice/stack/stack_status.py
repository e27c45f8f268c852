"""What a person sees of the stack: its status now, the progress while it changes, and the logs of its services."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from sluice.processes.deadline import wait_until
from sluice.processes.host_processes import LivingProcess, observe_processes
from sluice.stack.credentials import read_credentials
from sluice.stack.environment import load_environment
from sluice.stack.folder import stack_folder
from sluice.stack.services import all_services
from sluice.stack.stack_plan import Health, Service, StackPlan, tools_of
from sluice.stack.stack_records import ProcessRecord, read_ports, read_records, read_selection, stack_members

_TAIL_BYTES = 64 * 1024
_FOLLOW_SECONDS = 0.2
_LONGEST_LINE = 300


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log; of a long one only the last 64 KiB are read.

    Parameters
    ----------
    log: the file; a missing file has no lines.
    count: how many lines at most.
    """
    if not log.exists():
        return []
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
        # SeaweedFS writes NUL bytes; some terminals do not show what follows them.
        text = file.read().replace(b"\0", b"").decode(errors="replace")
    return text.splitlines()[-count:]


def last_line(log: Path) -> str:
    """The last line that is not blank, shortened to fit into a message."""
    lines = [line.strip() for line in last_lines(log, 50) if line.strip()]
    return lines[-1][:_LONGEST_LINE] if lines else "it wrote nothing"


def follow_log(log: Path, *, position: int) -> Iterator[str]:
    """Yield the lines that are appended to a log, also after the file was renamed and started again.

    Parameters
    ----------
    log: the file.
    position: where to begin, in bytes.
    """
    while True:
        size = log.stat().st_size if log.exists() else 0
        if size < position:
            position = 0
        if size > position:
            with log.open("rb") as file:
                file.seek(position)
                whole = file.read().rpartition(b"\n")[0]
            if whole:
                position += len(whole) + 1
                yield from whole.replace(b"\0", b"").decode(errors="replace").splitlines()
                continue
        time.sleep(_FOLLOW_SECONDS)


class Display(Protocol):
    """Shows the progress of every step. It is called from several threads."""

    def begin(self, step: str, title: str) -> None:
        """A step begins: the steps that it needs are done."""

    def finish(self, step: str, outcome: str) -> None:
        """A step has succeeded; `outcome` says in a few words what was done."""

    def note(self, text: str) -> None:
        """Show a line of text."""


class SilentDisplay:
    """Shows nothing."""

    def begin(self, step: str, title: str) -> None:
        """See Display."""

    def finish(self, step: str, outcome: str) -> None:
        """See Display."""

    def note(self, text: str) -> None:
        """See Display."""


class PlainDisplay:
    """Prints one line for each step that is done: for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun: dict[str, tuple[str, float]] = {}

    def begin(self, step: str, title: str) -> None:
        """See Display."""
        self._begun[step] = (title, time.monotonic())

    def finish(self, step: str, outcome: str) -> None:
        """See Display."""
        title, begun = self._begun[step]
        self.note(f"{title}: {outcome} ({time.monotonic() - begun:.1f} s)")

    def note(self, text: str) -> None:
        """See Display."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


class LiveDisplay:
    """Shows one line for each step, with a spinner until it is done: for a terminal."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/green]"),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            TextColumn("{task.fields[outcome]}", style="dim", markup=False),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._progress.stop()

    def begin(self, step: str, title: str) -> None:
        """See Display."""
        self._tasks[step] = self._progress.add_task(title, total=1, outcome="…")

    def finish(self, step: str, outcome: str) -> None:
        """See Display."""
        self._progress.update(self._tasks[step], completed=1, outcome=outcome)

    def note(self, text: str) -> None:
        """See Display."""
        self._progress.console.print(text, markup=False, highlight=False)


_ANSWER_SECONDS = 15.0
"""How long a living process may take to give a healthy answer. Airflow's API server answers `up`, and then nothing
until it has built what its first tasks ask for: seven seconds on a slow machine without other work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStatus:
    """One service as it is now.

    Parameters
    ----------
    name: the service.
    is_running: whether the process that `up` started lives.
    is_healthy: whether it also gives a real answer.
    pid: its process id while it runs.
    port: the port that people connect to; None when it listens on none.
    since: when it was started, while it runs.
    detail: why it is not healthy.
    """

    name: str
    is_running: bool
    is_healthy: bool
    pid: int | None
    port: int | None
    since: datetime | None
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StackStatus:
    """The stack as it is now: the services that `up` was asked for, and the number of processes, drivers included."""

    services: tuple[ServiceStatus, ...]
    processes: int

    @property
    def is_healthy(self) -> bool:
        """Whether there is a stack and all its services are healthy."""
        return bool(self.services) and all(service.is_healthy for service in self.services)


def observe_stack() -> StackStatus:
    """Ask every service that `up` was asked for, and wait a few seconds for a healthy answer.

    Raises
    ------
    StackError: when the stack's own files are damaged.
    """
    folder = stack_folder()
    services = all_services()
    everything = observe_processes()
    members = stack_members(folder, everything=everything, services=services.values())
    selection = read_selection(folder)
    selected = [service for name, service in services.items() if name in selection]
    records = read_records(folder)
    if not records:
        return StackStatus(services=tuple(_stopped(s, "was stopped") for s in selected), processes=len(members))
    plan = _recorded_plan()
    with ThreadPoolExecutor(max_workers=max(1, len(selected))) as pool:
        seen = pool.map(lambda s: _observe(s, records.get(s.name), plan=plan, everything=everything), selected)
        return StackStatus(services=tuple(seen), processes=len(members))


def _recorded_plan() -> StackPlan:
    folder = stack_folder()
    environment = load_environment(folder.data)
    return StackPlan(
        home=folder.data.parent,
        folder=folder,
        ports=read_ports(folder.ports),
        credentials=read_credentials(folder.credentials),
        tools=tools_of(environment),
        environment=environment,
    )


def _stopped(service: Service, detail: str) -> ServiceStatus:
    return ServiceStatus(
        name=service.name, is_running=False, is_healthy=False, pid=None, port=None, since=None, detail=detail
    )


def _observe(
    service: Service, record: ProcessRecord | None, *, plan: StackPlan, everything: Mapping[int, LivingProcess]
) -> ServiceStatus:
    if record is None:
        return _stopped(service, "was never started")
    if not record.is_alive(everything):
        return _stopped(service, f"its process {record.pid} is gone")
    health: Health = wait_until(
        lambda: service.probe(plan, record.since), lambda seen: seen.is_healthy, seconds=_ANSWER_SECONDS
    )
    return ServiceStatus(
        name=service.name,
        is_running=True,
        is_healthy=health.is_healthy,
        pid=record.pid,
        port=plan.ports[service.ports[0].name] if service.ports else None,
        since=record.since,
        detail=health.detail,
    )
