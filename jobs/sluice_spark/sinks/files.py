"""Files below a folder of a connection as an output.

*Guarantee*: each batch once, in its own folder: `<path>/stream=…/generation=…/batch=…`. The folder is complete when it
contains `_SUCCESS`, which is written last. A batch that runs again finds the marker and writes nothing; without the
marker, the folder is overwritten. A reader that must never see part of a batch reads only folders with the marker.

Why not Spark's own file sink: decision 0017.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import DataType, StructType

from sluice.declarations.output_declaration import FilesOutput
from sluice.ledger.batches import PublicationKey
from sluice.settings import FilesConnection
from sluice_spark.session.columns import CSV_TEXT, JSON_TEXT
from sluice_spark.session.jvm import hadoop_file
from sluice_spark.session.valid_text import require_valid_text

_log = logging.getLogger(__name__)

MARKER = "_SUCCESS"
"""Hadoop's marker of a committed folder. Readers of folders ignore files that begin with `_`."""

_TEXT_OPTIONS = {"json": JSON_TEXT, "csv": CSV_TEXT}

_LOOKED_FOR = 32
"""How many folders are looked for. All of a generation may be a million."""

_NESTED = ("struct", "array", "map", "variant", "binary")


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSink:
    """Writes each batch into a folder of its own."""

    output: str
    declared: FilesOutput
    connection: FilesConnection

    @property
    def place(self) -> str:
        """The destination of the rows, for messages."""
        return f"files of {self.declared.connection}, folder {self.declared.path}"

    @property
    def replaces(self) -> bool:
        """Whether a batch replaces what is there."""
        return False

    def write(self, rows: DataFrame, *, key: PublicationKey) -> None:
        """Write the folder of the batch, unless it is complete."""
        folder = self.folder(key)
        if self.holds(rows.sparkSession, key):
            _log.info("batch %d: %s is already complete", key.batch, folder)
            return
        rows = require_valid_text(rows, place=f"output {self.output}, {self.place},")
        writer = rows.write.format(self.declared.format).mode("overwrite")
        # Hadoop's default, set because without the marker a folder would never count as complete.
        writer = writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "true")
        writer.options(**_TEXT_OPTIONS.get(self.declared.format, {})).save(folder)

    def holds(self, spark: SparkSession, key: PublicationKey) -> bool:
        """Whether the folder of a batch is complete."""
        files, path = hadoop_file(spark, f"{self.folder(key)}/{MARKER}")
        return bool(files.exists(path))

    def newest_behind(self, spark: SparkSession, key: PublicationKey) -> int | None:
        """A batch behind another one whose folder is complete; none among the next ones. One without rows has none."""
        others = (replace(key, batch=key.batch + more) for more in range(1, _LOOKED_FOR + 1))
        return next((one.batch for one in others if self.holds(spark, one)), None)

    def folder(self, key: PublicationKey) -> str:
        """The folder of a batch. Readers take the parts of its path for partition columns."""
        root = "/".join((self.connection.root.rstrip("/"), self.declared.path.strip("/")))
        return f"{root}/stream={key.stream}/generation={key.generation}/batch={key.batch}"

    def mismatches(self, rows: StructType) -> Iterator[str]:
        """Report why rows of this schema cannot be written."""
        if twice := sorted({name for name in rows.names if rows.names.count(name) > 1}):
            yield f"column {', '.join(twice)} occurs twice"
        for field in rows:
            if problem := _type_problem(self.declared.format, field.dataType):
                yield f"column {field.name} is {field.dataType.simpleString()}, {problem}"


def _type_problem(format_name: str, kind: DataType) -> str:
    if format_name == "csv" and kind.typeName() in _NESTED:
        return "which csv cannot contain"
    return ""
