"""Runs batches again on a copied state: those that a restored copy lacks, and one of the newest copy as its rehearsal.

*The replay*, before a run begins. A copy stands where a run stopped, and the tables are further. A repair has left the
batches in `replay`, each to the end that it had. One after another is planned in the checkpoint and run by the query
itself, whose rows go nowhere; the newest one is only planned, and the run that follows runs it, and recognises it. So a
run that is killed anywhere leaves a checkpoint from which the next one continues.

After each, the state has to have as many rows as the ledger knows. Where it has not, the commit is taken back and the
run fails: its code, or what it reads, is not what it was. A batch leaves `replay` once that is known, so one that is
committed and still there was not compared, and its commit is taken back before it is run once more.

What it does not do: it records no batch, and looks at no source beforehand. The ledger has the time of the newest one,
so that its run does not count as stalled. Source: `MicroBatchExecution` of Spark 4.1, which runs a batch that it finds
planned to exactly its end, and continues behind one batch alone.

*The rehearsal*, in a folder of its own beside the running stream:

    the copy in `.rehearsals` ─► its newest commit goes ─► the query runs that batch again ─► its state is compared

What a copy is worth shows when it is needed: whether its files are whole, whether today's code reads its state, and
whether the sources still have what comes behind it, where a restored copy continues. What it does not do: it runs one
batch, and a replay may need a thousand. The state is compared by its number of rows.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from uuid import uuid4

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.listener import StreamingQueryProgress

from sluice.checkpoints.checkpoint_copies import (
    CheckpointCopy,
    CopiedCheckpoint,
    Rehearsal,
    copies_location,
    list_copies,
    record_rehearsal,
    rehearsal_location,
    why_not_rehearsed,
)
from sluice.checkpoints.checkpoint_files import CheckpointFiles, open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import (
    COMMITS,
    METADATA,
    OFFSETS,
    REPLAY,
    hidden_checksum_path,
    replayed_batches,
    replayed_entry,
)
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import (
    CheckpointError,
    CheckpointStorageError,
    DeclarationError,
    LakehouseError,
    SchemaError,
    UsageError,
)
from sluice.failure_reasons import FailureClass, describe_failure
from sluice.ledger.batches import BatchObservation, PublicationKey, find_batch
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.generations import GenerationObservation, find_generation
from sluice.ledger.runs import record_replay
from sluice.positions.restore_copy import put_copy
from sluice.positions.source_reach import LossKind, SourceReach
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.publication.staged_batch import canonical_offsets
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice_spark.delivery.choose_delivery import swept
from sluice_spark.query.stream_plan import StreamPlan, plan_stream
from sluice_spark.run.job import failure_of_error
from sluice_spark.run.stop_request import StopRequest
from sluice_spark.session.checkpoint_metadata import read_checkpoint
from sluice_spark.session.item_sessions import end_copy_of_query
from sluice_spark.session.jvm import first_line

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05


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


_OF_OTHERS = frozenset({FailureClass.TRANSIENT, FailureClass.INFRASTRUCTURE, FailureClass.RESOURCE})
"""What a source, a storage or the machine has done says nothing about the copy."""

_TRIES = 3
"""How often a copy that was replaced meanwhile is left for the newest one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRehearsal:
    """One rehearsal. require: raises when it is to end, as when it was withdrawn."""

    settings: Settings
    ledger: Ledger
    stream: LoadedStream
    open_session: Callable[[], SparkSession]
    stop: StopRequest
    require: Callable[[], None]

    def work(self) -> Rehearsal:
        """Rehearse the newest copy, and keep beside it what came of that.

        Raises
        ------
        UsageError: when the stream has no copy, or no batch of it can be run again.
        CheckpointError: when the storage does not answer, or copies are replaced faster than they are rehearsed.
        WithdrawnError: when it was withdrawn meanwhile; nothing is kept of it.
        """
        if because := why_not_rehearsed(self.stream.declaration):
            raise UsageError(
                f"No copy of {self.stream.name} can be rehearsed: {because}, so a batch that is run again has another "
                "state.",
                next_step="`sluice stream show` lists its copies; a repair takes one that stands where the tables do.",
            )
        for _ in range(_TRIES):
            store, copy, generation = self._newest()
            began = time.monotonic()
            shadow = self._opened(rehearsal_location(generation.checkpoint))
            try:
                problem = self._problem(generation, CopiedCheckpoint(store, copy), shadow)
            finally:
                _empty(shadow)
            if copy in list_copies(store):
                rehearsal = Rehearsal(
                    rehearsed_at=database_time(self.ledger),
                    batch=copy.committed,
                    seconds=round(time.monotonic() - began, 3),
                    problem=problem,
                )
                record_rehearsal(store, copy, rehearsal)
                return rehearsal
            _log.info("the copy %s was replaced while it was rehearsed", copy.clock)
        raise CheckpointError(
            f"The copies of {self.stream.name} are replaced faster than one can be rehearsed.",
            next_step="Copy it less often: `state.backup_every` in its declaration.",
        )

    def _newest(self) -> tuple[CheckpointFiles, CheckpointCopy, GenerationObservation]:
        generation = find_generation(self.ledger, self.stream.name)
        store = None if generation is None else self._opened(copies_location(generation.checkpoint))
        copy = None if store is None else next(iter(list_copies(store)), None)
        if generation is None or store is None or copy is None or copy.committed < 0:
            raise UsageError(
                f"Stream {self.stream.name} has no copy of a state with a batch.",
                next_step="A stream with state is copied at each stop in order, and while it runs where its "
                "declaration says `state.backup_every`.",
            )
        return store, copy, generation

    def _opened(self, location: str) -> CheckpointFiles:
        return open_checkpoint_files(location, self.settings.object_store)

    def _problem(self, generation: GenerationObservation, copied: CopiedCheckpoint, shadow: CheckpointFiles) -> str:
        """Put the copy back and run its newest batch again. Returns why the copy does not do; empty where it does."""
        number = copied.copy.committed
        key = PublicationKey(stream=self.stream.name, generation=generation.generation, batch=number)
        batch = find_batch(self.ledger, key)
        if batch is None or batch.state_rows is None:
            return f"the ledger does not know how many rows the state had behind batch {key}, so nothing is compared"
        try:
            _put_before_commit(shadow, copied)
            if lost := self._lost(batch, shadow):
                return lost
            is_run = self._replay(generation).run_again(number)
        except CheckpointStorageError:  # it says nothing about the copy
            raise
        except (CheckpointError, DeclarationError, SchemaError) as error:
            return error.message.rstrip(".")
        except StreamingQueryException as error:
            self.require()
            failure = failure_of_error(error)
            if failure.failure_class in _OF_OTHERS:
                raise
            _log.warning("the copy %s of %s does not do: %s", copied.copy.clock, self.stream.name, first_line(error))
            return describe_failure(failure)
        self.require()
        return "" if is_run else f"batch {key} was planned on the copy and did not run"

    def _lost(self, batch: BatchObservation, shadow: CheckpointFiles) -> str:
        """What an input does not have any more of what comes behind a batch, where a restored copy continues: the batch
        itself may be read all the same. Empty where nothing shows that; what does not answer the query asks again."""
        with suppress(LakehouseError):
            reach = SourceReach(
                catalog=open_catalog(self.settings),
                declaration=self.stream.declaration,
                settings=self.settings,
                checkpoint=shadow.location,
            )
            for loss in reach.losses(canonical_offsets(batch.end_offsets)):
                if loss.kind in (LossKind.REMOVED, LossKind.MOVED):
                    lost = FailureClass.SOURCE_DATA_LOST
                    return f"{lost}: of what its input {loss.input} has behind batch {batch.key}, {loss.sentence}"
        return ""

    def _replay(self, generation: GenerationObservation) -> StateReplay:
        spark, checkpoint = self.open_session(), rehearsal_location(generation.checkpoint)
        self.require()
        return StateReplay(
            spark=spark,
            settings=self.settings,
            ledger=self.ledger,
            plan=plan_stream(spark, self.stream, self.settings, checkpoint=checkpoint),
            run_id="",
            generation=generation.generation,
            checkpoint=checkpoint,
            require=self.require,
            stop=self.stop,
        )


def _put_before_commit(shadow: CheckpointFiles, copied: CopiedCheckpoint) -> None:
    """Put a copy into a folder as if its newest batch were planned and not committed yet. The query has an id of its
    own there: Spark stops the running one when another with its id begins, in whichever session."""
    _empty(shadow)
    put_copy(shadow, copied.store, copied.copy, unnoticed)
    shadow.write_text(METADATA, json.dumps({"id": str(uuid4())}))
    shadow.remove(f"{COMMITS}/{copied.copy.committed}")
    if copied.copy.planned > copied.copy.committed:
        shadow.remove(f"{OFFSETS}/{copied.copy.planned}")


def _empty(folder: CheckpointFiles) -> None:
    for seen in folder.list_files():
        folder.remove(seen.path)
    folder.remove_folders()
