"""Whether a process of this host listens on a port; the ledger names both, and is no proof that they go together."""

from __future__ import annotations

import psutil


def listens_on(pid: int, port: int) -> bool:
    """Whether a process, or one that it has started, listens on a TCP port; false when this process may not see it."""
    try:
        top = psutil.Process(pid)
        processes = [top, *top.children(recursive=True)]
    except psutil.Error:
        return False
    return any(port in _ports_of(process) for process in processes)


def _ports_of(process: psutil.Process) -> frozenset[int]:
    try:
        sockets = process.net_connections(kind="tcp")
    except psutil.Error:
        return frozenset()
    return frozenset(one.laddr.port for one in sockets if one.status == psutil.CONN_LISTEN)
