"""The metadata in a checkpoint: read and compared with the ledger before Spark uses it, and written as Spark would.

When the `metadata` of a checkpoint is missing, Spark 4.1 silently starts with a new query id, and rereads its source.
Spark runs a batch that it finds planned to exactly its end. So a batch can be planned that no source would plan.

Source: `MicroBatchExecution.populateStartOffsets` of Spark 4.1, and `SparkMicroBatchStream.InitialOffsetStore` of
Iceberg 1.12.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from sluice.checkpoints.checkpoint_layout import BEGUN, METADATA, offsets_of, planned_time
from sluice.errors import CheckpointError
from sluice.ledger.generations import GenerationObservation
from sluice.sources.iceberg_positions import StreamOffset, stream_offset_of
from sluice_spark.session.jvm import hadoop_file, jvm_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_WAY_OUT = "`sluice stream repair` writes back what the tables and the ledger know."


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointState:
    """The metadata in a checkpoint folder.

    query_id: the id in `metadata`; None when the file is missing.
    newest_planned, newest_committed: the newest batch in the offset log and in the commit log; -1 when there is none.
    frozen_conf: the settings that the offset log keeps for the life of the checkpoint; empty before the first batch.
    unfinished_since: when the planned but uncommitted batch was planned; None when there is none.
    watermark_ms: the watermark before the first batch of the next start, in milliseconds since 1970; 0 without one.
    is_begun: whether a run has begun with it; see `BEGUN`.
    """

    query_id: str | None
    newest_planned: int
    newest_committed: int
    frozen_conf: Mapping[str, str] = field(default_factory=dict)
    watermark_ms: int = 0
    unfinished_since: datetime | None = None
    is_begun: bool = False

    @property
    def has_unfinished_batch(self) -> bool:
        """Whether a batch was planned but not committed. The next start runs it again."""
        return self.newest_planned > self.newest_committed

    @property
    def shuffle_partitions(self) -> int | None:
        """The number of partitions of the state; None before the first batch."""
        partitions = self.frozen_conf.get("spark.sql.shuffle.partitions")
        return int(partitions) if partitions is not None else None


def read_checkpoint(spark: SparkSession, location: str) -> CheckpointState:
    """Read the metadata of a checkpoint folder, on any file system that Spark supports.

    Raises
    ------
    CheckpointError: when its `metadata` or its newest offsets cannot be read.
    """
    jvm, (files, folder) = jvm_of(spark), hadoop_file(spark, location)
    metadata = jvm.org.apache.hadoop.fs.Path(folder, METADATA)
    text = _read_text(jvm, files, metadata) if files.exists(metadata) else None
    newest_planned, newest_committed = (_newest(jvm, files, folder, log) for log in ("offsets", "commits"))
    newest = _batch_metadata(jvm, files, folder, newest_planned)
    is_unfinished = newest_planned > newest_committed
    before_next = _batch_metadata(jvm, files, folder, newest_planned - 1) if is_unfinished else newest
    return CheckpointState(
        query_id=_query_id(text, location),
        newest_planned=newest_planned,
        newest_committed=newest_committed,
        frozen_conf=newest.get("conf", {}),
        watermark_ms=int(before_next.get("batchWatermarkMs", 0)),
        unfinished_since=planned_time(newest) if is_unfinished else None,
        is_begun=bool(files.exists(jvm.org.apache.hadoop.fs.Path(folder, BEGUN))),
    )


def has_metadata(spark: SparkSession, location: str) -> bool:
    """Whether a checkpoint has its `metadata`, which the start of a query writes and nothing removes."""
    files, path = hadoop_file(spark, location, METADATA)
    return bool(files.exists(path))


def read_log_text(spark: SparkSession, location: str, log: str, batch: int) -> str:
    """The entry of a batch in the offset log or the commit log.

    Raises
    ------
    CheckpointError: when the log does not contain the batch.
    """
    text = find_log_text(spark, location, f"{log}/{batch}")
    if text is None:
        raise CheckpointError(f"{log}/{batch} of the checkpoint {location} is missing.", next_step=_WAY_OUT)
    return text


def find_log_text(spark: SparkSession, location: str, name: str) -> str | None:
    """The text of a file of a checkpoint; none when there is no such file."""
    files, path = hadoop_file(spark, location, name)
    return _read_text(jvm_of(spark), files, path) if files.exists(path) else None


def log_names(spark: SparkSession, location: str, name: str) -> list[str]:
    """The names of the files in a folder of a checkpoint; none when there is no such folder."""
    files, path = hadoop_file(spark, location, name)
    return [str(one.getPath().getName()) for one in files.listStatus(path)] if files.exists(path) else []


def read_planned_offsets(
    spark: SparkSession, location: str, batches: Iterable[int]
) -> dict[int, tuple[str | None, ...]]:
    """The end offsets of some batches as the offset log holds them, one for each source; none where a source has none.

    Batches that the log does not hold any more, or not yet, are left out.
    """
    jvm, (files, folder) = jvm_of(spark), hadoop_file(spark, location)
    texts = {batch: _offset_log_text(jvm, files, folder, batch) for batch in batches}
    return {batch: offsets_of(text) for batch, text in texts.items() if text is not None}


def require_own_checkpoint(found: CheckpointState, generation: GenerationObservation) -> None:
    """Check that a checkpoint is the one that the ledger has registered.

    Raises
    ------
    CheckpointError: when it is another one, or its `metadata` is missing.
    """
    whose = f"the checkpoint of stream {generation.stream}, generation {generation.generation}, {generation.checkpoint}"
    remedy = f"`sluice stream repair {generation.stream} --dry-run` shows what writes it back."
    if generation.query_id is not None and found.query_id is None:
        raise CheckpointError(
            f"{whose[0].upper()}{whose[1:]}, is registered for query {generation.query_id} and has no metadata.",
            next_step=remedy,
        )
    if generation.query_id is not None and found.query_id != generation.query_id:
        raise CheckpointError(
            f"{whose[0].upper()}{whose[1:]}, is registered for query {generation.query_id}, got {found.query_id}.",
            next_step=remedy,
        )
    if found.query_id is None and found.newest_planned >= 0:
        raise CheckpointError(f"{whose[0].upper()}{whose[1:]}, has batches and no metadata.", next_step=remedy)


def _batch_metadata(jvm: JavaObject, files: JavaObject, folder: JavaObject, batch: int) -> dict[str, Any]:
    """The metadata of a batch in the offset log; empty when the log does not contain the batch."""
    text = _offset_log_text(jvm, files, folder, batch)
    if text is None:
        return {}
    _, _, rest = text.partition("\n")
    try:
        found: dict[str, Any] = json.loads(rest.partition("\n")[0])
    except ValueError as error:
        raise CheckpointError(
            f"The offset log of the checkpoint cannot be read: {folder.toString()}/offsets/{batch} contains "
            f"{rest[:80]!r}.",
            next_step=_WAY_OUT,
        ) from error
    return found


def _offset_log_text(jvm: JavaObject, files: JavaObject, folder: JavaObject, batch: int) -> str | None:
    """The entry of a batch in the offset log; none when the log does not contain the batch.

    Source: Spark 4.1's `OffsetSeqLog`: a version, a line of metadata, and a line for each source.
    """
    path = jvm.org.apache.hadoop.fs.Path(folder, f"offsets/{batch}")
    return _read_text(jvm, files, path) if batch >= 0 and files.exists(path) else None


def _query_id(text: str | None, location: str) -> str | None:
    if text is None:
        return None
    try:
        return str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"The metadata of the checkpoint {location} cannot be read: {text[:80]!r}.", next_step=_WAY_OUT
        ) from error


def _read_text(jvm: JavaObject, files: JavaObject, path: JavaObject) -> str:
    """The text of a file. Hadoop compares a local file with the checksums that lie beside it."""
    stream = files.open(path)
    try:
        return str(jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
    except Py4JJavaError as error:
        if error.java_exception.getClass().getSimpleName() != "ChecksumException":
            raise
        raise CheckpointError(
            f"{path.toString()} of the checkpoint is damaged: it is not what was written, by the checksums beside it.",
            next_step=_WAY_OUT,
        ) from error
    finally:
        stream.close()


def _newest(jvm: JavaObject, files: JavaObject, folder: JavaObject, log: str) -> int:
    path = jvm.org.apache.hadoop.fs.Path(folder, log)
    if not files.exists(path):
        return -1
    names = (status.getPath().getName() for status in files.listStatus(path))
    return max((int(name) for name in names if name.isdigit()), default=-1)


_FIRST = "0"
"""The file that Iceberg's source reads."""

_KEPT = "first"
_UNFINISHED = "first.tmp"


def read_first_offset(spark: SparkSession, location: str, source: int) -> StreamOffset | None:
    """Where the first batch starts in an Iceberg source; none when that is not decided yet.

    Parameters
    ----------
    source: its number.
    """
    return _read_offset(spark, location, source, _FIRST)


def write_first_offsets(spark: SparkSession, location: str, firsts: Mapping[int, StreamOffset]) -> None:
    """Write where the first batch starts in Iceberg's sources, before these decide it.

    Parameters
    ----------
    firsts: by the number of the source.
    """
    for source, offset in firsts.items():
        _write_offset(spark, location, source, _FIRST, offset)


def keep_first_offset(spark: SparkSession, location: str, source: int) -> None:
    """Keep where the first batch starts in an Iceberg source beside the file that Iceberg reads, unless it is kept."""
    first = read_first_offset(spark, location, source)
    if first is None or read_kept_offset(spark, location, source) is not None:
        return
    _write_offset(spark, location, source, _UNFINISHED, first)
    files, unfinished = hadoop_file(spark, location, _offset_file(source, _UNFINISHED))
    files.rename(unfinished, hadoop_file(spark, location, _offset_file(source, _KEPT))[1])


def read_kept_offset(spark: SparkSession, location: str, source: int) -> StreamOffset | None:
    """What `keep_first_offset` kept; none when it kept nothing."""
    return _read_offset(spark, location, source, _KEPT)


def _read_offset(spark: SparkSession, location: str, source: int, name: str) -> StreamOffset | None:
    files, file = hadoop_file(spark, location, _offset_file(source, name))
    if not files.exists(file):
        return None
    stream = files.open(file)
    try:
        return stream_offset_of(str(jvm_of(spark).org.apache.commons.io.IOUtils.toString(stream, "UTF-8")))
    finally:
        stream.close()


def _write_offset(spark: SparkSession, location: str, source: int, name: str, offset: StreamOffset) -> None:
    files, file = hadoop_file(spark, location, _offset_file(source, name))
    stream = files.create(file, True)
    try:
        stream.write(bytearray(offset.text(), "utf-8"))
    finally:
        stream.close()


def _offset_file(source: int, name: str) -> str:
    """A file of a source's first offset, below the folder of the checkpoint."""
    return f"sources/{source}/offsets/{name}"


def plan_first_batch(
    spark: SparkSession,
    location: str,
    ends: Sequence[str | None],
    *,
    is_registered: bool,
    planned_at: datetime,
) -> None:
    """Plan the first batch of a checkpoint, with the settings of the session.

    Parameters
    ----------
    ends: where it ends in each source of the query, as the source writes it; none where it reads nothing.
    is_registered: whether the checkpoint has the id of a query already.

    Raises
    ------
    CheckpointError: when a first batch is planned already.
    """
    jvm = jvm_of(spark)
    streaming = jvm.org.apache.spark.sql.execution.streaming
    if not is_registered:
        _write(spark, f"{location.rstrip('/')}/{METADATA}", json.dumps({"id": str(uuid4())}))
    offsets = [_option(spark, None if end is None else streaming.runtime.SerializedOffset(end)) for end in ends]
    logged = streaming.checkpointing
    batch = logged.OffsetSeqMetadata.apply(_metadata(spark, planned_at))
    planned = logged.OffsetSeq(jvm.PythonUtils.toSeq(offsets), _option(spark, batch))
    if not logged.OffsetSeqLog(spark._jsparkSession, f"{location.rstrip('/')}/offsets").add(0, planned):
        raise CheckpointError(f"The first batch of the checkpoint {location} is planned already.")


def write_log_entry(spark: SparkSession, location: str, log: str, batch: int, entry: str) -> None:
    """Write the entry of a batch into the offset log or the commit log, whole or not at all. One that is there already
    is removed before: a rename onto it does nothing on a local disk, and Spark says nothing then. A crash in between
    leaves the batch unplanned.

    Parameters
    ----------
    log: `offsets` or `commits`. entry: its text, as Spark writes it.
    """
    _write(spark, f"{location.rstrip('/')}/{log}/{batch}", entry)


def mark_as_begun(spark: SparkSession, location: str, query_id: str) -> None:
    """Note in a checkpoint that a run has begun with it; see `BEGUN`."""
    files, path = hadoop_file(spark, location, BEGUN)
    if not files.exists(path):
        _write(spark, f"{location.rstrip('/')}/{BEGUN}", query_id)


def _write(spark: SparkSession, location: str, text: str) -> None:
    jvm = jvm_of(spark)
    file = jvm.org.apache.hadoop.fs.Path(location)
    manager = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    files = manager.create(file.getParent(), spark._jsparkSession.sessionState().newHadoopConf())
    files.mkdirs(file.getParent())
    files.delete(file)
    stream = files.createAtomic(file, False)
    try:
        stream.write(bytearray(text, "utf-8"))
    except Py4JJavaError:
        stream.cancel()
        raise
    stream.close()


def _metadata(spark: SparkSession, planned_at: datetime) -> str:
    """The metadata of a batch with the settings that the checkpoint keeps.

    A starting query copies the number of shuffle partitions into a setting of its own, from which Spark takes it here.
    """
    metadata = jvm_of(spark).org.apache.spark.sql.execution.streaming.checkpointing.OffsetSeqMetadata
    found = metadata.apply(0, round(planned_at.timestamp() * 1000), spark._jsparkSession.conf())
    batch = json.loads(str(found.json()))
    batch["conf"] = {name: spark.conf.get(name) if value is None else value for name, value in batch["conf"].items()}
    return json.dumps(batch)


def _option(spark: SparkSession, value: JavaObject | None) -> JavaObject:
    return jvm_of(spark).scala.Option.apply(value)
