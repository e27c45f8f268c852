"""Asks Spark's own analysis whether a stream can run, before anything is started."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import DeclarationError
from sluice_spark.session.jvm import jvm_of
from sluice_spark.session.spark_errors import first_line

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

STATEFUL_NODES = frozenset(
    {
        "Aggregate",
        "Deduplicate",
        "DeduplicateWithinWatermark",
        "Distinct",
        "FlatMapGroupsWithState",
        "FlatMapGroupsInPandasWithState",
        "TransformWithState",
        "TransformWithStateInPySpark",
        "TransformWithStateInPandas",
    }
)
"""The operators that keep state when their rows arrive."""


def require_runnable(rows: DataFrame, stream: LoadedStream) -> None:
    """See that Spark can run the rows as a streaming query with the stream's trigger and output mode.

    Raises
    ------
    DeclarationError: with Spark's reason, at the place of the transformation.

    Source: `org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker`, which every start of a query asks.
    """
    jvm = jvm_of(rows.sparkSession)
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    declaration = stream.declaration
    word = next(iter(declaration.outputs.values())).mode
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, word.capitalize())()
    plan = rows._jdf.queryExecution().analyzed()
    try:
        checker.checkForStreaming(plan, mode)
        if declaration.trigger is not None and declaration.trigger.continuous_processing is not None:
            checker.checkForContinuous(plan, mode)
    except AnalysisException as error:
        raise _refused(stream, f"in the output mode `{word}` Spark refuses the plan: {_reason(error)}") from error
    if declaration.hands_on_records and (kept := stateful_operators(rows)):
        raise _refused(stream, f"a trigger that hands records on one by one keeps no state, got {', '.join(kept)}")


def stateful_operators(rows: DataFrame) -> tuple[str, ...]:
    """The operators of a streaming query that keep state from batch to batch, in Spark's words."""
    return tuple(_stateful(rows._jdf.queryExecution().analyzed()))


def _stateful(plan: JavaObject) -> Iterator[str]:
    children = [plan.children().apply(index) for index in range(plan.children().size())]
    is_join_of_streams = plan.nodeName() == "Join" and all(child.isStreaming() for child in children)
    if is_join_of_streams or (plan.nodeName() in STATEFUL_NODES and plan.isStreaming()):
        yield plan.nodeName()
    for child in children:
        yield from _stateful(child)


def _reason(error: AnalysisException) -> str:
    """Spark's sentence, without the plan that it prints below."""
    return first_line(error).rstrip(".;")


def _refused(stream: LoadedStream, problem: str) -> DeclarationError:
    language = "sql" if stream.declaration.transformation.function is None else "python"
    return DeclarationError(
        f"`transformation.{language}`: {problem}.", location=stream.location(("transformation", language))
    )
