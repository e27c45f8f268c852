"""Plans the batches of a shadow, one for each run, so that none reads what the stream has not read.

A batch that is planned in the offset log is run as it is (`session/checkpoint_metadata.py`). Where a watermark has
moved behind the last rows, a batch without rows follows, as Spark itself plans one: the stream has closed these windows
too.

The log of the files that the stream has read is copied into the checkpoint of the shadow; its entries are the batches.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

from sluice.checkpoints.checkpoint_files import CheckpointFiles, open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import NO_OFFSET, next_batch_metadata
from sluice.declarations.source_declarations import FilesSource, IcebergSource, KafkaSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import CheckpointError
from sluice.ledger.connection import Ledger, database_time
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.refresh.shadow_bound import Offset, ShadowBound, input_of, next_ends, require_not_beyond, tables_of
from sluice.settings import KafkaConnection, Settings
from sluice.sources.iceberg_positions import BEGINNING, StreamOffset, history_of, stream_offset_of
from sluice.tables.declared_tables import require_table
from sluice_spark.query.stream_plan import StreamPlan
from sluice_spark.run.query_run import has_processor
from sluice_spark.run.run_start import RunStart
from sluice_spark.session.checkpoint_metadata import plan_first_batch, read_first_offset

_FILE_LOG = re.compile(r"sources/(\d+)/(\d+(?:\.compact)?)")


@dataclass(slots=True, kw_only=True)
class ShadowBatches:
    """The batches of a shadow up to a bound. is_complete: whether all of them have been run.

    reached: called with `PLANNED` when a batch is planned.
    """

    declaration: StreamDeclaration
    ledger: Ledger
    settings: Settings
    bound: ShadowBound
    reached: Reached = unnoticed
    is_complete: bool = False

    @property
    def until(self) -> Mapping[str, StreamOffset]:
        """How far the tables may be read, by input."""
        empty = StreamOffset(snapshot_id=BEGINNING, position=0, scan_all_files=False)
        return {
            name: stream_offset_of(self.bound.of(name)) or empty
            for name, declared in self.declaration.inputs.items()
            if declared.is_stream and isinstance(declared.declared_source.source, IcebergSource)
        }

    def plan_next(self, spark: SparkSession, start: RunStart) -> bool:
        """Plan the next batch, unless one is planned already. Returns whether there is one.

        Raises
        ------
        UnpublishableError: when a table does not have the snapshot any more up to which the stream has read, or the
            shadow has read further.
        CheckpointError, LakehouseError: when a checkpoint or a source cannot be read.
        """
        checkpoint, sources, places = start.checkpoint, start.plan.sources, start.plan.places
        files = open_checkpoint_files(checkpoint.location, self.settings.object_store)
        self._copy_file_logs(files, sources)
        if checkpoint.state.has_unfinished_batch:
            return True
        newest = _Entry.of(files, checkpoint.state.newest_committed)
        at = self._at(spark, checkpoint.location, newest, start.plan)
        histories = {
            name: tuple(history_of(require_table(start.catalog, name))) for name in tables_of(sources, self.declaration)
        }
        ends = next_ends(places, at, self.bound, self.declaration, histories=histories)
        moves_windows = newest is not None and start.plan.is_stateful and not has_processor(start.plan)
        if ends is None and not (moves_windows and newest is not None and newest.moved_watermark):
            if newest is not None:
                require_not_beyond(places, newest.offsets, self.bound, self.declaration, histories=histories)
            self.is_complete = True
            return False
        if ends is not None and not start.plan.is_stateful:  # state may want a batch without rows
            self.is_complete = next_ends(places, ends, self.bound, self.declaration, histories=histories) is None
        lines = [None if end is None else json.dumps(end, separators=(",", ":")) for end in ends or at]
        if newest is None:
            is_registered = checkpoint.state.query_id is not None
            now = database_time(self.ledger)
            plan_first_batch(spark, checkpoint.location, lines, is_registered=is_registered, planned_at=now)
        else:
            files.write_text(f"offsets/{newest.batch + 1}", newest.followed_by(lines, now=database_time(self.ledger)))
        self.reached(CrashPoint.PLANNED)
        return True

    def _at(
        self, spark: SparkSession, location: str, newest: _Entry | None, plan: StreamPlan
    ) -> tuple[Offset | None, ...]:
        """Where the next batch starts at each place of a source; none where nothing can be read yet."""
        ends = newest.offsets if newest is not None else ()
        known = (*ends, *(None for _ in plan.places[len(ends) :]))
        return tuple(
            self._first(spark, location, plan.sources.index(name), name) if end is None else end
            for name, end in zip(plan.places, known, strict=True)
        )

    def _first(self, spark: SparkSession, location: str, number: int, name: str) -> Offset | None:
        match self.declaration.inputs[input_of(name)].declared_source.source:
            case IcebergSource():
                first = read_first_offset(spark, location, number)
                return None if first is None else json.loads(first.text())
            case KafkaSource() as source:
                from sluice.sources.kafka_topics import KafkaTopics  # a native library, which other inputs do not load
                from sluice.sources.topic_starts import beginning_of

                return beginning_of(KafkaTopics(self.settings.connection(source.connection, KafkaConnection)), source)
        return None

    def _copy_file_logs(self, files: CheckpointFiles, sources: Sequence[str]) -> None:
        read = {number: name for number, name in enumerate(sources) if self._is_of_files(name)}
        if not read:
            return
        stream = open_checkpoint_files(self.bound.checkpoint, self.settings.object_store)
        numbers = {name: number for number, name in enumerate(self.bound.sources)}
        known = {seen.path for seen in files.list_files("sources")}
        for seen in stream.list_files("sources"):
            if (found := _FILE_LOG.fullmatch(seen.path)) is None:
                continue
            for number, name in read.items():
                path = f"sources/{number}/{found[2]}"
                if numbers.get(name, numbers.get(input_of(name))) == int(found[1]) and path not in known:
                    text = stream.read_text(seen.path)
                    if text is not None:  # removed meanwhile: a compacted one has its entries
                        files.write_text(path, text)

    def _is_of_files(self, name: str) -> bool:
        return isinstance(self.declaration.inputs[input_of(name)].declared_source.source, FilesSource)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """A committed batch as the logs of a checkpoint have it."""

    batch: int
    version: str
    metadata: str
    offsets: tuple[Offset | None, ...]
    commit: str

    @classmethod
    def of(cls, files: CheckpointFiles, batch: int) -> _Entry | None:
        """The entry of a batch; none before the first one.

        Raises
        ------
        CheckpointError: when it is gone, or the storage does not answer.
        """
        if batch < 0:
            return None
        planned, commit = files.read_text(f"offsets/{batch}"), files.read_text(f"commits/{batch}")
        if planned is None or commit is None:
            raise CheckpointError(f"The checkpoint {files.location} lacks the entries of its batch {batch}.")
        version, metadata, *lines = planned.splitlines()
        offsets = tuple(None if line == NO_OFFSET else json.loads(line) for line in lines)
        return cls(batch=batch, version=version, metadata=metadata, offsets=offsets, commit=commit)

    @property
    def moved_watermark(self) -> bool:
        """Whether the watermark behind the batch is later than the one that the batch used."""
        return bool(_watermark(next_batch_metadata(self.metadata, self.commit)) > _watermark(self.metadata))

    def followed_by(self, lines: Sequence[str | None], *, now: datetime) -> str:
        """The entry of the next batch."""
        content: dict[str, Any] = json.loads(next_batch_metadata(self.metadata, self.commit))
        content["batchTimestampMs"] = round(now.timestamp() * 1000)
        metadata = json.dumps(content, separators=(",", ":"))
        return "\n".join([self.version, metadata, *(line or NO_OFFSET for line in lines)])


def _watermark(metadata: str) -> int:
    return int(json.loads(metadata).get("batchWatermarkMs", 0))
