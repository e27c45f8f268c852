"""Checks with Spark's own analysis that a stream can run, before anything is started."""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import DeclarationError
from sluice_spark.query.logical_plan import analyzed_plan
from sluice_spark.query.state_operators import stateful_operators
from sluice_spark.session.jvm import first_line, jvm_of


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
        raise _refused(stream, f"in the output mode `{word}` Spark refuses the plan: {_reason(error)}") from error
    if declaration.hands_on_records and (kept := stateful_operators(rows)):
        raise _refused(stream, f"a trigger that hands records on one by one keeps no state, got {', '.join(kept)}")


def _reason(error: AnalysisException) -> str:
    """Spark's sentence, without the plan that it prints below."""
    return first_line(error).rstrip(".;")


def _refused(stream: LoadedStream, problem: str) -> DeclarationError:
    language = "sql" if stream.declaration.transformation.function is None else "python"
    return DeclarationError(
        f"`transformation.{language}`: {problem}.", location=stream.location(("transformation", language))
    )
