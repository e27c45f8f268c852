"""Stops a batch of files that Spark would read twice.

Spark takes no path of a batch for a pattern, as it should. But when the name of one file has a character of patterns,
it adds all other files of the batch to the plan a second time (`DataSource.checkAndGlobPathIfNecessary`, Spark 4.1),
and their rows would be doubled. No option changes that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import SparkSession

from sluice.errors import DeliveryError
from sluice_spark.session.jvm import jvm_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_FILES = "org.apache.spark.sql.execution.datasources.HadoopFsRelation"


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesReadOnce:
    """Looks at the plan of the batch that the active query of a name is about to run."""

    spark: SparkSession
    query_name: str

    def require(self) -> None:
        """Require that no file stands in the plan twice for one place that reads it.

        Raises
        ------
        DeliveryError: with a file whose name Spark takes for a pattern.
        """
        for paths in self._files_of_batch():
            if paths.distinct().size() < paths.size():
                name = next((str(path) for path in _each(paths) if set("{}[]*?\\").intersection(path.getName())), "")
                raise DeliveryError(
                    f"The batch has the file {name}, whose name has a character of patterns: Spark reads the other "
                    "files of such a batch twice. Nothing of the batch was written.",
                    next_step="Rename it without {, }, [, ], *, ? and backslash. The planned batch still names it: "
                    f"read the files again by `sluice stream refresh {self.query_name}`, or by `sluice stream "
                    f"reset {self.query_name}` if nothing was published yet.",
                )

    def _files_of_batch(self) -> Iterator[JavaObject]:
        """The files of each place in the plan that reads some, as Scala sequences of paths."""
        is_files = jvm_of(self.spark).java.lang.Class.forName(_FILES).isInstance
        query = next(query for query in self.spark.streams.active if query.name == self.query_name)
        leaves = query._jsq.streamingQuery().lastExecution().logical().collectLeaves()
        for leaf in _each(leaves):
            if leaf.getClass().getSimpleName() == "LogicalRelation" and is_files(leaf.relation()):
                yield leaf.relation().location().rootPaths()


def _each(sequence: JavaObject) -> Iterator[JavaObject]:
    return (sequence.apply(index) for index in range(sequence.size()))
