"""Files below a folder of a connection as an output.

*Promise*: each batch once, in a folder of its own: `<path>/stream=…/generation=…/batch=…`. The folder is complete when
it holds `_SUCCESS`, which is written last. A batch that runs again finds the marker and writes nothing; without it the
folder is begun anew. A reader that must never see a part of a batch reads folders that hold the marker.

Why not Spark's own file sink: decision 0017.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StructType

from sluice.declarations.output_declaration import FilesOutput
from sluice.ledger.records.stream_batch import PublicationKey
from sluice.settings import FilesConnection
from sluice_spark.session.jvm import jvm_of

_log = logging.getLogger(__name__)

MARKER = "_SUCCESS"
"""Hadoop's own word for a folder whose job is committed; readers of folders leave out what begins with `_`."""

_NESTED = ("struct", "array", "map", "variant", "binary")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSink:
    """A folder for each batch."""

    output: str
    declared: FilesOutput
    connection: FilesConnection

    @property
    def place(self) -> str:
        """Where the rows go, for a person."""
        return f"files of {self.declared.connection}, folder {self.declared.path}"

    def misfits(self, rows: StructType) -> list[str]:
        """What keeps rows of this schema from being written."""
        return list(self._misfits(rows))

    def write(self, rows: DataFrame, *, key: PublicationKey) -> None:
        """Write the batch's folder, unless it is complete."""
        folder = self.folder(key)
        if _exists(rows, f"{folder}/{MARKER}"):
            _log.info("batch %d: %s holds it already", key.batch, folder)
            return
        writer = rows.write.format(self.declared.format).mode("overwrite")
        # Hadoop's own setting, said again: without the marker a folder would never count as complete.
        writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "true")
        writer.option("header", "true").option("ignoreNullFields", "false").save(folder)

    def folder(self, key: PublicationKey) -> str:
        """The folder of a batch. Its parts have the form that readers take for columns."""
        root = "/".join((self.connection.root.rstrip("/"), self.declared.path.strip("/")))
        return f"{root}/stream={key.stream}/generation={key.generation}/batch={key.batch}"

    def _misfits(self, schema: StructType) -> Iterator[str]:
        if twice := sorted({name for name in schema.names if schema.names.count(name) > 1}):
            yield f"column {', '.join(twice)} comes twice"
        for field in schema:
            if problem := _type_problem(self.declared.format, field.dataType):
                yield f"column {field.name} is {field.dataType.simpleString()}, {problem}"


def _type_problem(format_name: str, kind: DataType) -> str:
    if format_name == "csv" and kind.typeName() in _NESTED:
        return "which csv cannot hold"
    return ""


def _exists(rows: DataFrame, uri: str) -> bool:
    spark = rows.sparkSession
    path = jvm_of(spark).org.apache.hadoop.fs.Path(uri)
    return bool(path.getFileSystem(spark._jsparkSession.sessionState().newHadoopConf()).exists(path))
