"""Gives every batch one state of a table in a database, however often and wherever the batch reads it.

A database answers each query with what it holds at that moment. A batch asks once for each place in its plan, again for
each task that is repeated, and once more when it runs again after a crash. So a batch copies the table while it is
planned, into the folder of the checkpoint, which every executor reaches, and reads the copy alone. The copy has the
number of the batch and stays until a later one is made: a batch that runs again reads it again. An input that may be
reused for a while (`refresh`) is read in the same way, wherever its table is: later batches read the same copy.

Spark asks a relation of files for its list of files whenever it plans a batch, and here the list answers. Its interface
is `org.apache.spark.sql.execution.datasources.FileIndex` of Spark 4.1.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicDataFrame

from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.source_declarations import FilesSource, JdbcSource
from sluice_spark.query.logical_plan import analyzed_plan
from sluice_spark.query.stream_inputs import list_files_again
from sluice_spark.session.jvm import hadoop_file, jvm_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_COMPLETE = "_SUCCESS"
"""The file that Spark writes last."""

_NAME = re.compile(r"(?P<batch>-?\d+)-(?P<millis>\d+)-[0-9a-f]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class MadeCopy:
    """One copy. batch: the one that made it. made_at: before the table was read."""

    batch: int
    made_at: datetime
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyFolder:
    """The copies of one input, each in a folder `<batch>-<milliseconds since 1970>-<content>` of its own.

    content: the digest of the declared source and of the columns that it has. A copy of anything else is not read: a
        column that it lacks would be null.
    """

    spark: SparkSession
    location: str
    content: str

    def complete(self) -> list[MadeCopy]:
        """The copies of this content that were written to their end."""
        same = [one for one in self._all() if one.path.endswith(f"-{self.content}")]
        return [one for one in same if self._files().exists(self._path(f"{one.path}/{_COMPLETE}"))]

    def write(self, rows: DataFrame, batch: int, *, now: datetime) -> MadeCopy:
        """Copy rows."""
        path = f"{self.location}/{batch}-{round(now.timestamp() * 1000)}-{self.content}"
        rows.write.mode("overwrite").parquet(path)
        return MadeCopy(batch=batch, made_at=now, path=path)

    def keep_only(self, kept: MadeCopy) -> None:
        """Remove all other copies, complete or not: their batches are over."""
        for other in self._all():
            if other.path != kept.path:
                self._files().delete(self._path(other.path), True)

    def files_of(self, copy: MadeCopy, like: DataFrame) -> JavaObject:
        """Spark's list of the files of a copy."""
        read = self.spark.read.schema(like.schema).parquet(copy.path)
        return analyzed_plan(read).relation().location()

    def _all(self) -> list[MadeCopy]:
        folder = self._path(self.location)
        found = self._files().listStatus(folder) if self._files().exists(folder) else []
        return [copy for name in (str(one.getPath().getName()) for one in found) if (copy := self._of_name(name))]

    def _of_name(self, name: str) -> MadeCopy | None:
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        made_at = datetime.fromtimestamp(int(found["millis"]) / 1000, UTC)
        return MadeCopy(batch=int(found["batch"]), made_at=made_at, path=f"{self.location}/{name}")

    def _path(self, location: str) -> JavaObject:
        return jvm_of(self.spark).org.apache.hadoop.fs.Path(location)

    def _files(self) -> JavaObject:
        return hadoop_file(self.spark, self.location)[0]


_log = logging.getLogger(__name__)

STATIC = "static"
"""The folder of a checkpoint with a folder of copies for each input. Spark does not know it."""

_BATCH = "streaming.sql.batchId"
"""The local property of Spark's threads that names the batch they work for."""

_NO_BATCH = -1
"""Stands for what a transformation reads itself while it describes its result."""


@dataclass(slots=True)
class StaticCopies:
    """What became of the copies of a run. failure: the error of the one that could not be made; Spark passes only its
    text on."""

    failure: Exception | None = None


class Clock(Protocol):
    """The times by which a copy is judged."""

    def began_at(self, batch: int) -> datetime:
        """When a planned batch began."""

    def now(self) -> datetime:
        """The time now."""


def is_copied(declared: InputDeclaration) -> bool:
    """Whether batches read an input from copies: a table of a database, and whatever may be reused for a while."""
    is_of_database = isinstance(declared.declared_source.source, JdbcSource)
    return not declared.is_stream and (is_of_database or declared.refresh is not None)


def with_copies(
    declared: Mapping[str, InputDeclaration],
    opened: Mapping[str, DataFrame],
    copies: StaticCopies,
    *,
    checkpoint: str,
    clock: Clock | None = None,
) -> dict[str, DataFrame]:
    """The inputs, of which some are read from copies.

    Parameters
    ----------
    declared: the inputs by name. opened: the decoded rows of each. copies: gets the error when one cannot be made.
    checkpoint: the folder of the stream's checkpoint. clock: that of the checkpoint, unless it is given.
    """
    rows = dict(opened)
    for name, one in declared.items():
        if is_copied(one):
            spark = opened[name].sparkSession
            copy = StaticCopy(
                opened[name],
                CopyFolder(
                    spark=spark,
                    location=f"{checkpoint.rstrip('/')}/{STATIC}/{name}",
                    content=_digest(one.declared_source.model_dump_json(), opened[name].schema.json()),
                ),
                reused_for=one.refresh,
                is_listed=isinstance(one.declared_source.source, FilesSource),
                clock=clock or CheckpointClock(spark=spark, checkpoint=checkpoint),
            )
            rows[name] = CopiedFiles(copy, copies).rows()
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointClock:
    """The clock of a checkpoint: Spark keeps the time at which a batch began with its offsets, so that a batch that
    runs again has the same one."""

    spark: SparkSession
    checkpoint: str

    def began_at(self, batch: int) -> datetime:
        """The time of a planned batch."""
        files, file = hadoop_file(self.spark, self.checkpoint, f"offsets/{batch}")
        stream = files.open(file)
        try:
            text = str(jvm_of(self.spark).org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
        finally:
            stream.close()
        return datetime.fromtimestamp(json.loads(text.splitlines()[1])["batchTimestampMs"] / 1000, UTC)

    def now(self) -> datetime:
        """The time now."""
        return datetime.now(UTC)


class StaticCopy:
    """The copy that a batch reads of one input.

    Parameters
    ----------
    original: the rows as they are read at their source. folder: where the copies are.
    reused_for: how old a copy may be when a batch begins; none to make one for every batch.
    is_listed: whether the table is a folder, whose files Spark has listed.
    """

    def __init__(
        self,
        original: DataFrame,
        folder: CopyFolder,
        *,
        reused_for: timedelta | None,
        is_listed: bool,
        clock: Clock,
    ) -> None:
        self.original, self.folder = original, folder
        self._reused_for, self._is_listed, self._clock = reused_for, is_listed, clock
        self._lock = threading.Lock()
        self._batch: int | None = None
        self._files: JavaObject | None = None

    def files_for(self, batch: int | None) -> JavaObject:
        """The files that a batch reads. Several threads of Spark may ask for them at once.

        Parameters
        ----------
        batch: its number; none outside of a batch.
        """
        with self._lock:
            if self._files is None or (batch is not None and batch != self._batch):
                self._files = self._files_of(_NO_BATCH if batch is None else batch)
                self._batch = batch
            return self._files

    def _files_of(self, batch: int) -> JavaObject:
        serving = [one for one in self.folder.complete() if self._serves(one, batch)]
        copy = max(serving, key=lambda one: (one.batch, one.made_at)) if serving else self._made_for(batch)
        if batch != _NO_BATCH:
            self.folder.keep_only(copy)
        return self.folder.files_of(copy, self.original)

    def _made_for(self, batch: int) -> MadeCopy:
        if self._is_listed:
            list_files_again(self.original)
        copy = self.folder.write(self.original, batch, now=self._clock.now())
        _log.info("batch %d reads a new copy of a table: %s", batch, copy.path)
        return copy

    def _serves(self, copy: MadeCopy, batch: int) -> bool:
        """Whether a batch reads this copy: its own, or an earlier one that was new enough when the batch began. A batch
        that runs again finds the same answer."""
        if copy.batch == batch or not _NO_BATCH < copy.batch < batch:
            return copy.batch == batch != _NO_BATCH
        return self._reused_for is not None and self._clock.began_at(batch) - copy.made_at < self._reused_for


class CopiedFiles:
    """The list of files of a relation that Spark asks for in each batch; its methods have the names of the interface.

    Parameters
    ----------
    copy: what is read. copies: gets the error when it cannot be made.
    """

    def __init__(self, copy: StaticCopy, copies: StaticCopies) -> None:
        self._copy, self._copies = copy, copies
        self._spark = copy.original.sparkSession
        jvm = jvm_of(self._spark)
        self._no_columns = jvm.org.apache.spark.sql.types.StructType()
        self._roots = jvm.PythonUtils.toSeq([jvm.org.apache.hadoop.fs.Path(copy.folder.location)])
        self._nothing = jvm.scala.Option.apply(None)

    def rows(self) -> DataFrame:
        """The rows of whichever copy is current when a batch is planned."""
        jvm = jvm_of(self._spark)
        sources = jvm.org.apache.spark.sql.execution.datasources
        session = self._spark._jsparkSession
        relation = sources.HadoopFsRelation(
            self,
            self._no_columns,
            self._copy.original._jdf.schema().asNullable(),
            self._nothing,
            sources.parquet.ParquetFileFormat(),
            jvm.PythonUtils.toScalaMap({}),
            session,
        )
        return ClassicDataFrame(session.baseRelationToDataFrame(relation), self._spark)

    def _current(self) -> JavaObject:
        context = self._spark._jsc.sc()
        batch = context.getLocalProperty(_BATCH)
        try:
            return self._copy.files_for(None if batch is None else int(batch))
        except Exception as error:
            self._copies.failure = error
            raise

    def rootPaths(self) -> JavaObject:  # noqa: N802  # the interface's name
        """Where the copies are."""
        return self._roots

    def partitionSchema(self) -> JavaObject:  # noqa: N802
        """No column comes from the name of a folder."""
        return self._no_columns

    def listFiles(self, partition_filters: JavaObject, data_filters: JavaObject) -> JavaObject:  # noqa: N802
        """The files of the current copy."""
        return self._current().listFiles(partition_filters, data_filters)

    def inputFiles(self) -> JavaObject:  # noqa: N802
        """Their paths."""
        return self._current().inputFiles()

    def sizeInBytes(self) -> int:  # noqa: N802
        """Their size, by which Spark chooses how to join."""
        return int(self._current().sizeInBytes())

    def refresh(self) -> None:
        """A batch keeps the copy that it began with."""

    def metadataOpsTimeNs(self) -> JavaObject:  # noqa: N802
        """How long the listing took: not measured."""
        return self._nothing

    def hashCode(self) -> int:  # noqa: N802
        """Equal lists have equal numbers."""
        return hash(self._copy.folder.location) % 2**31

    def equals(self, other: Any) -> bool:
        """Whether another list is of the same copies."""
        return other is self or str(other) == self.toString()

    def toString(self) -> str:  # noqa: N802
        """As a plan shows it."""
        return f"copies in {self._copy.folder.location}"

    class Java:
        """What py4j implements with these methods."""

        implements = ("org.apache.spark.sql.execution.datasources.FileIndex",)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
