"""Observes the checkpoint that a run continues from, and binds it to the planned query."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from pyspark.sql import SparkSession

from sluice.checkpoints.compatibility import fingerprint_of, refused_changes, ways_out
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import CheckpointError
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import (
    GenerationObservation,
    current_generation,
    record_begun,
    record_fingerprint,
    record_query_id,
)
from sluice.publication.chain import CheckpointPosition
from sluice_spark.query.state_operators import keyed_operators, processor_keys, state_meaning
from sluice_spark.query.stream_plan import StreamPlan
from sluice_spark.session.checkpoint_metadata import (
    CheckpointState,
    mark_as_begun,
    read_checkpoint,
    require_own_checkpoint,
)
from sluice_spark.session.state_settings import take_up_state

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCheckpoint:
    """The generation that a run continues, and what its checkpoint holds.

    state: what was found in the folder before the query started.
    """

    ledger: Ledger
    stream: LoadedStream
    generation: GenerationObservation
    state: CheckpointState

    @property
    def location(self) -> str:
        """The folder."""
        return self.generation.checkpoint

    @property
    def position(self) -> CheckpointPosition:
        """How far it goes, without the offsets of its batches."""
        return CheckpointPosition(
            generation=self.generation.generation,
            newest_planned=self.state.newest_planned,
            newest_committed=self.state.newest_committed,
        )

    def bind(self, plan: StreamPlan) -> None:
        """Bind the checkpoint to the plan at its first start, and compare them at every later one.

        Raises
        ------
        CheckpointError: when the checkpoint cannot follow a change of the declaration.
        """
        wanted = fingerprint_of(
            self.stream.declaration,
            sources=plan.sources,
            state_operators=keyed_operators(plan.rows),
            state_meaning=state_meaning(plan.rows),
            processor_keys=processor_keys(plan.rows),
        )
        bound = record_fingerprint(
            self.ledger,
            self.generation.stream,
            self.generation.generation,
            wanted,
            is_empty=self.state.newest_planned < 0,
        ).fingerprint
        if refused := refused_changes(bound, wanted):
            raise CheckpointError(
                f"The checkpoint of stream {self.generation.stream}, generation {self.generation.generation}, cannot "
                f"follow: {'; '.join(refused)}.",
                next_step=ways_out(self.generation.stream),
            )

    def begin(self) -> None:
        """Record that a run begins, before its query delivers anything."""
        if self.generation.begun_at is None:
            record_begun(self.ledger, self.generation.stream, self.generation.generation)

    def register_query(self, spark: SparkSession, query_id: str) -> None:
        """Record the id of the query that has started, and note in the checkpoint that it has.

        Raises
        ------
        CheckpointError: when it is not that of the checkpoint, which was replaced or lost since it was read.
        """
        record_query_id(self.ledger, self.generation.stream, self.generation.generation, query_id)
        mark_as_begun(spark, self.location, query_id)


def observe_checkpoint(
    spark: SparkSession, ledger: Ledger, stream: LoadedStream, *, run_id: str, checkpoints_root: str
) -> RunCheckpoint:
    """Read the checkpoint of the current generation, and set the session to the state that it keeps.

    Raises
    ------
    CheckpointError: when the checkpoint is not the one that the ledger has registered, or cannot be read.
    """
    generation = current_generation(ledger, stream.name, checkpoints_root=checkpoints_root)
    _log.info(
        "stream %s, run %s, generation %d, checkpoint %s",
        stream.name,
        run_id,
        generation.generation,
        generation.checkpoint,
    )
    found = read_checkpoint(spark, generation.checkpoint)
    require_own_checkpoint(found, generation)
    take_up_state(spark, stream, found)
    return RunCheckpoint(ledger=ledger, stream=stream, generation=generation, state=found)
