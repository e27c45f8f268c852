"""Which of the machine's processes belong to a stack, and to which of its services. Pure: it judges what was seen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sluice.stack.folder import StackFolder
from sluice.stack.process_records import ProcessRecord
from sluice.stack.service_processes import SeenProcess, own_lineage, with_descendants
from sluice.stack.step import Service


def stack_members(
    folder: StackFolder, *, everything: Mapping[int, SeenProcess], services: Iterable[Service]
) -> dict[int, SeenProcess]:
    """Every process of a stack: marked in its environment, started by one that is, or a stray child of a service.

    Parameters
    ----------
    folder: the stack.
    everything: the machine's processes.
    services: the services whose stray children are looked for.
    """
    strays = [(service.stray_name, str(folder.data / service.name)) for service in services if service.stray_name]
    roots = [
        process
        for process in everything.values()
        if process.stack == str(folder.data) or (process.name, process.working_folder) in strays
    ]
    members = with_descendants(roots, everything)
    return {pid: process for pid, process in members.items() if pid not in own_lineage(everything)}


def service_members(
    service: Service, record: ProcessRecord | None, *, folder: StackFolder, members: Mapping[int, SeenProcess]
) -> dict[int, SeenProcess]:
    """The processes of one service, also when its first process has ended: its session, their children, its strays.

    A driver that the service has started detached lives in a session of its own: it is no part of the service and
    outlives it.

    Parameters
    ----------
    service: the service.
    record: what was started for it last.
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
