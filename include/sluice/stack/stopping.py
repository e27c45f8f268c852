"""`down`: end a stack, or a part of it: its processes, with all that they have started."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from sluice.errors import StackError
from sluice.processes.deadline import Deadline, wait_until
from sluice.processes.host_processes import LivingProcess, find_process, observe_processes, with_descendants
from sluice.stack.environment import START_MARK
from sluice.stack.folder import StackFolder, exclusive, interruptible, stack_folder
from sluice.stack.services import all_services
from sluice.stack.stack_plan import Service, holder_of, is_free, listened_by
from sluice.stack.stack_records import (
    ProcessRecord,
    read_ports,
    read_records,
    remove_record,
    service_members,
    stack_members,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRule:
    """How a tree of processes is ended.

    Parameters
    ----------
    signal: the signal that its first process is sent.
    patience_seconds: how long the first process may take to end. Then it is killed, and the others are sent SIGTERM.
    """

    signal: signal.Signals = signal.SIGTERM
    patience_seconds: float


_OTHERS = StopRule(patience_seconds=10.0)
"""For drivers and workers: a driver may finish its batch."""


_RELEASE_SECONDS = 5.0
"""How long the kernel may take to free the ports of processes that have ended."""

_POLL_SECONDS = 0.05

TREE_SECONDS = 4.0
"""How long the rest of a tree may take to end once its first process has been given up."""

_LONGEST_SECONDS = 60.0
"""No process can refuse SIGKILL; only one that hangs in the kernel is still there after this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownReport:
    """How many processes a `down` has ended, and which of their ports other programs have taken meanwhile."""

    ended_processes: int
    taken_ports: tuple[str, ...] = ()


def down() -> DownReport:
    """End every process of the stack, and see whether its ports are free.

    Raises
    ------
    StackError: when a process cannot be ended.
    """
    folder = stack_folder()
    if not folder.data.is_dir():  # deleted while the stack ran, or never made: there may still be processes
        return DownReport(ended_processes=end_stack(folder))
    folder.create()
    with interruptible(), exclusive(folder):
        listened = listened_by({process.pid for process in plan_down()})
        ended = end_stack(folder)
        for service in all_services().values():
            forget_service(service, folder)
        shutil.rmtree(folder.scratch, ignore_errors=True)  # what killed drivers have left there
        taken = _taken_ports(listened)
    return DownReport(ended_processes=ended, taken_ports=taken)


def plan_down() -> tuple[LivingProcess, ...]:
    """The processes that `down` would end now, in no particular order."""
    folder = stack_folder()
    members = stack_members(folder, everything=observe_processes(), services=all_services().values())
    return tuple(members.values())


def _taken_ports(listened: Collection[int]) -> tuple[str, ...]:
    """The ports that the stack listened on and that are taken although all its processes have ended, each with who has
    it: another program was quicker than the next `up`, which chooses another port then."""

    def look() -> list[int]:
        return [port for port in sorted(listened) if not is_free(port)]

    taken = wait_until(look, lambda ports: not ports, seconds=_RELEASE_SECONDS)
    return tuple(f"{port} by {holder_of(port)}" for port in taken)


def forget_service(service: Service, folder: StackFolder) -> None:
    """Remove the record of a service that has ended, and the files that it left outside the stack's folder."""
    remove_record(folder, service.name)
    ports = read_ports(folder.ports)
    if all(port.name in ports for port in service.ports):
        for path in service.outside_files(ports):
            path.unlink(missing_ok=True)


def end_stack(folder: StackFolder, *, start: str = "") -> int:
    """End the processes of a stack: first those that use the foundation (Airflow, drivers), then the foundation.

    Parameters
    ----------
    folder: the stack.
    start: end only what the `up` with this id has started; everything when empty.

    Returns
    -------
    How many processes were ended.
    """
    services = all_services()
    records = read_records(folder)

    def members() -> dict[int, LivingProcess]:
        found = stack_members(folder, everything=observe_processes(), services=services.values())
        return found if not start else _started_by(start, found)

    rules = _stop_rules(services, records)
    ended = end_processes(lambda: _users_among(members(), folder=folder), rules=rules, otherwise=_OTHERS)
    ended += end_processes(lambda: members().values(), rules=rules, otherwise=_OTHERS)
    return ended


def users_of_declarations(folder: StackFolder) -> tuple[LivingProcess, ...]:
    """The living processes of a stack that work with its declarations: all but the databases and stores below them."""
    found = stack_members(folder, everything=observe_processes(), services=all_services().values())
    return tuple(_users_among(found, folder=folder))


def _users_among(members: Mapping[int, LivingProcess], *, folder: StackFolder) -> list[LivingProcess]:
    records = read_records(folder)
    foundation = {
        pid
        for service in all_services().values()
        if service.is_foundation
        for pid in service_members(service, records.get(service.name), folder=folder, members=members)
    }
    return [process for process in members.values() if process.pid not in foundation]


def _started_by(start: str, members: Mapping[int, LivingProcess]) -> dict[int, LivingProcess]:
    return with_descendants([process for process in members.values() if process.variable(START_MARK) == start], members)


def _stop_rules(services: Mapping[str, Service], records: Mapping[str, ProcessRecord]) -> dict[int, StopRule]:
    return {record.pid: _stop_rule(services[name]) for name, record in records.items() if name in services}


def _stop_rule(service: Service) -> StopRule:
    return StopRule(signal=service.stop_signal, patience_seconds=service.stop_seconds)


def end_service(service: Service, folder: StackFolder, record: ProcessRecord | None) -> int:
    """End what is left of one service. The drivers that it started continue.

    Parameters
    ----------
    service: the service.
    folder: the stack.
    record: the process that was started for it last.

    Returns
    -------
    How many processes were ended.
    """

    def find() -> Collection[LivingProcess]:
        members = stack_members(folder, everything=observe_processes(), services=(service,))
        return service_members(service, record, folder=folder, members=members).values()

    rule = _stop_rule(service)
    return end_processes(find, rules={record.pid: rule} if record else {}, otherwise=rule)


def decide_signal(rule: StopRule, *, is_root: bool, waited_seconds: float) -> signal.Signals | None:
    """The signal that a process must have been sent by now.

    Parameters
    ----------
    rule: how its tree is ended.
    is_root: whether it is the first process of a tree: none of the processes to end is its parent.
    waited_seconds: since it was seen first.

    Returns
    -------
    None when the process is left to the first process of its tree.
    """
    if is_root:
        return signal.SIGKILL if waited_seconds > rule.patience_seconds else rule.signal
    if waited_seconds > rule.patience_seconds + TREE_SECONDS:
        return signal.SIGKILL
    return signal.SIGTERM if waited_seconds > rule.patience_seconds else None


def end_processes(
    find: Callable[[], Collection[LivingProcess]], *, rules: Mapping[int, StopRule], otherwise: StopRule
) -> int:
    """End the processes that `find` returns, and those that they start meanwhile, until it returns none.

    In each tree the first process is asked first, then all of it, then what is left is killed.

    Parameters
    ----------
    find: looks for the processes to end; called repeatedly.
    rules: by process id, how the tree of that process is ended.
    otherwise: the rule of every other process.

    Returns
    -------
    How many processes were ended.

    Raises
    ------
    StackError: when processes are left that cannot be ended.
    """
    deadline = Deadline.after(_LONGEST_SECONDS)
    first_seen: dict[tuple[int, int], float] = {}
    sent: dict[tuple[int, int], signal.Signals] = {}
    while found := find():
        if deadline.is_over():
            left = ", ".join(f"{process.name} (pid {process.pid})" for process in found)
            raise StackError(
                f"These processes do not end even when killed: {left}.", next_step="Look at them with `ps`."
            )
        now = time.monotonic()
        pids = {process.pid for process in found}
        for process in found:
            number = decide_signal(
                rules.get(process.pid, otherwise),
                is_root=process.parent_pid not in pids,
                waited_seconds=now - first_seen.setdefault(process.key, now),
            )
            if number is not None and sent.get(process.key) is not number:
                sent[process.key] = number
                _send(process, number)
        time.sleep(_POLL_SECONDS)
    return len(first_seen)


def _send(process: LivingProcess, number: signal.Signals) -> None:
    now = find_process(process.pid)
    if now is None or now.key != process.key:
        return
    try:
        os.kill(process.pid, number)
    except ProcessLookupError:  # it ended in the last microseconds
        return
    except PermissionError as error:
        raise StackError(
            f"{process.name} (pid {process.pid}) belongs to the stack, but only the user who owns it can end it.",
            next_step="Run the command as that user.",
        ) from error
