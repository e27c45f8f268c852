"""Writes the first batch of a new checkpoint, as Spark itself would plan it.

Spark runs a batch that it finds planned to exactly its end. So a batch can be planned that no source would plan.

Source: `MicroBatchExecution.populateStartOffsets` of Spark 4.1, and `SparkMicroBatchStream.InitialOffsetStore` of
Iceberg 1.12.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from sluice.checkpoints.checkpoint_layout import BEGUN, METADATA
from sluice.errors import CheckpointError
from sluice.sources.iceberg_positions import StreamOffset, stream_offset_of
from sluice_spark.session.jvm import jvm_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

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
    files, folder = _offsets_of(spark, location, source)
    files.rename(_path(spark, folder, _UNFINISHED), _path(spark, folder, _KEPT))


def read_kept_offset(spark: SparkSession, location: str, source: int) -> StreamOffset | None:
    """What `keep_first_offset` kept; none when it kept nothing."""
    return _read_offset(spark, location, source, _KEPT)


def _read_offset(spark: SparkSession, location: str, source: int, name: str) -> StreamOffset | None:
    files, folder = _offsets_of(spark, location, source)
    file = _path(spark, folder, name)
    if not files.exists(file):
        return None
    stream = files.open(file)
    try:
        return stream_offset_of(str(jvm_of(spark).org.apache.commons.io.IOUtils.toString(stream, "UTF-8")))
    finally:
        stream.close()


def _write_offset(spark: SparkSession, location: str, source: int, name: str, offset: StreamOffset) -> None:
    files, folder = _offsets_of(spark, location, source)
    stream = files.create(_path(spark, folder, name), True)
    try:
        stream.write(bytearray(offset.text(), "utf-8"))
    finally:
        stream.close()


def _offsets_of(spark: SparkSession, location: str, source: int) -> tuple[JavaObject, JavaObject]:
    """The file system and the folder of a source's first offset."""
    folder = jvm_of(spark).org.apache.hadoop.fs.Path(location, f"sources/{source}/offsets")
    return folder.getFileSystem(_hadoop_conf(spark)), folder


def _path(spark: SparkSession, folder: JavaObject, name: str) -> JavaObject:
    return jvm_of(spark).org.apache.hadoop.fs.Path(folder, name)


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
    path = jvm_of(spark).org.apache.hadoop.fs.Path(location, BEGUN)
    if not path.getFileSystem(_hadoop_conf(spark)).exists(path):
        _write(spark, f"{location.rstrip('/')}/{BEGUN}", query_id)


def _write(spark: SparkSession, location: str, text: str) -> None:
    jvm = jvm_of(spark)
    file = jvm.org.apache.hadoop.fs.Path(location)
    manager = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
    files = manager.create(file.getParent(), _hadoop_conf(spark))
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


def _hadoop_conf(spark: SparkSession) -> JavaObject:
    return spark._jsparkSession.sessionState().newHadoopConf()


def _option(spark: SparkSession, value: JavaObject | None) -> JavaObject:
    return jvm_of(spark).scala.Option.apply(value)
