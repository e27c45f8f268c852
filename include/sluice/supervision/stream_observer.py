"""Observes a stream: its desired state, its newest run, and whether that run's driver is alive."""

from __future__ import annotations

from sluice.launching.driver_records import read_exit_note
from sluice.launching.launcher_port import Launcher
from sluice.ledger.batches import newest_batch
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.desired_states import find_desired_state
from sluice.ledger.generations import find_generation
from sluice.ledger.leases import find_lease
from sluice.ledger.records.run import DriverExit, RunObservation
from sluice.ledger.runs import newest_run
from sluice.processes.process_identity import ProcessState
from sluice.supervision.stream_observation import StreamObservation


def observe_stream(ledger: Ledger, launcher: Launcher, stream: str) -> StreamObservation:
    """Observe a stream. Nothing is changed.

    Raises
    ------
    LedgerError: when the ledger cannot be reached.
    """
    run = newest_run(ledger, stream)
    is_live = run is not None and run.is_live
    generation = find_generation(ledger, stream)
    process = _observe_driver(launcher, run) if run is not None and is_live else None
    batch = newest_batch(ledger, stream)
    is_standing = generation is not None and batch is not None and batch.key.generation == generation.generation
    return StreamObservation(
        stream=stream,
        desired=find_desired_state(ledger, stream),
        newest_run=run,
        process=process,
        left_exit=_left_exit(launcher, run, process) if run is not None and is_live else None,
        newest_batch=batch,
        standing_batch=batch if is_standing else None,
        lease=find_lease(ledger, stream),
        fingerprint=generation.fingerprint if generation is not None and is_standing else {},
        observed_at=database_time(ledger),
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
