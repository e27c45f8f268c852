"""Observes a stream: its desired state, its newest run, and whether that run's driver is alive."""

from __future__ import annotations

from sluice.launching.driver_records import read_exit_note
from sluice.launching.launcher_port import Launcher
from sluice.ledger.connection import Ledger
from sluice.ledger.run_values import DriverExit, RunObservation
from sluice.ledger.stream_records import StreamRecords, read_stream
from sluice.processes.process_identity import ProcessState
from sluice.supervision.stream_observation import StreamObservation


def observe_stream(ledger: Ledger, launcher: Launcher, stream: str) -> StreamObservation:
    """Observe a stream. Nothing is changed."""
    return observation_of(read_stream(ledger, stream), launcher)


def observation_of(known: StreamRecords, launcher: Launcher) -> StreamObservation:
    """Observe a stream whose records were read a moment ago: only its driver is looked at."""
    run, batch = known.newest_run, known.newest_batch
    is_live = run is not None and run.is_live
    process = _observe_driver(launcher, run) if run is not None and is_live else None
    is_current = batch is not None and batch.key.generation == known.generation
    return StreamObservation(
        stream=known.stream,
        desired=known.desired,
        newest_run=run,
        process=process,
        left_exit=_left_exit(launcher, run, process) if run is not None and is_live else None,
        newest_batch=batch,
        current_batch=batch if is_current else None,
        lease=known.lease,
        fingerprint=known.fingerprint if is_current else {},
        observed_at=known.observed_at,
    )


def _left_exit(launcher: Launcher, run: RunObservation, process: ProcessState | None) -> DriverExit | None:
    """The exit that the driver's parent noted, or that the cluster reports for an application that is gone."""
    noted = read_exit_note(run.log_file) if run.log_file is not None else None
    if noted is not None or run.process is None or process is not ProcessState.GONE:
        return noted
    return launcher.exit_of(run.process)


def _observe_driver(launcher: Launcher, run: RunObservation) -> ProcessState | None:
    if run.process is not None:
        return launcher.observe(run.process)
    return None if run.heartbeat_at is None else ProcessState.UNKNOWN  # it reported, so it runs somewhere
