"""An observation of a stream at one moment: its desired state, its newest run, and that run's process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from sluice.ledger.batches import BatchObservation
from sluice.ledger.desired_states import DesiredStateObservation
from sluice.ledger.leases import LeaseObservation
from sluice.ledger.run_values import DriverExit, RunObservation
from sluice.processes.process_identity import ProcessState


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamObservation:
    """A stream as it was observed.

    observed_at: the database's time, the reference of every age.
    process: whether the driver of the newest run is alive; unset when the run has ended or has no process yet.
    newest_batch: the newest of the stream; right after a reset it is one of the previous generation.
    current_batch: the newest of the current generation, at whose end the stream stands; unset before its first.
    lease: the lease of the stream; unset before its first run.
    fingerprint: what its checkpoint is bound to (`sluice.checkpoints.compatibility`); empty before its first batch.
    left_exit: how the newest run's driver ended, when its parent could not record that in the ledger and left a note.
    """

    stream: str
    observed_at: datetime
    desired: DesiredStateObservation
    newest_run: RunObservation | None = None
    process: ProcessState | None = None
    left_exit: DriverExit | None = None
    newest_batch: BatchObservation | None = None
    current_batch: BatchObservation | None = None
    lease: LeaseObservation | None = None
    fingerprint: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def is_lease_over(self) -> bool:
        """Whether the newest run's lease has expired, so that it may be given to another run."""
        lease, run = self.lease, self.newest_run
        return (
            lease is not None
            and run is not None
            and lease.run_id == run.run_id
            and not lease.is_held(at=self.observed_at)
        )

    @property
    def heartbeat_age(self) -> timedelta | None:
        """How long ago the newest run's driver reported; unset before its first heartbeat."""
        if self.newest_run is None or self.newest_run.heartbeat_at is None:
            return None
        return self.observed_at - self.newest_run.heartbeat_at

    @property
    def batch_age(self) -> timedelta | None:
        """How long ago the newest batch was recorded; unset before the first."""
        if self.newest_batch is None or self.newest_batch.recorded_at is None:
            return None
        return self.observed_at - self.newest_batch.recorded_at
