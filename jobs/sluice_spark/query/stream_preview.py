"""What Spark finds for a stream before anything is started: its plan or why it has none, and what its transformation
makes of a few rows, as a batch, without a checkpoint and without writing anything.

Tables that are declared and not created yet are planned all the same: in a session whose catalog has them all. The rows
of a preview are a sample of each declared input, with the same columns as the stream.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.source_declarations import DeltaSource, FilesSource, IcebergSource, KafkaSource, RateSource
from sluice.declarations.spark_reports import (
    PlannedInput,
    PlannedOutput,
    PlanObservation,
    PlanProblem,
    PreviewedInput,
    PreviewedOutput,
    PreviewObservation,
)
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT, StreamDeclaration
from sluice.declarations.table_declaration import TableDeclaration
from sluice.errors import DeclarationError, SluiceError, UsageError
from sluice.settings import FilesConnection, KafkaConnection, Settings
from sluice.tables.declared_tables import load_table
from sluice.tables.table_schemas import schema_of
from sluice_spark.query.batch_form import WITHIN_WATERMARK, as_batch, steps_of
from sluice_spark.query.logical_plan import analyzed_plan, children_of, stateful_operators
from sluice_spark.query.observed_rows import LateWatermark, count_late
from sluice_spark.query.stream_outputs import part
from sluice_spark.query.stream_plan import StreamPlan, plan_stream
from sluice_spark.query.transformation import transform
from sluice_spark.session.columns import JSON_TEXT, REJECTED_ROW, quoted
from sluice_spark.session.jvm import first_line, jvm_of
from sluice_spark.sources import delta, files, iceberg, kafka, open_input
from sluice_spark.sources.input_decoding import DecodedInput, decode

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_NOT_SHOWN = frozenset({"Project", "SubqueryAlias", "CollectMetrics", "View", "SerializeFromObject"})
"""Steps that only rename, select or count: a reader looks for what joins, groups, filters and keeps."""

_LONGEST_STEP = 160


def observe_plan(spark: SparkSession, stream: LoadedStream, settings: Settings) -> PlanObservation:
    """What Spark plans to do for a stream, or the problem that prevents it. Nothing is read or written."""
    try:
        plan = plan_stream(spark, stream, settings)
        count_late(plan.rows, LateWatermark(spark=spark, stream=stream.name, run_id=""))  # as the start of a run does
    except SluiceError as error:
        return _observation(stream, problem=_problem(error))
    except (PySparkException, Py4JJavaError) as error:
        return _observation(stream, problem=PlanProblem(message=first_line(error), file=str(stream.file)))
    return _observation(stream, plan=plan)


def _observation(
    stream: LoadedStream, *, plan: StreamPlan | None = None, problem: PlanProblem | None = None
) -> PlanObservation:
    declaration = stream.declaration
    stateful = stateful_operators(plan.rows) if plan is not None else ()
    state = declaration.state
    return PlanObservation(
        stream=stream.name,
        trigger=_trigger_text(stream),
        output_mode=next(iter(declaration.outputs.values())).mode,
        inputs=tuple(_inputs(stream)),
        outputs=tuple(_outputs(plan)) if plan is not None else (),
        operators=tuple(_steps(analyzed_plan(plan.rows), 0)) if plan is not None else (),
        stateful=stateful,
        state=f"{state.provider}{', changelog' if state.changelog else ''}" if stateful else None,
        problem=problem,
    )


def _inputs(stream: LoadedStream) -> Iterator[PlannedInput]:
    for name, declared in stream.declaration.inputs.items():
        watermark = declared.watermark
        text = f"{watermark.column}, {_seconds(watermark.delay)}" if watermark is not None else None
        yield PlannedInput(name=name, kind=declared.declared_source.kind, is_stream=declared.is_stream, watermark=text)


def _outputs(plan: StreamPlan) -> Iterator[PlannedOutput]:
    places = {target.output: ("iceberg", target.declared.table) for target in plan.targets}
    places |= {sink.output: (plan.declaration.outputs[sink.output].kind, sink.place) for sink in plan.sinks}
    for name, (kind, place) in places.items():
        schema = part(plan.rows, name).schema if name in plan.carried else REJECTED_ROW
        columns = {column.name: column.dataType.simpleString() for column in schema}
        yield PlannedOutput(name=name, kind=kind, place=place, columns=columns)


def _steps(plan: JavaObject, depth: int) -> Iterator[tuple[int, str]]:
    """The plan's steps from the result down to the inputs."""
    is_shown = plan.nodeName() not in _NOT_SHOWN
    if is_shown:
        text = " ".join(plan.simpleString(10).split())
        yield depth, text if len(text) <= _LONGEST_STEP else f"{text[:_LONGEST_STEP]}…"
    for child in children_of(plan):
        yield from _steps(child, depth + is_shown)


def _trigger_text(stream: LoadedStream) -> str:
    trigger = stream.declaration.trigger
    if trigger is None:
        return "available_now"
    value = getattr(trigger, trigger.kind)
    return trigger.kind if value is True else f"{trigger.kind} {_seconds(value)}"


def _seconds(duration: timedelta) -> str:
    return f"{duration.total_seconds():g} seconds"


def _problem(error: SluiceError) -> PlanProblem:
    if isinstance(error, DeclarationError):
        location = error.location
        return PlanProblem(
            message=error.problem, next_step=error.next_step, file=str(location.file), line=location.line
        )
    return PlanProblem(message=error.message, next_step=error.next_step)


_IN_MEMORY_CATALOG = "org.apache.iceberg.inmemory.InMemoryCatalog"


@dataclass(frozen=True, slots=True, kw_only=True)
class TablesOfStream:
    """The tables that a stream reads and writes. existing: as they are. to_create: those that are only declared."""

    existing: tuple[Table, ...]
    to_create: tuple[TableDeclaration, ...]

    @property
    def names_to_create(self) -> tuple[str, ...]:
        """The names of those that are only declared, in their order."""
        return tuple(declaration.table for declaration in self.to_create)


def tables_of_stream(
    catalog: Catalog, declaration: StreamDeclaration, declared: Mapping[str, TableDeclaration]
) -> TablesOfStream:
    """Look up the tables that a stream names, its quarantine among them. One that is neither there nor declared is left
    to Spark, which says so.

    Parameters
    ----------
    declared: every valid table by name.

    Raises
    ------
    LakehouseError: when the catalog cannot be asked.
    """
    quarantine = (declaration.quarantine_table,) if declaration.quarantine else ()
    found = {name: load_table(catalog, name) for name in sorted({*declaration.tables_named, *quarantine})}
    return TablesOfStream(
        existing=tuple(table for table in found.values() if table is not None),
        to_create=tuple(declared[name] for name, table in found.items() if table is None and name in declared),
    )


def session_with_all(spark: SparkSession, catalog: str, tables: TablesOfStream) -> SparkSession:
    """A session in which the catalog has a stream's existing tables, and those that are to be created as empty ones.
    The deployment's own catalog gets none of them.

    Parameters
    ----------
    catalog: its name in Spark.

    Source: https://iceberg.apache.org/docs/latest/spark-configuration/#catalogs, and Iceberg's `InMemoryCatalog`, which
    reads the metadata of tables from the memory alone.

    Raises
    ------
    SluiceError: when Spark has opened another catalog.
    """
    session = spark.newSession()
    prefix = f"spark.sql.catalog.{catalog}"
    session.conf.unset(f"{prefix}.type")
    session.conf.unset(f"{prefix}.io-impl")
    session.conf.set(f"{prefix}.catalog-impl", _IN_MEMORY_CATALOG)
    session.conf.set(f"{prefix}.warehouse", f"memory://{uuid4().hex}")
    _fill(session, catalog, tables)
    return session


def _fill(session: SparkSession, catalog: str, tables: TablesOfStream) -> None:
    iceberg = jvm_of(session).org.apache.iceberg
    # Spark opens a catalog with the settings of the active session, which a query makes its own.
    session.sql(f"SHOW NAMESPACES IN {quoted(catalog)}")
    in_memory = session._jsparkSession.sessionState().catalogManager().catalog(catalog).icebergCatalog()
    if in_memory.getClass().getName() != _IN_MEMORY_CATALOG:
        raise SluiceError(
            f"Spark opened the deployment's catalog {catalog} instead of one in memory; nothing was created."
        )

    def identifier_of(name: str) -> JavaObject:
        identifier = iceberg.catalog.TableIdentifier.parse(name)
        if not in_memory.namespaceExists(identifier.namespace()):
            in_memory.createNamespace(identifier.namespace())
        return identifier

    files = iceberg.inmemory.InMemoryFileIO()  # all of them have the same files
    for table in tables.existing:
        files.addFile(table.metadata_location, table.metadata.model_dump_json().encode())
        in_memory.registerTable(identifier_of(".".join(table.name())), table.metadata_location)
    for declaration in tables.to_create:
        schema = iceberg.SchemaParser.fromJson(schema_of(declaration).model_dump_json())
        in_memory.createTable(identifier_of(declaration.table), schema)


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
