"""The outputs of a stream: their tables and sinks, whether the rows fit, and all their rows in one DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from pyspark.sql.types import StringType, StructField, StructType

from sluice.declarations.iceberg_output import IcebergOutput
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT, StreamDeclaration
from sluice.errors import DeliveryError
from sluice.settings import Settings
from sluice_spark.query.table_fit import require_fit
from sluice_spark.query.united_outputs import field, move, unite
from sluice_spark.sinks import open_sink
from sluice_spark.sinks.iceberg import IcebergTarget, has_known_operation, unknown_operation
from sluice_spark.sinks.port import Sink
from sluice_spark.sinks.text_formats import TIMES

_REJECTED_COLUMNS = ("reason", "position", "payload")

REJECTED_ROW = StructType([StructField(name, StringType()) for name in _REJECTED_COLUMNS])
"""A row of the quarantine, as a transformation returns it."""


def open_targets(
    spark: SparkSession, stream: LoadedStream, outputs: Mapping[str, DataFrame], *, catalog: str
) -> tuple[IcebergTarget, ...]:
    """The tables that outputs go into, the quarantine among them.

    Parameters
    ----------
    outputs: the rows of each output. catalog: the name of the catalog in Spark.

    Raises
    ------
    SchemaError: when an output does not fit its table.
    """
    targets = tuple(_targets(stream, catalog=catalog))
    for target in targets:
        if target.output in outputs:
            _require_table_fit(spark, stream, target, outputs[target.output])
    return targets


def open_sinks(stream: LoadedStream, outputs: Mapping[str, DataFrame], settings: Settings) -> tuple[Sink, ...]:
    """The sinks of the outputs that are not Iceberg tables.

    Raises
    ------
    DeclarationError, SettingsError: as `open_sink` raises them.
    DeliveryError: when an output does not fit its sink.
    """
    names = (name for name, declared in stream.declaration.outputs.items() if declared.iceberg is None)
    sinks = tuple(open_sink(stream, name, settings) for name in names)
    for sink in sinks:
        _require_sink_fit(stream, sink, outputs[sink.output])
    return sinks


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitedOutputs:
    """All outputs in one DataFrame, and which outputs have rows in it."""

    rows: DataFrame
    outputs: frozenset[str]


def unite_outputs(
    declaration: StreamDeclaration, outputs: Mapping[str, DataFrame], targets: Iterable[IcebergTarget]
) -> UnitedOutputs:
    """All outputs in one DataFrame. Changes of a feed whose operation is not declared go to the quarantine, if there is
    one; it may have no other rows.
    """
    feeds = [target for target in targets if target.declared.operation_column is not None]
    if not declaration.quarantine or not feeds:
        return UnitedOutputs(rows=unite(outputs), outputs=frozenset(outputs))
    united = unite(outputs, besides={} if QUARANTINE_OUTPUT in outputs else {QUARANTINE_OUTPUT: REJECTED_ROW})
    rows = reduce(_reject_unknown_operations, feeds, united)
    return UnitedOutputs(rows=rows, outputs=frozenset((*outputs, QUARANTINE_OUTPUT)))


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
        table = type(table)([column for column in table if column.name in _REJECTED_COLUMNS])
    if target.declared.operation_column is not None:
        table = StructType([*table, StructField(target.declared.operation_column, StringType())])
    require_fit(rows.schema, table, stream=stream.name, output=target.output, table_name=target.declared.table)


def _require_sink_fit(stream: LoadedStream, sink: Sink, rows: DataFrame) -> None:
    if mismatches := sink.mismatches(rows.schema):
        kind = stream.declaration.outputs[sink.output].kind
        raise DeliveryError(
            f"The output {sink.output} of stream {stream.name} does not fit {sink.place}: {'; '.join(mismatches)}.",
            next_step=f"Correct the transformation, or `outputs.{sink.output}.{kind}` in {stream.file.name}.",
        )


def _reject_unknown_operations(united: DataFrame, target: IcebergTarget) -> DataFrame:
    """Move the changes without a known operation to the quarantine: their position is their keys and their ordering,
    their payload the whole row.
    """
    declared, output = target.declared, target.output
    operation = field(output, declared.operation_column or "")
    places = dict.fromkeys((*declared.keys, *declared.ordering))
    rejected = fn.struct(
        unknown_operation(operation, declared).alias("reason"),
        fn.to_json(fn.struct(*(field(output, name).alias(name) for name in places)), dict(TIMES)).alias("position"),
        fn.to_json(fn.col(output), dict(TIMES)).alias("payload"),
    )
    is_unknown = ~has_known_operation(operation, declared)
    return move(united, output=output, where=is_unknown, into=QUARANTINE_OUTPUT, row=rejected)
