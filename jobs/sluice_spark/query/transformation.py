"""Runs the transformation of a stream: a Python function or an SQL query beside the declaration.

Its outputs say which of their text needs no look at whether it is UTF-8: that of values which were decoded strictly,
where the transformation passes them on as they are. To look at each text of each row takes Spark a quarter of the time
in which it plans a small batch, and a few hundredths of the processor time of its rows. Decision 0112 says why and how.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn

from sluice.declarations.declaration_files import LARGEST_CODE_BYTES, UnreadableFileError, read_bounded
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.sql_text import query_problem
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.errors import DeclarationError
from sluice_spark.query.logical_plan import (
    analyzed_plan,
    children_of,
    inline_ctes,
    is_query,
    python_list,
    reach_problem,
)
from sluice_spark.session.columns import quoted, with_unknown_reasons
from sluice_spark.session.jvm import first_line
from sluice_spark.session.user_code import load_function
from sluice_spark.session.valid_text import KNOWN_VALID
from sluice_spark.sources.input_decoding import DECODED

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject


def transform(spark: SparkSession, stream: LoadedStream, inputs: Mapping[str, DataFrame]) -> dict[str, DataFrame]:
    """Apply the stream's transformation to its inputs.

    Parameters
    ----------
    spark: the session of the inputs; SQL sees the inputs as temporary views of it.
    stream: the declaration and where it lies.
    inputs: a DataFrame for each declared input, streaming or static.

    Returns
    -------
    A DataFrame for each declared output, and one called `quarantine` when the stream has a quarantine.

    Raises
    ------
    DeclarationError: when the file cannot be loaded, or the result does not fit the declared outputs.
    """
    reference = stream.declaration.transformation.python
    try:
        if reference is None:
            result: object = _run_sql(spark, stream, inputs)
        else:
            path = ("transformation", "python")
            result = load_function(stream, reference, path=path, role="transformation")(**inputs)
    except AnalysisException as error:
        raise refused(stream, f"Spark refuses it: {first_line(error)}") from error
    sinks = {name for name, declared in stream.declaration.outputs.items() if declared.iceberg is None}
    outputs = {
        name: with_true_marks(inline_ctes(rows), goes_into_table=name not in sinks)
        for name, rows in _named_outputs(stream, result).items()
    }
    own = {name: with_unknown_reasons(rows) for name, rows in outputs.items() if name == QUARANTINE_OUTPUT}
    return outputs | own


def _run_sql(spark: SparkSession, stream: LoadedStream, inputs: Mapping[str, DataFrame]) -> DataFrame:
    for name, rows in inputs.items():
        rows.createOrReplaceTempView(name)
    try:
        text = read_bounded(stream.transformation_file, most_bytes=LARGEST_CODE_BYTES).decode("utf-8-sig")
        problem = query_problem(text)
        if problem is None and not is_query(spark, text):
            problem = "is a command: a transformation is one SELECT"
    except ParseException as error:
        problem = f"is not a query: {error.getMessage()}"
    except UnreadableFileError as error:
        problem = f"cannot be used: {error}"
    except UnicodeDecodeError:
        problem = "is not UTF-8 text"
    if problem is not None:
        raise refused(stream, f"{stream.transformation_file} {problem}")
    rows = spark.sql(text)
    if (problem := reach_problem(rows, inputs)) is not None:
        raise refused(stream, f"{stream.transformation_file} {problem}")
    return rows


def _named_outputs(stream: LoadedStream, result: object) -> dict[str, DataFrame]:
    declaration = stream.declaration
    own = [QUARANTINE_OUTPUT] if declaration.quarantine else []
    # Where the platform refuses rows itself, the transformation may have none to refuse.
    wanted = [*declaration.outputs, *([] if stream.refuses_by_itself else own)]
    known = [*declaration.outputs, *own]
    if isinstance(result, DataFrame):
        if len(wanted) > 1:
            raise refused(stream, f"it returns one DataFrame, and the stream has the outputs {_listed(wanted)}")
        return {wanted[0]: result}
    if not isinstance(result, Mapping):
        raise refused(stream, f"it returns {type(result).__name__}; a DataFrame or a mapping of them is wanted")
    if missing := [name for name in wanted if name not in result]:
        raise refused(stream, f"it returns no {_listed(missing)}; it returns {_listed(list(result))}")
    if unknown := [name for name in result if name not in known]:
        hint = "; write `quarantine: true` to keep what it refuses" if unknown == [QUARANTINE_OUTPUT] else ""
        raise refused(stream, f"it returns {_listed(unknown)}, and declared are {_listed(wanted)}{hint}")
    if other := [name for name in known if name in result and not isinstance(result[name], DataFrame)]:
        raise refused(stream, f"its output {_listed(other)} is not a DataFrame")
    return {name: result[name] for name in known if name in result}


def _listed(names: Collection[object]) -> str:
    return ", ".join(str(name) for name in names) or "nothing"


def refused(stream: LoadedStream, problem: str) -> DeclarationError:
    """The error of a transformation, at its place. problem: the end of a sentence about it."""
    language = "sql" if stream.declaration.transformation.function is None else "python"
    return DeclarationError(
        f"`transformation.{language}`: {problem}.", location=stream.location(("transformation", language))
    )


_PASSING = frozenset(
    {"Project", "Filter", "SubqueryAlias", "View", "CollectMetrics", "EventTimeWatermark", "Join", "Aggregate"}
    | {"Deduplicate", "DeduplicateWithinWatermark", "Distinct", "Sort", "Window", "Generate", "ResolvedHint"}
)
"""The operators whose columns are those below them, or computed by expressions that stand in them."""

_NAMED = frozenset({"AttributeReference", "Alias"})
(_KEY,) = KNOWN_VALID


def with_true_marks(rows: DataFrame, *, goes_into_table: bool) -> DataFrame:
    """The same rows. No column is marked as one of known text whose values may come from somewhere else.

    Parameters
    ----------
    rows: an output, as the transformation returns it.
    goes_into_table: whether it is staged. Spark writes the marks into the files of a sink, for every reader of those.
    """
    if not any(_KEY in field.metadata for field in rows.schema):
        return rows
    return rows if goes_into_table and _keeps_marks_true(analyzed_plan(rows)) else _without_marks(rows)


def _without_marks(rows: DataFrame) -> DataFrame:
    others = {one.name: {key: value for key, value in one.metadata.items() if key != _KEY} for one in rows.schema}
    return rows.select(*(fn.col(quoted(name)).alias(name, metadata=rest) for name, rest in others.items()))


def _keeps_marks_true(plan: JavaObject) -> bool:
    """Whether a mark on a column of a plan says what is true of its values."""
    children = children_of(plan)
    if not children:
        return _KEY not in plan.schema().json()
    if plan.nodeName() not in _PASSING or not all(map(_keeps_marks_true, children)):
        return False
    named = [one for one in python_list(plan.expressions()) if one.nodeName() in _NAMED]
    if any(map(_takes_the_name, named)):
        return False
    marked = list(filter(_is_marked, named))
    below = {one.exprId() for child in children for one in python_list(child.output()) if marked and _is_marked(one)}
    return all(_is_decoded(one) or _source_of(one) in below for one in marked)


def _is_marked(named: JavaObject) -> bool:
    return bool(named.metadata().contains(_KEY))


def _takes_the_name(named: JavaObject) -> bool:
    """Whether something else than a decoder's function has the name of a value that is decoded."""
    return bool(named.name() == DECODED and named.nodeName() == "Alias" and named.child().nodeName() != "PythonUDF")


def _source_of(named: JavaObject) -> JavaObject | None:
    """The id of the column that an expression passes on; none when it computes something."""
    passed = named.child() if named.nodeName() == "Alias" else named
    return passed.exprId() if passed.nodeName() == "AttributeReference" else None


def _is_decoded(named: JavaObject) -> bool:
    """Whether it takes a field out of a value that was just decoded."""
    taken = named.child() if named.nodeName() == "Alias" else named
    if taken.nodeName() != "GetStructField" or taken.child().nodeName() != "AttributeReference":
        return False
    return bool(taken.child().name() == DECODED)
