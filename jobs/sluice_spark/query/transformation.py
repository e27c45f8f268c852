"""Runs the transformation of a stream: a Python function or an SQL query beside the declaration."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession

from sluice.declarations.declaration_files import LARGEST_CODE_BYTES, UnreadableFileError, read_bounded
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.sql_text import query_problem
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.errors import DeclarationError
from sluice_spark.query.known_text import with_true_marks
from sluice_spark.query.logical_plan import inline_ctes, is_query
from sluice_spark.query.query_reach import reach_problem
from sluice_spark.session.columns import with_unknown_reasons
from sluice_spark.session.jvm import first_line
from sluice_spark.session.user_code import load_function


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
        raise _wrong(stream, f"Spark refuses it: {first_line(error)}") from error
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
        raise _wrong(stream, f"{stream.transformation_file} {problem}")
    rows = spark.sql(text)
    if (problem := reach_problem(rows, inputs)) is not None:
        raise _wrong(stream, f"{stream.transformation_file} {problem}")
    return rows


def _named_outputs(stream: LoadedStream, result: object) -> dict[str, DataFrame]:
    declaration = stream.declaration
    refused = [QUARANTINE_OUTPUT] if declaration.quarantine else []
    # Where the platform refuses rows itself, the transformation may have none to refuse.
    wanted = [*declaration.outputs, *([] if stream.refuses_by_itself else refused)]
    known = [*declaration.outputs, *refused]
    if isinstance(result, DataFrame):
        if len(wanted) > 1:
            raise _wrong(stream, f"it returns one DataFrame, and the stream has the outputs {_listed(wanted)}")
        return {wanted[0]: result}
    if not isinstance(result, Mapping):
        raise _wrong(stream, f"it returns {type(result).__name__}; a DataFrame or a mapping of them is wanted")
    if missing := [name for name in wanted if name not in result]:
        raise _wrong(stream, f"it returns no {_listed(missing)}; it returns {_listed(list(result))}")
    if unknown := [name for name in result if name not in known]:
        hint = "; write `quarantine: true` to keep what it refuses" if unknown == [QUARANTINE_OUTPUT] else ""
        raise _wrong(stream, f"it returns {_listed(unknown)}, and declared are {_listed(wanted)}{hint}")
    if other := [name for name in known if name in result and not isinstance(result[name], DataFrame)]:
        raise _wrong(stream, f"its output {_listed(other)} is not a DataFrame")
    return {name: result[name] for name in known if name in result}


def _listed(names: Collection[object]) -> str:
    return ", ".join(str(name) for name in names) or "nothing"


def _wrong(stream: LoadedStream, problem: str) -> DeclarationError:
    language = "sql" if stream.declaration.transformation.function is None else "python"
    return DeclarationError(
        f"`transformation.{language}`: {problem}.", location=stream.location(("transformation", language))
    )
