"""Runs the batches again that a restored copy of the state lacks, before a run begins. Nothing of them is published.

Purpose: a copy stands where a run stopped, and the tables are further. How it works: a repair has left the batches in
`replay`, each to the end that it had. One after another is planned in the checkpoint and run by the query itself, whose
rows go nowhere; the newest one is only planned, and the run that follows runs it, and recognises it. So a run that is
killed anywhere leaves a checkpoint from which the next one continues.

After each, the state has to have as many rows as the ledger knows. Where it has not, the commit is taken back and the
run fails: its code, or what it reads, is not what it was. A batch leaves `replay` once that is known, so one that is
committed and still there was not compared, and its commit is taken back before it is run once more.

What it does not do: it records no batch, and looks at no source beforehand. The ledger has the time of the newest one,
so that its run does not count as stalled. Source: `MicroBatchExecution` of Spark 4.1, which runs a batch that it finds
planned to exactly its end, and continues behind one batch alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from sluice.checkpoints.checkpoint_files import CheckpointFiles, open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import COMMITS, OFFSETS, hidden_checksum_path
from sluice.checkpoints.replayed_batches import REPLAY, replayed_batches, replayed_entry
from sluice.errors import CheckpointError
from sluice.ledger.batches import PublicationKey, find_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.runs import record_replay
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.settings import Settings
from sluice_spark.delivery.choose_delivery import swept
from sluice_spark.query.stream_plan import StreamPlan
from sluice_spark.run.stop_request import StopRequest
from sluice_spark.session.checkpoint_metadata import read_checkpoint
from sluice_spark.session.item_sessions import end_copy_of_query

_LOOK_SECONDS = 0.05

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateReplay:
    """The batches that the state of a checkpoint has to be taken through. run_id: of the run that writes it.
    require: raises when another run may have it."""

    spark: SparkSession
    settings: Settings
    ledger: Ledger
    plan: StreamPlan
    run_id: str
    generation: int
    checkpoint: str
    require: Callable[[], None]
    stop: StopRequest
    reached: Reached = unnoticed

    @property
    def is_pending(self) -> bool:
        """Whether a repair has left batches to run again.

        Raises
        ------
        CheckpointError: when the storage does not answer: a run without them would continue from an old state.
        """
        try:
            files = self._files()
        except CheckpointError as error:  # a file system that only Spark reads: no repair has written there
            _log.debug("no batches are looked for that a repair may have left: %s", error)
            return False
        return bool(replayed_batches(files.list_files(REPLAY)))

    def catch_up(self) -> bool:
        """Run every batch but the newest one, and plan that. Returns whether the run may begin: one that is asked to
        stop leaves the rest to the next one.

        Raises
        ------
        CheckpointError: when a batch is missing, or leads to another state, or the storage does not answer.
        LeaseLostError: when another run may have the checkpoint.
        Exception: what made the query fail.
        """
        files = self._files()
        pending = replayed_batches(files.list_files(REPLAY))
        for number in pending:
            if self.stop.reason is not None:
                return False
            self.require()
            self._take_back(files, number)
            self._plan(files, number)
            self.reached(CrashPoint.PLANNED)
            if number < pending[-1] and not self.run_again(number):
                return False
            record_replay(self.ledger, self.run_id)
            files.remove(f"{REPLAY}/{number}")
            self.reached(CrashPoint.FILE_CHANGED)
        return True

    def _files(self) -> CheckpointFiles:
        return open_checkpoint_files(self.checkpoint, self.settings.object_store)

    def _take_back(self, files: CheckpointFiles, number: int) -> None:
        """Take the commit of a batch back, if there is one: Spark runs the batch again on the state before it."""
        for path in (hidden_checksum_path(f"{COMMITS}/{number}"), f"{COMMITS}/{number}"):
            files.remove(path)

    def _plan(self, files: CheckpointFiles, number: int) -> None:
        """Plan a batch behind the newest committed one, unless it is planned already."""
        state = read_checkpoint(self.spark, self.checkpoint)
        if number <= state.newest_planned:
            return
        paths = (f"{OFFSETS}/{number - 1}", f"{COMMITS}/{number - 1}", f"{REPLAY}/{number}")
        before, commit, entry = map(files.read_text, paths)
        if number != state.newest_committed + 1 or before is None or commit is None or entry is None:
            raise CheckpointError(
                f"The checkpoint {self.checkpoint} stands behind batch {state.newest_committed}, and the next batch to "
                f"be run again for its state is {number}: what lies between them is gone.",
                next_step=f"`sluice stream repair {self.plan.declaration.stream}` begins with the copy again.",
            )
        files.remove(hidden_checksum_path(f"{OFFSETS}/{number}"))
        files.write_text(f"{OFFSETS}/{number}", replayed_entry(entry, before=before, commit=commit))

    def run_again(self, number: int) -> bool:
        """Run a planned batch for its state. Returns whether it is committed, and its state compared.

        Raises
        ------
        CheckpointError: when it leads to another state.
        LeaseLostError: when another run may have the checkpoint.
        Exception: what made the query fail.
        """
        _log.info("batch %d of %s is run again for its state alone", number, self.plan.declaration.stream)
        writer = self.plan.writer(checkpoint=self.checkpoint).foreachBatch(swept(_compute))
        query = writer.trigger(once=True).start()
        try:
            while query.isActive and not self.stop.wait(_LOOK_SECONDS):
                self.require()
        finally:
            query.stop()
            end_copy_of_query(self.spark, query)
        error = query.exception()
        if error is not None and self.stop.reason is None:
            raise error
        if number > self._committed():
            return False
        self.reached(CrashPoint.COMMITTED)
        progress = query.lastProgress
        if (progress is None or progress.batchId != number) and self.stop.reason is not None:
            return False  # it was stopped before Spark said what the state has
        self._require_same_rows(number, progress)
        return True

    def _require_same_rows(self, number: int, progress: StreamingQueryProgress | None) -> None:
        stream = self.plan.declaration.stream
        key = PublicationKey(stream=stream, generation=self.generation, batch=number)
        batch = find_batch(self.ledger, key)
        if batch is None or batch.state_rows is None or progress is None or progress.batchId != number:
            return
        rows = sum(operator.numRowsTotal for operator in progress.stateOperators)
        if rows == batch.state_rows:
            return
        self._take_back(self._files(), number)
        raise CheckpointError(
            f"Batch {key} was run again for its state, which has {rows} rows behind it now and had {batch.state_rows} "
            "when the batch was first run: its code, or what it reads, is not what it was.",
            next_step=f"Bring the files of the declaration back as they were, and start again; or "
            f"`sluice stream reset {stream} --dry-run` shows what reading the inputs again repeats.",
        )

    def _committed(self) -> int:
        return read_checkpoint(self.spark, self.checkpoint).newest_committed


def _compute(rows: DataFrame, _: int) -> None:
    """Compute the rows of a batch, which moves its state, and keep none of them."""
    rows.write.format("noop").mode("overwrite").save()
