"""Observes streams: what the ledger has of them, read as far as it is judged, and whether their drivers are alive."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import timedelta

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.launching.driver_records import read_exit_note
from sluice.launching.launcher_port import Launcher
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import DriverExit, RunObservation
from sluice.ledger.stream_records import StreamRecords, read_streams
from sluice.processes.process_identity import ProcessState
from sluice.supervision.restart_policy import runs_that_count


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamObservation(StreamRecords):
    """The records of a stream, and what was seen of the driver of its newest run.

    process: whether it is alive; unset when the run has ended or has no process yet.
    left_exit: how it ended, when its parent could not record that in the ledger and left a note.
    """

    process: ProcessState | None = None
    left_exit: DriverExit | None = None


def read_to_judge(
    ledger: Ledger, declared: Iterable[LoadedStream], *, others: Iterable[str] = (), with_progress: bool = False
) -> Mapping[str, StreamRecords]:
    """Read what the ledger has of streams, with as many runs as a judgement of each needs.

    Parameters
    ----------
    others: streams that are read beside them and are not declared.
    with_progress: see `read_streams`.
    """
    by_name = {wanted.name: wanted for wanted in declared}

    def count(newest: RunObservation) -> int:
        wanted = by_name.get(newest.stream)
        return 0 if wanted is None else runs_that_count(wanted, newest)

    names = list(dict.fromkeys((*by_name, *others)))
    return read_streams(ledger, names, runs_that_count=count, with_progress=with_progress) if names else {}


def observe(known: StreamRecords, launcher: Launcher, *, heard_within: timedelta = timedelta(0)) -> StreamObservation:
    """Observe a stream whose records were read a moment ago: only its driver is looked at.

    Parameters
    ----------
    heard_within: a driver that was heard so lately is not looked at and counts as alive. A look takes a millisecond,
        too long for a page of 200 streams; who acts looks at every driver.
    """
    run, process, left = known.newest_run, None, None
    if run is not None and run.is_live:
        age = known.heartbeat_age
        if age is not None and age < heard_within:
            process = ProcessState.ALIVE
        else:
            process = _observe_driver(launcher, run)
            left = _left_exit(launcher, run, process)
    records = {each.name: getattr(known, each.name) for each in fields(StreamRecords)}
    return StreamObservation(**records, process=process, left_exit=left)


def _observe_driver(launcher: Launcher, run: RunObservation) -> ProcessState | None:
    if run.process is not None:
        return launcher.observe(run.process)
    return None if run.heartbeat_at is None else ProcessState.UNKNOWN  # it reported, so it runs somewhere


def _left_exit(launcher: Launcher, run: RunObservation, process: ProcessState | None) -> DriverExit | None:
    """The exit that the driver's parent noted, or that the cluster reports for an application that is gone."""
    noted = read_exit_note(run.log_file) if run.log_file is not None else None
    if noted is not None or run.process is None or process is not ProcessState.GONE:
        return noted
    return launcher.exit_of(run.process)
