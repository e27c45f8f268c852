"""The folder in a checkpoint with the copies of one static input."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession

from sluice_spark.query.logical_plan import analyzed_plan
from sluice_spark.session.jvm import jvm_of

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
        return self._path(self.location).getFileSystem(hadoop_conf(self.spark))


def hadoop_conf(spark: SparkSession) -> JavaObject:
    """The settings with which Spark opens file systems."""
    return spark._jsparkSession.sessionState().newHadoopConf()
