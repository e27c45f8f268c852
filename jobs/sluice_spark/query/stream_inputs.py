"""The inputs of a stream: read, decoded, with their watermarks, counted where Spark's own count is wrong, and kept up
to date where they are static.

Spark plans every batch again, and so reads tables again. But it lists the files of a folder only once, when the stream
starts, and that is repeated here. A batch that runs meanwhile keeps what it was planned with. Static inputs that may be
reused for a while are read from copies (`static_copies`).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyiceberg.schema import Schema
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.source_declarations import FilesSource, IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.ledger.batches import MOST_REJECTED_FILES
from sluice.record_values.block_facts import BlockFacts, WrittenAs, facts_of_texts
from sluice.settings import Settings
from sluice.sources.source_identities import SourceFields, fields_of
from sluice_spark.query.logical_plan import analyzed_plan, leaves_of, python_list
from sluice_spark.session.jvm import jvm_of
from sluice_spark.sources import read_input, with_watermark
from sluice_spark.sources.input_decoding import (
    FACTS_METRIC,
    FILE_HASH,
    GOOD_FILES,
    REJECTED_FILES,
    REJECTED_METRIC,
    decode,
)

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_log = logging.getLogger(__name__)

WATERMARK_METRIC = "sluice.watermark."
"""The prefix of the metrics above the watermarks of inputs."""

_NEW_SOURCE = "StreamingRelationV2"
"""What reads a source of the newer kind, in the words of an analyzed plan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedInputs:
    """The inputs as the transformation gets them.

    rows: by name, decoded and with their watermarks.
    metrics: the metric of the rejected records of each input that is decoded.
    rejected: those records themselves, by input; a batch reads its source again for them.
    """

    rows: Mapping[str, DataFrame]
    metrics: tuple[str, ...]
    rejected: Mapping[str, DataFrame]


def read_inputs(
    spark: SparkSession, stream: LoadedStream, settings: Settings, *, checkpoint: str | None
) -> dict[str, DataFrame]:
    """What arrives through each input, as its source returns it.

    Raises
    ------
    SettingsError: when a connection is missing.
    """
    return {
        name: read_input(spark, declared, settings, checkpoint=checkpoint)
        for name, declared in stream.declaration.inputs.items()
    }


def planned_fields(stream: StreamDeclaration, arriving: Mapping[str, DataFrame]) -> dict[str, SourceFields]:
    """The fields of the Iceberg tables that are read as they are at each batch, by table, as the DataFrames read them.

    Parameters
    ----------
    arriving: by input, before anything is applied.
    """
    found: dict[str, SourceFields] = {}
    for name, rows in arriving.items():
        source = stream.inputs[name].declared_source.source
        if isinstance(source, IcebergSource) and not source.is_fixed:
            (leaf,) = leaves_of(analyzed_plan(rows))
            schema = leaf.table().table().schema()
            parser = jvm_of(rows.sparkSession).org.apache.iceberg.SchemaParser
            found[source.table] = fields_of(Schema.model_validate_json(str(parser.toJson(schema))))
    return found


def open_inputs(
    stream: LoadedStream, arriving: Mapping[str, DataFrame], settings: Settings, *, are_counted: bool = False
) -> OpenedInputs:
    """Decode the values of the inputs and set their watermarks.

    Parameters
    ----------
    are_counted: whether each stream has an observed metric that counts its rows.
    """
    declared = stream.declaration.inputs
    decoded = {
        name: decode(
            rows,
            declared[name],
            folder=stream.folder,
            settings=settings,
            observed_as=name,
            quarantines=stream.declaration.quarantine,
            is_counted=are_counted,
        )
        for name, rows in arriving.items()
    }
    return OpenedInputs(
        rows={name: _followed(one.rows, declared[name], name) for name, one in decoded.items()},
        metrics=tuple(one.metric for one in decoded.values() if one.metric is not None),
        rejected={name: one.rejected for name, one in decoded.items() if one.rejected is not None},
    )


def _followed(rows: DataFrame, declared: InputDeclaration, name: str) -> DataFrame:
    """The rows with their watermark, which each of them moves, whatever becomes of it.

    Spark pushes a filter, or a join with a static table that drops rows, below a watermark: what it drops would not
    move the watermark, and which rows are late would depend on the plan. Below a metric it pushes nothing.
    Source: `PushPredicateThroughNonJoin.canPushThrough` of Spark 4.1.
    """
    followed = with_watermark(rows, declared)
    if declared.watermark is None or not rows.isStreaming:
        return followed
    return followed.observe(f"{WATERMARK_METRIC}{name}", fn.count(fn.lit(1)).alias("rows"))


def cannot_be_counted_by_spark(inputs: Iterable[DataFrame]) -> bool:
    """Whether an input is of the older kind of sources, so that no plan lets `are_counted_by_spark` be true."""
    leaves = (leaf for rows in inputs if rows.isStreaming for leaf in leaves_of(analyzed_plan(rows)))
    return any(leaf.nodeName() != _NEW_SOURCE for leaf in leaves)


def are_counted_by_spark(outputs: Iterable[DataFrame], inputs: Iterable[DataFrame]) -> bool:
    """Whether Spark's own count of a batch's rows is right. It adds up the rows of every reading of a source, and does
    not know sources of the older kind whose plan has more leaves than it looks for.

    Source: `ProgressReporter.extractSourceToNumInputRows` of Spark 4.1.
    """
    sources = [_reading(leaf) for rows in inputs if rows.isStreaming for leaf in leaves_of(analyzed_plan(rows))]
    read = [leaf for rows in outputs for leaf in leaves_of(analyzed_plan(rows)) if leaf.isStreaming()]
    are_new = all(leaf.nodeName() == _NEW_SOURCE for leaf in read)
    return are_new and sorted(sources) == sorted(_reading(leaf) for leaf in read)


def undeclared_fields(progress: Mapping[str, Any]) -> dict[str, Mapping[str, int]]:
    """How often each field was sent that no column takes, by input. progress: Spark's report of a batch."""
    return {name: facts.undeclared for name, facts in _facts(progress).items() if facts.undeclared}


def written_as(progress: Mapping[str, Any]) -> dict[str, WrittenAs]:
    """What the values of a batch were written as, by input. progress: Spark's report of the batch."""
    return {name: facts.written_as for name, facts in _facts(progress).items() if facts.written_as}


def _facts(progress: Mapping[str, Any]) -> dict[str, BlockFacts]:
    return {
        name.removeprefix(REJECTED_METRIC).removeprefix(FACTS_METRIC): facts_of_texts(metric["facts"])
        for name, metric in progress.get("observedMetrics", {}).items()
        if name.startswith((REJECTED_METRIC, FACTS_METRIC)) and metric.get("facts")
    }


def rejected_files(progress: Mapping[str, Any]) -> tuple[str, ...]:
    """The files of which every record was rejected, at most `MOST_REJECTED_FILES`. progress: of a batch of which the
    metrics have seen every record."""
    found: set[str] = set()
    for metric in progress.get("observedMetrics", {}).values():
        good = frozenset(metric.get(GOOD_FILES, ()))
        found |= {seen["file"] for seen in metric.get(REJECTED_FILES, ()) if seen[FILE_HASH] not in good}
    return tuple(sorted(found)[:MOST_REJECTED_FILES])


@dataclass(frozen=True, slots=True, kw_only=True)
class QuerySources:
    """The sources of a query.

    names: the input of each, in the order in which Spark numbers them. An input that is joined with itself is two
        sources, each with offsets of its own; the second is `<input> (2)`.
    places: the source of each place where the plan reads one, as the lines of the offset log have them: a query with
        several outputs reads each source several times.
    """

    names: tuple[str, ...]
    places: tuple[str, ...]


def sources_of(united: DataFrame, inputs: Mapping[str, DataFrame]) -> QuerySources:
    """Which input each source of the query is: Spark numbers them as they come first in the plan."""
    name_by_source = {
        _source_of(leaf, united.sparkSession): name
        for name, rows in inputs.items()
        if rows.isStreaming
        for leaf in leaves_of(analyzed_plan(rows))
    }
    streaming = [leaf for leaf in leaves_of(analyzed_plan(united)) if leaf.isStreaming()]
    readings = [_reading(leaf) for leaf in streaming]
    first_by_reading = dict(zip(reversed(readings), reversed(streaming), strict=True))
    names: dict[tuple[int, ...], str] = {}
    for reading in dict.fromkeys(readings):
        leaf = first_by_reading[reading]
        name = name_by_source.get(_source_of(leaf, united.sparkSession), leaf.nodeName())
        number = 1 + sum(known == name or known.startswith(f"{name} (") for known in names.values())
        names[reading] = name if number == 1 else f"{name} ({number})"
    return QuerySources(names=tuple(names.values()), places=tuple(names[reading] for reading in readings))


def _source_of(leaf: JavaObject, spark: SparkSession) -> int:
    """The source that a leaf of a plan reads. Spark gives the columns of a leaf new ids where a plan needs that; what
    the leaf reads stays the same Java object."""
    read = leaf.table() if leaf.nodeName() == _NEW_SOURCE else leaf.dataSource()
    return int(jvm_of(spark).java.lang.System.identityHashCode(read))


def _reading(leaf: JavaObject) -> tuple[int, ...]:
    """The ids of the leaf's columns, by which Spark distinguishes the sources of a query."""
    return tuple(attribute.exprId().id() for attribute in python_list(leaf.output()))


LISTING_SECONDS = 1.0
"""The age limit of a list of files: a batch sees the files that were there a second before it started."""


@dataclass(frozen=True, slots=True)
class Renewals:
    """What keeps the static inputs of a stream up to date. listed: those whose files are listed again, by name."""

    listed: Mapping[str, DataFrame]

    @contextmanager
    def kept(self) -> Iterator[None]:
        """List the files at once, and then every second, on a thread of its own, until the block ends."""
        if not self.listed:
            yield
            return
        over = threading.Event()
        self._list_again()

        def work() -> None:
            while not over.wait(LISTING_SECONDS):
                self._list_again()

        thread = threading.Thread(target=work, name="static-inputs", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _list_again(self) -> None:
        for name, rows in self.listed.items():
            try:
                list_files_again(rows)
            except (PySparkException, Py4JJavaError) as error:
                _log.warning("the static input %s cannot be read again: %s", name, str(error).splitlines()[0])


def renewals_of(declared: Mapping[str, InputDeclaration], opened: Mapping[str, DataFrame]) -> Renewals:
    """What keeps the static inputs of a stream up to date.

    Parameters
    ----------
    declared: the inputs by name. opened: the DataFrame of each.
    """
    return Renewals({name: opened[name] for name, one in declared.items() if _is_listed(one)})


def _is_listed(declared: InputDeclaration) -> bool:
    is_of_files = isinstance(declared.declared_source.source, FilesSource)
    return is_of_files and not declared.is_stream and declared.refresh is None


def list_files_again(rows: DataFrame) -> None:
    """List the files of a folder again, of which Spark keeps the first list."""
    leaves = rows._jdf.queryExecution().analyzed().collectLeaves()
    for index in range(leaves.size()):
        leaves.apply(index).relation().location().refresh()
