"""What a way of delivery knows of its run, and the gate before each batch. Built once for a run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from sluice.ledger.batches import PublicationKey
from sluice.ledger.connection import Ledger
from sluice.publication.crash_points import Reached
from sluice.settings import Settings
from sluice.sources.skipped_input_watch import SkippedInputWatch
from sluice.supervision.held_lease import HeldLease
from sluice_spark.delivery.batch_recording import Recording
from sluice_spark.session.checkpoint_metadata import CheckpointState


class TurnedAwayError(Exception):
    """A batch came to a closed gate. Spark has planned the batch and runs the same batch again at the next start."""


class BatchGate:
    """Stops a run between two batches: every batch passes the gate before it starts, and none passes a closed one."""

    def __init__(self) -> None:
        self._closed = threading.Event()
        self.turned_away = threading.Event()

    def close(self) -> None:
        """Let no further batch start."""
        self._closed.set()

    def enter(self) -> None:
        """Start a batch.

        Raises
        ------
        TurnedAwayError: when the gate is closed.
        """
        if self._closed.is_set():
            self.turned_away.set()
            raise TurnedAwayError("the run is stopping")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveringRun:
    """The run that delivers.

    token: its fencing token, which every publication carries.
    """

    stream: str
    generation: int
    run_id: str
    token: int

    def key(self, batch: int) -> PublicationKey:
        """The key of one of its batches."""
        return PublicationKey(stream=self.stream, generation=self.generation, batch=batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunControls:
    """What decides whether a batch may begin and become visible.

    lease: is asked before each publication. skipped_input: looks at the sources before each batch.
    on_failure: asks the run to stop, because a publication outside the query failed.
    gate: every batch that Spark hands over passes it.
    """

    lease: HeldLease
    skipped_input: SkippedInputWatch
    on_failure: Callable[[], None]
    gate: BatchGate = field(default_factory=BatchGate)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryContext:
    """What a way of delivery uses of its run.

    checkpoint: its folder. found: what lay in it before the query started.
    recording: takes what becomes known of each batch. reached: is called at each crash point.
    """

    run: DeliveringRun
    checkpoint: str
    found: CheckpointState
    controls: RunControls
    recording: Recording
    settings: Settings
    ledger: Ledger
    reached: Reached
