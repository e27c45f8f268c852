"""Reports what Spark plans to do for a stream, or why it cannot, before anything is started.

Tables that are declared and not created yet are planned all the same: in a session whose catalog has them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from py4j.protocol import Py4JJavaError
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.spark_reports import PlannedInput, PlannedOutput, PlanObservation, PlanProblem
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.declarations.table_declaration import TableDeclaration
from sluice.errors import DeclarationError, SluiceError
from sluice.settings import Settings
from sluice.tables.declared_tables import load_table
from sluice.tables.table_schemas import schema_of
from sluice_spark.query.logical_plan import analyzed_plan, children_of, stateful_operators
from sluice_spark.query.observed_rows import LateWatermark, count_late
from sluice_spark.query.stream_outputs import part
from sluice_spark.query.stream_plan import StreamPlan, plan_stream
from sluice_spark.session.columns import REJECTED_ROW, quoted
from sluice_spark.session.jvm import first_line, jvm_of

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
