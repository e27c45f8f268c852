"""Applies a stream's transformation to a few rows, as a batch: without a checkpoint, and without writing anything.

The rows are a sample of each declared input, with the same columns as the stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.source_declarations import DeltaSource, FilesSource, IcebergSource, KafkaSource, RateSource
from sluice.declarations.spark_reports import PreviewedInput, PreviewedOutput, PreviewObservation
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.errors import UsageError
from sluice.settings import FilesConnection, KafkaConnection, Settings
from sluice_spark.query.batch_form import WITHIN_WATERMARK, as_batch, steps_of
from sluice_spark.query.logical_plan import analyzed_plan
from sluice_spark.query.transformation import transform
from sluice_spark.session.columns import JSON_TEXT
from sluice_spark.sources import delta, files, iceberg, kafka, open_input
from sluice_spark.sources.input_decoding import DecodedInput, decode


def sample_input(
    spark: SparkSession,
    declared: InputDeclaration,
    settings: Settings,
    *,
    rows: int,
    folder: Path,
    quarantines: bool = False,
) -> DecodedInput:
    """A sample of the rows of an input, from where a new checkpoint would start; a static input is read whole. Of
    records whose values are decoded, the sample includes those that cannot be decoded. Of all other inputs the
    rejected records are those among the first rows or lines.

    Parameters
    ----------
    folder: where the declaration lies, and its schema files.
    quarantines: whether the stream has a quarantine.

    Raises
    ------
    SettingsError: when the deployment does not have the connection that the input names.
    UsageError: when this kind of source can only be read as a stream.
    """
    if not declared.is_stream:
        return DecodedInput(rows=open_input(spark, declared, settings, folder=folder))
    arriving = _rows(spark, declared, settings, rows)
    if declared.declared_source.value is not None:
        return decode(arriving.limit(rows), declared, folder=folder, settings=settings)
    decoded, first = (
        decode(some, declared, folder=folder, settings=settings, quarantines=quarantines)
        for some in (arriving, _first(arriving, declared, rows))
    )
    return DecodedInput(rows=decoded.rows.limit(rows), rejected=first.rejected)


def _first(arriving: DataFrame, declared: InputDeclaration, rows: int) -> DataFrame:
    """The first rows; of files of lines with the path of each and one line more, which may be a header. A file is read
    by one task, and the lines of a task stay in their order."""
    source = declared.declared_source.files
    if source is None or source.format not in ("json", "csv"):
        return arriving.limit(rows)
    return arriving.select("*", "_metadata").limit(rows + 1)


def _rows(spark: SparkSession, declared: InputDeclaration, settings: Settings, rows: int) -> DataFrame:
    match declared.declared_source.source:
        case KafkaSource() as source:
            return kafka.read_now(spark, source, settings.connection(source.connection, KafkaConnection))
        case FilesSource() as source:
            return files.read_static(spark, source, settings, is_streamed=True)
        case IcebergSource() as source:
            return iceberg.read_static(spark, source, catalog=settings.catalog.name)
        case DeltaSource() as source:
            return delta.read_static(spark, source, settings.connection(source.connection, FilesConnection))
        case RateSource():
            return spark.range(rows).select(fn.current_timestamp().alias("timestamp"), fn.col("id").alias("value"))
    kind = declared.declared_source.kind
    raise UsageError(
        f"An input of kind {kind} cannot be previewed: it can be read in no other way than as a stream.",
        next_step="Start the stream with the output `console`.",
    )


_KEEPING = frozenset({"Aggregate", "Deduplicate", "Distinct", "Join", "TransformWithState", WITHIN_WATERMARK})


def preview(
    spark: SparkSession, stream: LoadedStream, settings: Settings, *, sample: int, shown: int
) -> PreviewObservation:
    """Run the transformation over a sample.

    Parameters
    ----------
    sample: the most rows that are read of each stream input.
    shown: the most rows of each output that are handed back.

    Raises
    ------
    DeclarationError: when the transformation does not fit the declaration.
    SettingsError: when a connection is missing.
    UsageError: when an input cannot be looked at.
    """
    declared = stream.declaration.inputs
    samples = {
        name: sample_input(
            spark, one, settings, rows=sample, folder=stream.folder, quarantines=stream.declaration.quarantine
        )
        for name, one in declared.items()
    }
    inputs = {name: one.rows for name, one in samples.items()}
    undecoded = [one.rejected for one in samples.values() if one.rejected is not None]
    kept = {name: rows.persist() for name, rows in inputs.items() if declared[name].is_stream}
    try:
        counts = {name: rows.count() for name, rows in kept.items()}
        outputs = transform(spark, stream, {**inputs, **kept})
        plans = [step for rows in outputs.values() for step in steps_of(analyzed_plan(rows))]
        outputs = {name: as_batch(rows) for name, rows in outputs.items()}
        refused = [*undecoded, *(outputs.pop(name) for name in [QUARANTINE_OUTPUT] if name in outputs)]
        return PreviewObservation(
            stream=stream.name,
            inputs=tuple(
                PreviewedInput(name=name, kind=one.declared_source.kind, rows=counts.get(name))
                for name, one in declared.items()
            ),
            outputs=tuple(_output(name, rows, shown) for name, rows in outputs.items()),
            refused=_by_reason([rows.select("reason") for rows in refused]) if refused else {},
            differences=tuple(_differences(stream, counts, frozenset(plans), sample=sample)),
        )
    finally:
        for rows in kept.values():
            rows.unpersist()


def _output(name: str, rows: DataFrame, shown: int) -> PreviewedOutput:
    content = fn.to_json(fn.struct("*"), dict(JSON_TEXT)).alias("content")
    first: list[Mapping[str, Any]] = [json.loads(row.content) for row in rows.limit(shown).select(content).collect()]
    columns = {column.name: column.dataType.simpleString() for column in rows.schema}
    return PreviewedOutput(name=name, columns=columns, rows=rows.count(), first=tuple(first))


def _by_reason(refused: Sequence[DataFrame]) -> dict[str, int]:
    counted = reduce(DataFrame.union, refused).groupBy("reason").count().orderBy(fn.desc("count"), "reason").collect()
    return {str(row["reason"]): row["count"] for row in counted}


def _differences(
    stream: LoadedStream, counts: Mapping[str, int], steps: frozenset[str], *, sample: int
) -> Iterator[str]:
    """In what the stream itself differs; only what is true of this stream."""
    cut = [name for name, rows in counts.items() if rows == sample]
    if cut:
        yield f"{', '.join(cut)}: the first {sample} rows only; there may be more."
    if any(declared.watermark is not None for declared in stream.declaration.inputs.values()):
        yield "A batch has no watermark: no row is late here, and windows are shown that the stream still keeps open."
    if WITHIN_WATERMARK in steps:
        yield "Duplicates are dropped however far apart they are; the stream drops them within the watermark's delay."
    if steps & _KEEPING:
        yield "State begins empty and sees the sample alone; the stream's sees every row since its checkpoint began."
    mode = next(iter(stream.declaration.outputs.values())).mode
    if mode == "update":
        yield "A result is shown once, as it is in the end; the stream hands it over whenever a batch has changed it."
