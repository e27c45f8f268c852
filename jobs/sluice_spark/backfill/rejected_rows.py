"""Adds the rows that a backfill rejects to the quarantine of its stream, without those that are there already."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from pyiceberg.catalog import Catalog
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sluice.backfill.backfill_plan import BackfillObservation
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.errors import IntervalChangedError
from sluice.ledger.backfill_attempts import BackfillAttemptKey
from sluice.processes.deadline import wait_until
from sluice.publication.marks import TargetState, load_target_state
from sluice.publication.replace_interval import append_staged
from sluice.publication.staged_batch import StagedOutput
from sluice.stored_keys import OUTPUT, ROWS
from sluice_spark.backfill.table_rows import stage_rows
from sluice_spark.session.columns import REJECTED_ROW, quoted_table

_QUARANTINE_SECONDS = 30.0
"""How long the rejected rows of a batch are waited for: the stream publishes them right after the batch itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRows:
    """The rejected rows of one attempt. staging: the name of their staging table."""

    attempt: BackfillAttemptKey
    key: str
    seen: BackfillObservation
    staging: str

    @property
    def _output(self) -> StagedOutput:
        stream = self.attempt.stream
        return StagedOutput(stream=stream, output=QUARANTINE_OUTPUT, target=f"quarantine.{stream}")

    def publish(self, spark: SparkSession, catalog: Catalog, rejected: DataFrame, *, catalog_name: str) -> int:
        """Add the rows that the quarantine does not hold yet, counting repeated ones. Returns how many were added.

        Raises
        ------
        IntervalChangedError: when the stream has published the batch of the plan in its target and not yet in its
            quarantine, or another backfill has added rejected rows meanwhile; a later attempt sees them.
        DeliveryError, LakehouseError: when they cannot be staged or published.
        """
        head = self._settled_head(catalog)
        reader = spark.read if head is None else spark.read.option("versionAsOf", str(head))
        table = reader.table(quoted_table(catalog_name, self._output.target))
        known = table.where(fn.col("stream") == self.attempt.stream).select(*REJECTED_ROW.names)
        new = rejected.select(*REJECTED_ROW.names).exceptAll(known).persist()
        try:
            added = new.count()
            if added:
                self._append(catalog, new, head=head)
        finally:
            new.unpersist()
        return added

    def _settled_head(self, catalog: Catalog) -> int | None:
        position = self.seen.position
        wanted = (position.generation, position.batch) if position is not None else (0, 0)

        def has_batch(state: TargetState) -> bool:
            if state.mark is None:
                return True
            quarantined = state.position(self._output)
            return (quarantined.generation, quarantined.batch) >= wanted

        state = wait_until(
            lambda: load_target_state(catalog, self._output), has_batch, seconds=_QUARANTINE_SECONDS, poll_seconds=0.5
        )
        if not has_batch(state):
            raise IntervalChangedError(
                f"{self._output.target} does not have the rejected rows of batch {wanted[1]} of {self.attempt.stream} "
                "yet."
            )
        head = state.table.current_snapshot()
        return head.snapshot_id if head is not None else None

    def _append(self, catalog: Catalog, new: DataFrame, *, head: int | None) -> None:
        position = self.seen.position
        rows = new.select(
            fn.lit(self.attempt.stream).alias("stream"),
            fn.lit(position.generation if position is not None else 1).alias("generation"),
            fn.lit(position.batch if position is not None else 0).cast("long").alias("batch"),
            *REJECTED_ROW.names,
            fn.lit(datetime.now(UTC)).alias("refused_at"),
        )
        staged = stage_rows(catalog, [rows], staging=self.staging, target=self._output.target, key=self.key)
        append_staged(
            catalog,
            self._output,
            key=self.key,
            head=head,
            staging=staged.table,
            staged=staged.files,
            summary={OUTPUT: QUARANTINE_OUTPUT, ROWS: str(staged.rows)},
        )
