"""Assembles a stream's one streaming query: inputs → transformation → outputs. Spark's analysis says if it can run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.rule_declaration import RuleDeclaration
from sluice.declarations.scalar_types import duration_text
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.settings import Settings
from sluice.sources.source_identities import SourceFields
from sluice_spark.query.batch_conditions import require_batch_rules
from sluice_spark.query.logical_plan import (
    analyzed_plan,
    children_of,
    python_list,
    rows_of_plan,
    scala_sequence,
    stateful_operators,
)
from sluice_spark.query.observed_rows import RejectedRecords, rejected_records
from sluice_spark.query.row_rules import require_rules
from sluice_spark.query.static_copies import StaticCopies, with_copies
from sluice_spark.query.stream_inputs import (
    OpenedInputs,
    Renewals,
    are_counted_by_spark,
    cannot_be_counted_by_spark,
    open_inputs,
    planned_fields,
    read_inputs,
    renewals_of,
    sources_of,
)
from sluice_spark.query.stream_outputs import open_sinks, open_targets, unite_outputs
from sluice_spark.query.transformation import refused, transform
from sluice_spark.session.jvm import first_line, jvm_of
from sluice_spark.sinks import Sink
from sluice_spark.sinks.iceberg import IcebergTarget

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

_APPENDED = ("append", "overwrite_partitions")
"""The modes whose rows are staged as they come: Spark's query appends them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPlan:
    """A stream, ready to be started.

    inputs: as the transformation gets them.
    rows: the rows of all outputs in one streaming DataFrame. targets: the tables that they go into.
    carried: the outputs that have rows in it; the quarantine of records that cannot be decoded has none.
    rejected: those records, batch by batch; None when no input is decoded.
    sinks: where the rows of all other outputs go.
    sources: the input of each source of the query, in the order in which Spark reports them. places: the source of each
        line of its offset log.
    is_stateful: whether an operator keeps state from batch to batch.
    renewals: what keeps the static inputs up to date while the query runs. copies: what batches read of some of them.
    fields: of the Iceberg tables that the inputs read as they are at each batch, by table, as the plan reads them.
    rules: what must be true of the rows of each output that has rules.
    """

    declaration: StreamDeclaration
    inputs: Mapping[str, DataFrame]
    rows: DataFrame
    carried: frozenset[str]
    rejected: RejectedRecords | None
    targets: tuple[IcebergTarget, ...]
    sinks: tuple[Sink, ...]
    sources: tuple[str, ...]
    places: tuple[str, ...]
    is_stateful: bool
    renewals: Renewals
    copies: StaticCopies
    fields: Mapping[str, SourceFields]
    rules: Mapping[str, tuple[RuleDeclaration, ...]] = field(default_factory=dict)

    @property
    def writes_directly(self) -> bool:
        """Whether a batch may be written into its tables while it is computed: one output that is appended, no state,
        no rules and no limit that holds it, whose result is staged with the batch; or it is kept for the sake of other
        outputs, so that nothing is computed twice."""
        is_judged = bool(self.rules) or self.declaration.rejections_held_beyond is not None
        is_safe = not is_judged and (not self.is_stateful or bool(self.sinks))
        written = [target for target in self.targets if target.output in self.carried]
        return is_safe and len(written) == 1 and written[0].declared.mode in _APPENDED

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
    inputs, copies = read_inputs(spark, stream, settings, checkpoint=checkpoint), StaticCopies()

    def opened_inputs(*, are_counted: bool) -> OpenedInputs:
        opened = open_inputs(stream, inputs, settings, are_counted=are_counted)
        if checkpoint is None:
            return opened
        return replace(opened, rows=with_copies(declaration.inputs, opened.rows, copies, checkpoint=checkpoint))

    may_be_counted = not declaration.hands_on_records
    is_limited = declaration.rejections_held_beyond is not None
    are_counted = may_be_counted and (is_limited or cannot_be_counted_by_spark(inputs.values()))
    opened = opened_inputs(are_counted=are_counted)
    outputs = transform(spark, stream, opened.rows)
    # Only the described outputs show how often a source is read; to describe them a second time computes nothing.
    if may_be_counted and not are_counted and not are_counted_by_spark(outputs.values(), inputs.values()):
        opened = opened_inputs(are_counted=True)
        outputs = transform(spark, stream, opened.rows)
    targets = open_targets(spark, stream, outputs, catalog=settings.catalog.name)
    sinks = open_sinks(stream, outputs, settings)
    for name, rows in outputs.items():
        require_rules(stream, name, rows)
        require_batch_rules(stream, name, rows, catalog=settings.catalog.name)
    united = unite_outputs(stream, outputs, targets)
    united = replace(united, rows=with_normalized_keys(united.rows))
    require_runnable(united.rows, stream)
    sources = sources_of(united.rows, inputs)
    return StreamPlan(
        declaration=declaration,
        inputs=opened.rows,
        rows=united.rows,
        carried=united.outputs,
        rejected=rejected_records(united.rows, declaration.stream, opened.metrics),
        targets=targets,
        sinks=sinks,
        sources=sources.names,
        places=sources.places,
        is_stateful=bool(stateful_operators(united.rows)),
        renewals=renewals_of(declaration.inputs, inputs),
        copies=copies,
        fields=planned_fields(declaration, inputs),
        rules={name: rules for name, rules in stream.rules.items() if name in outputs},
    )


def trigger_of(declaration: StreamDeclaration) -> dict[str, str]:
    """The trigger of a continuous stream, as arguments of `DataStreamWriter.trigger`."""
    interval = declaration.trigger.processing_time if declaration.trigger is not None else None
    return {"processingTime": duration_text(interval) if interval is not None else "0 seconds"}


def require_runnable(rows: DataFrame, stream: LoadedStream) -> None:
    """Check that Spark can run the rows as a streaming query with the stream's trigger and output mode.

    Raises
    ------
    DeclarationError: with Spark's reason, at the place of the transformation.

    Source: `org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker`, which every start of a query calls.
    """
    jvm = jvm_of(rows.sparkSession)
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    declaration = stream.declaration
    word = next(iter(declaration.outputs.values())).mode
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, word.capitalize())()
    plan = analyzed_plan(rows)
    try:
        checker.checkForStreaming(plan, mode)
        if declaration.trigger is not None and declaration.trigger.continuous_processing is not None:
            checker.checkForContinuous(plan, mode)
    except AnalysisException as error:
        raise refused(stream, f"in the output mode `{word}` Spark refuses the plan: {_reason(error)}") from error
    if declaration.hands_on_records and (kept := stateful_operators(rows)):
        raise refused(stream, f"a trigger that hands records on one by one keeps no state, got {', '.join(kept)}")


def _reason(error: AnalysisException) -> str:
    """Spark's sentence, without the plan that it prints below."""
    return first_line(error).rstrip(".;")


_DEDUPLICATIONS = frozenset({"Deduplicate", "DeduplicateWithinWatermark"})
_FLOATING = frozenset({"float", "double"})


def with_normalized_keys(rows: DataFrame) -> DataFrame:
    """The same rows, with the floating keys of each de-duplication in one form below it."""
    plan = analyzed_plan(rows)
    if not _has_floating_keys(plan):
        return rows
    return rows_of_plan(rows.sparkSession, _normalized(rows.sparkSession, plan))


def _has_floating_keys(plan: JavaObject) -> bool:
    return bool(_floating_keys(plan)) or any(map(_has_floating_keys, children_of(plan)))


def _floating_keys(plan: JavaObject) -> set[int]:
    """The ids of the floating keys of a streaming de-duplication; none of another operator."""
    if plan.nodeName() not in _DEDUPLICATIONS or not plan.isStreaming():
        return set()
    keys = python_list(plan.keys())
    return {key.exprId().id() for key in keys if key.dataType().typeName() in _FLOATING}


def _normalized(spark: SparkSession, plan: JavaObject) -> JavaObject:
    children = [_normalized(spark, child) for child in children_of(plan)]
    if not (floating := _floating_keys(plan)):
        return plan.withNewChildren(scala_sequence(spark, children)) if children else plan
    (child,) = children
    logical = jvm_of(spark).org.apache.spark.sql.catalyst.plans.logical
    columns = python_list(child.output())
    # With their own ids Spark would take the projection for one that changes nothing, and drop it.
    below = [_one_form(spark, one) if one.exprId().id() in floating else one for one in columns]
    given = {one.exprId().id(): new.toAttribute() for one, new in zip(columns, below, strict=True)}
    keys = scala_sequence(spark, [given[key.exprId().id()] for key in python_list(plan.keys())])
    unique = getattr(logical, plan.nodeName())(keys, logical.Project(scala_sequence(spark, below), child))
    above = [_alias(spark, given[one.exprId().id()], one) if one.exprId().id() in floating else one for one in columns]
    return logical.Project(scala_sequence(spark, above), unique)


def _one_form(spark: SparkSession, attribute: JavaObject) -> JavaObject:
    jvm = jvm_of(spark)
    value = jvm.org.apache.spark.sql.catalyst.optimizer.NormalizeNaNAndZero(attribute)
    return _alias(spark, value, attribute, is_new=True)


def _alias(spark: SparkSession, value: JavaObject, attribute: JavaObject, *, is_new: bool = False) -> JavaObject:
    """A value under the name of a column, and its id, by which the operators above refer to it."""
    jvm = jvm_of(spark)
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    identity = (attribute.newInstance() if is_new else attribute).exprId()
    metadata = jvm.scala.Option.apply(attribute.metadata())
    return expressions.Alias(
        value, attribute.name(), identity, attribute.qualifier(), metadata, scala_sequence(spark, [])
    )
