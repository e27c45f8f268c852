"""Restarts the drivers that an older Sluice has started, a bounded number at a time: what an upgrade needs.

A driver keeps its code for as long as it lives, so after an upgrade the old one may run for weeks. Restarting all at
once would leave every stream behind for the time of its start, on hosts that start all JVMs in the same minute.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import UsageError
from sluice.ledger.run_values import RunObservation, version_numbers
from sluice.processes.deadline import Deadline
from sluice.processes.worker_threads import run_each
from sluice.supervision.stream_commands import restart_stream
from sluice.supervision.supervisor import SupervisionResult, Supervisor

_A_VERSION = re.compile(r"\d+(\.\d+)*")

_WITHIN = timedelta(days=1)
"""How long all of them may take together: each waits for the end of a batch."""


def started_before(
    version: str, declared: Iterable[LoadedStream], newest: Iterable[RunObservation]
) -> tuple[LoadedStream, ...]:
    """The continuous streams whose live run was started by an older version, by name. Pure.

    Parameters
    ----------
    version: the first version that is not older. newest: the newest run of each stream.

    Raises
    ------
    UsageError: when that is no version.
    """
    if _A_VERSION.fullmatch(version) is None:
        raise UsageError(f"{version} is no version; write it as numbers with dots, for example 0.3.0.")
    runs = {run.stream: run for run in newest}
    return tuple(
        stream
        for stream in sorted(declared, key=lambda one: one.name)
        if stream.declaration.mode == "continuous"
        and (run := runs.get(stream.name)) is not None
        and run.is_live
        and version_numbers(run.version) < version_numbers(version)
    )


def restart_each(
    supervisor: Supervisor,
    streams: Sequence[LoadedStream],
    *,
    at_once: int,
    requested_by: str,
    on_look: Callable[[str], None],
) -> Mapping[str, SupervisionResult | Exception | None]:
    """Restart streams, at most so many at a time. Returns the result of each, or what it raised: one that fails keeps
    no other one from being restarted."""
    steps = {
        stream.name: partial(restart_stream, supervisor, stream, requested_by=requested_by, on_look=on_look)
        for stream in streams
    }
    return run_each(steps, at_once=at_once, deadline=Deadline.after(_WITHIN.total_seconds()))
