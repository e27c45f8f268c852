"""Assembles a stream's one streaming query: inputs → transformation → outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StringType, StructField, StructType

from sluice.declarations.iceberg_output import IcebergOutput
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.scalar_types import duration_text
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT, StreamDeclaration
from sluice.errors import DeliveryError
from sluice.settings import Settings
from sluice_spark.query.runnable import require_runnable, stateful_operators
from sluice_spark.query.static_inputs import Renewals, renewals_of
from sluice_spark.query.table_fit import require_fit
from sluice_spark.query.transformation import transform
from sluice_spark.query.united_outputs import unite
from sluice_spark.query.unknown_operations import REFUSED_ROW, refuse_unknown_operations
from sluice_spark.sinks import open_sink
from sluice_spark.sinks.iceberg import IcebergTarget
from sluice_spark.sinks.port import Sink
from sluice_spark.sources import read_input, with_watermark
from sluice_spark.sources.input_decoding import DecodedInput, decode

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

INPUT_METRIC = "sluice.input."
"""The prefix of the observed metric that counts an input's rows. Spark's own `numInputRows` counts a source once for
each place in the plan where it is read, which is each output; where it is read once, a second count of every row would
only cost time."""

_NEW_SOURCE = "StreamingRelationV2"
"""What reads a source of the newer kind, in the words of an analyzed plan."""

_APPENDED = ("append", "overwrite_partitions")
"""The modes whose rows are staged as they come: Spark's query appends them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """A stream, ready to be started.

    rows: the rows of all outputs in one streaming DataFrame. targets: the tables that they go into.
    sinks: where the rows of all other outputs go.
    sources: the input of each source of the query, in the order in which Spark reports them.
    is_stateful: whether an operator keeps state from batch to batch.
    renewals: what keeps the static inputs fresh while the query runs.
    """

    declaration: StreamDeclaration
    rows: DataFrame
    targets: tuple[IcebergTarget, ...]
    sinks: tuple[Sink, ...]
    sources: tuple[str, ...]
    is_stateful: bool
    renewals: Renewals

    @property
    def writes_directly(self) -> bool:
        """Whether a batch may be written into its tables while it is computed: one output that is appended, and no
        state; or it is kept for the sake of other outputs, so that nothing is computed twice."""
        is_safe = not self.is_stateful or bool(self.sinks)
        return is_safe and len(self.targets) == 1 and self.targets[0].declared.mode in _APPENDED

    @property
    def publishes_beside(self) -> bool:
        """Whether a batch may become visible while Spark works on the next: its commits need no Spark, no other system
        waits for them, and no input reads what they bring."""
        is_read = not set(self.declaration.tables_read).isdisjoint(self.declaration.tables_written)
        return not self.sinks and not is_read and all(target.declared.mode == "append" for target in self.targets)

    @property
    def direct_target(self) -> IcebergTarget | None:
        """The table that Iceberg's own sink writes; none when batches are handed over."""
        return next((target for target in self.targets if target.declared.is_direct), None)

    @property
    def reads_iceberg(self) -> bool:
        """Whether rows arrive from an Iceberg table."""
        declared = (given.declared_source.source for given in self.declaration.inputs.values() if given.is_stream)
        return any(isinstance(source, IcebergSource) for source in declared)

    @property
    def output_mode(self) -> str:
        """The query's one output mode, in Spark's words."""
        return next(iter(self.declaration.outputs.values())).mode

    def writer(self, *, checkpoint: str) -> DataStreamWriter:
        """The query's writer, with everything but its trigger and its sink."""
        writer = self.rows.writeStream.queryName(self.declaration.stream).outputMode(self.output_mode)
        return writer.option("checkpointLocation", checkpoint)


def plan_stream(
    spark: SparkSession, stream: LoadedStream, settings: Settings, *, checkpoint: str | None = None
) -> StreamPlan:
    """Open the inputs, apply the transformation, and compare its outputs with their tables.

    Raises
    ------
    DeclarationError: when the transformation does not fit the declaration, or Spark refuses the plan.
    SchemaError: when an output does not fit its table.
    SettingsError: when a connection is missing.
    """
    declaration = stream.declaration
    inputs = {
        name: read_input(spark, declared, settings, checkpoint=checkpoint)
        for name, declared in declaration.inputs.items()
    }
    outputs = _transformed(spark, stream, inputs, settings)
    # Only what was described tells how often a source is read; to describe it a second time computes nothing.
    if not declaration.hands_on_records and not _are_counted_by_spark(outputs.values(), inputs.values()):
        outputs = _transformed(spark, stream, _counted(inputs), settings)
    targets = tuple(_targets(stream, catalog=settings.catalog.name))
    for target in targets:
        if target.output in outputs:
            _require_table_fit(spark, stream, target, outputs[target.output])
    names = (name for name, declared in stream.declaration.outputs.items() if declared.iceberg is None)
    sinks = tuple(open_sink(stream, name, settings) for name in names)
    for sink in sinks:
        _require_sink_fit(stream, sink, outputs[sink.output])
    united = _united(stream.declaration, outputs, targets)
    require_runnable(united, stream)
    return StreamPlan(
        declaration=declaration,
        rows=united,
        targets=targets,
        sinks=sinks,
        sources=_sources_in_order(united, inputs),
        is_stateful=bool(stateful_operators(united)),
        renewals=renewals_of(declaration.inputs, inputs),
    )


def _transformed(
    spark: SparkSession, stream: LoadedStream, inputs: Mapping[str, DataFrame], settings: Settings
) -> dict[str, DataFrame]:
    """The outputs: decoded, with their watermarks, through the transformation."""
    declared = stream.declaration.inputs
    decoded = {
        name: decode(rows, declared[name], folder=stream.folder, settings=settings) for name, rows in inputs.items()
    }
    opened = {name: with_watermark(one.rows, declared[name]) for name, one in decoded.items()}
    return _with_refused(transform(spark, stream, opened), decoded.values())


def _with_refused(outputs: dict[str, DataFrame], decoded: Iterable[DecodedInput]) -> dict[str, DataFrame]:
    """The outputs, with what could not be decoded beside what the transformation refuses."""
    refused = [of_input.refused for of_input in decoded if of_input.refused is not None]
    if not refused:
        return outputs
    refused += [outputs[QUARANTINE_OUTPUT]] if QUARANTINE_OUTPUT in outputs else []
    return {**outputs, QUARANTINE_OUTPUT: reduce(DataFrame.unionByName, refused)}


def _united(
    declaration: StreamDeclaration, outputs: Mapping[str, DataFrame], targets: tuple[IcebergTarget, ...]
) -> DataFrame:
    """All outputs in one DataFrame. A quarantine may have no rows but those that the platform refuses."""
    if not declaration.quarantine:
        return unite(outputs)
    united = unite(outputs, besides={} if QUARANTINE_OUTPUT in outputs else {QUARANTINE_OUTPUT: REFUSED_ROW})
    return refuse_unknown_operations(united, targets)


def _are_counted_by_spark(outputs: Iterable[DataFrame], inputs: Iterable[DataFrame]) -> bool:
    """Whether Spark's own count of a batch's rows is right: it adds up what every reading of a source gives, and knows
    nothing of sources of the older kind whose plan has more leaves than it looks for.

    Source: `ProgressReporter.extractSourceToNumInputRows` of Spark 4.1.
    """
    sources = [_identity(leaf) for rows in inputs if rows.isStreaming for leaf in _leaves(_analyzed(rows))]
    read = [leaf for rows in outputs for leaf in _leaves(_analyzed(rows)) if leaf.isStreaming()]
    are_new = all(leaf.nodeName() == _NEW_SOURCE for leaf in read)
    return are_new and sorted(sources) == sorted(_identity(leaf) for leaf in read)


def _counted(inputs: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    return {
        name: rows.observe(f"{INPUT_METRIC}{name}", fn.count(fn.lit(1)).alias("rows")) if rows.isStreaming else rows
        for name, rows in inputs.items()
    }


def trigger_of(declaration: StreamDeclaration) -> dict[str, str]:
    """The trigger of a continuous stream, in the words of `DataStreamWriter.trigger`."""
    interval = declaration.trigger.processing_time if declaration.trigger is not None else None
    return {"processingTime": duration_text(interval) if interval is not None else "0 seconds"}


def _targets(stream: LoadedStream, *, catalog: str) -> Iterator[IcebergTarget]:
    for name, declared in stream.declaration.outputs.items():
        if isinstance(declared.output, IcebergOutput):
            yield IcebergTarget(stream=stream.name, output=name, declared=declared.output, catalog=catalog)
    if stream.declaration.quarantine:
        table = IcebergOutput(table=stream.declaration.quarantine_table)
        yield IcebergTarget(stream=stream.name, output=QUARANTINE_OUTPUT, declared=table, catalog=catalog)


def _require_table_fit(spark: SparkSession, stream: LoadedStream, target: IcebergTarget, rows: DataFrame) -> None:
    table = spark.table(target.identifier).schema
    if target.output == QUARANTINE_OUTPUT:
        table = type(table)([field for field in table if field.name in ("reason", "position", "payload")])
    if target.declared.operation_column is not None:
        table = StructType([*table, StructField(target.declared.operation_column, StringType())])
    require_fit(rows.schema, table, stream=stream.name, output=target.output, table_name=target.declared.table)


def _require_sink_fit(stream: LoadedStream, sink: Sink, rows: DataFrame) -> None:
    if misfits := sink.misfits(rows.schema):
        kind = stream.declaration.outputs[sink.output].kind
        raise DeliveryError(
            f"The output {sink.output} of stream {stream.name} does not fit {sink.place}: {'; '.join(misfits)}.",
            next_step=f"Correct the transformation, or `outputs.{sink.output}.{kind}` in {stream.file.name}.",
        )


def _sources_in_order(united: DataFrame, inputs: Mapping[str, DataFrame]) -> tuple[str, ...]:
    """Which input each source of the query is: Spark numbers them as they come first in the plan."""
    name_by_leaf = {
        _identity(leaf): name for name, rows in inputs.items() if rows.isStreaming for leaf in _leaves(_analyzed(rows))
    }
    streaming = (leaf for leaf in _leaves(_analyzed(united)) if leaf.isStreaming())
    return tuple(dict.fromkeys(name_by_leaf.get(_identity(leaf), leaf.nodeName()) for leaf in streaming))


def _analyzed(rows: DataFrame) -> JavaObject:
    return rows._jdf.queryExecution().analyzed()


def _leaves(plan: JavaObject) -> list[JavaObject]:
    return _listed(plan.collectLeaves())


def _identity(leaf: JavaObject) -> tuple[int, ...]:
    """The ids of the leaf's columns: no two readings of a source share them."""
    return tuple(attribute.exprId().id() for attribute in _listed(leaf.output()))


def _listed(sequence: JavaObject) -> list[JavaObject]:
    return [sequence.apply(index) for index in range(sequence.size())]
