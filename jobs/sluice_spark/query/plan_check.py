"""Reports what Spark plans to do for a stream, or why it cannot, before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.spark_reports import PlannedInput, PlannedOutput, PlanObservation, PlanProblem
from sluice.errors import DeclarationError, SluiceError
from sluice.settings import Settings
from sluice_spark.query.lateness import LateWatermark, count_late
from sluice_spark.query.logical_plan import analyzed_plan, children_of
from sluice_spark.query.state_operators import stateful_operators
from sluice_spark.query.stream_plan import StreamPlan, plan_stream
from sluice_spark.query.united_outputs import part
from sluice_spark.session.columns import REJECTED_ROW
from sluice_spark.session.jvm import first_line

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
