"""Row rules as columns: which rules each row of an output breaks, as one number that is computed with the row.

A rule is true, false or null for a row: met, broken, or not counted. What a rule of Great Expectations does with a null
is what Great Expectations itself does on Spark; an SQL condition is broken by null. A row that a change feed deletes
breaks no rule: what it has beside its key does not become visible.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from functools import reduce
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as fn
from pyspark.sql.types import NumericType, StringType

from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.output_declaration import IcebergOutput, OperationsDeclaration
from sluice.declarations.rule_declaration import RuleDeclaration, row_rules
from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.errors import DeclarationError
from sluice.ledger.batch_findings import MAX_REJECTED, RuleCount
from sluice.record_values.rejection import RejectionKind
from sluice_spark.query.logical_plan import analyzed_plan, problem_of, python_list
from sluice_spark.session.columns import quoted, rejection_of
from sluice_spark.session.jvm import first_line, jvm_of

if TYPE_CHECKING:
    from py4j.java_gateway import JavaObject

FAILED, IGNORED = "_sluice_failed", "_sluice_ignored"
"""The columns beside the rows of an output: a bit for each rule that a row breaks, and for each that does not count it.
The bit of a rule is its place among the rules of the output."""

_UNFIT = {
    "SubqueryExpression": "asks another table",
    "aggregate.AggregateExpression": "sums up several rows",
    "WindowExpression": "looks at other rows",
    "Generator": "makes several rows of one",
    "PythonUDF": "calls a function of Python",
    "ScalaUDF": "calls a function of the session",
}
"""What is no condition on a row alone, by its class in Spark's analysed plan."""


def no_marks() -> tuple[Column, Column]:
    """The marks of a row without rules."""
    zero = fn.lit(0).cast("long")
    return zero.alias(FAILED), zero.alias(IGNORED)


def marks_of(rules: Sequence[RuleDeclaration], declared: IcebergOutput | None) -> tuple[Column, Column]:
    """`FAILED` and `IGNORED` of the rows of an output.

    Parameters
    ----------
    declared: the output, when it is an Iceberg table.
    """
    zero, verdicts = fn.lit(0).cast("long"), [_verdict(rule, declared) for rule in rules]
    bits = [fn.lit(1 << place).cast("long") for place in range(len(rules))]
    failed = [fn.when(~verdict, bit).otherwise(zero) for verdict, bit in zip(verdicts, bits, strict=True)]
    not_counted = [
        fn.when(verdict.isNull(), bit).otherwise(zero)
        for rule, verdict, bit in zip(rules, verdicts, bits, strict=True)
        if rule.expression is None or _is_feed(declared)
    ]
    return reduce(Column.bitwiseOR, failed).alias(FAILED), reduce(Column.bitwiseOR, not_counted, zero).alias(IGNORED)


def is_marked() -> Column:
    """Whether a row breaks a rule, or does not count for one. Other rows add nothing to `counts_of`."""
    return fn.col(FAILED).bitwiseOR(fn.col(IGNORED)) != 0


def counts_of(rules: Sequence[RuleDeclaration], *, of: Column | None = None) -> list[Column]:
    """Aggregates over the rows of an output: for each rule how many break it, how many do not count, and for one that
    holds how many break it and are rejected by another one.

    Parameters
    ----------
    of: which rows they are, where others are judged beside them.
    """
    failed, ignored, rejected = fn.col(FAILED), fn.col(IGNORED), is_rejected(rules)
    each = [one for at in range(len(rules)) for one in (_has(failed, at), _has(ignored, at))]
    each += [_has(failed, at) & rejected for at, rule in enumerate(rules) if _may_be_rejected_besides(rule, rules)]
    return [fn.count_if(one if of is None else of & one) for one in each]


def _may_be_rejected_besides(rule: RuleDeclaration, rules: Sequence[RuleDeclaration]) -> bool:
    return rule.on_failure == "hold" and rejects(rules)


def found_by_rules(
    counted: Iterable[int], rules: Mapping[str, Sequence[RuleDeclaration]], *, judged: Mapping[str, int]
) -> dict[str, dict[str, RuleCount]]:
    """What each rule of each output found.

    Parameters
    ----------
    counted: the aggregates of `counts_of`, of all outputs. judged: the number of rows, by output.
    """
    left, found = iter(counted), dict[str, dict[str, RuleCount]]()
    for output, declared in rules.items():
        rows, counts = judged[output], dict[str, RuleCount]()
        marked = [(rule, next(left), next(left)) for rule in declared]
        rejected = {rule.name: next(left) for rule in declared if _may_be_rejected_besides(rule, declared)}
        for rule, failed, ignored in marked:
            is_broken = rule.is_broken_by(counted=rows - ignored, failed=failed)
            counts[rule.name] = RuleCount(
                counted=rows - ignored,
                failed=failed,
                on_failure=rule.on_failure,
                is_broken=is_broken,
                condition=rule.condition_digest,
                rejected=rejected.get(rule.name) or None,
            )
        found[output] = counts
    return found


def broken_rules(found: Mapping[str, Mapping[str, RuleCount]], *actions: str) -> str:
    """The rules with one of these actions that are broken, with their counts, for a sentence; empty without any."""
    return "; ".join(
        _broken(name, one, output)
        for output, rules in found.items()
        for name, one in rules.items()
        if one.is_broken and one.on_failure in actions
    )


def _broken(name: str, found: RuleCount, output: str) -> str:
    if name == MAX_REJECTED and output == QUARANTINE_OUTPUT:
        return f"{name} by {found.failed:,} rejected rows of {found.counted:,} {found.observed}"
    if found.failed:
        return f"{name} by {found.failed:,} of {found.counted:,} rows of {output}"
    return f"{name} with {found.counted:,} rows of {output}"


def rejects(rules: Sequence[RuleDeclaration]) -> bool:
    """Whether a row can be rejected by these rules."""
    return any(rule.on_failure == "quarantine" for rule in rules)


def breaks(place: int) -> Column:
    """Whether a row breaks the rule in a place among the rules of its output."""
    return _has(fn.col(FAILED), place)


def columns_of(rows: DataFrame, rule: RuleDeclaration) -> tuple[str, ...]:
    """The columns of the rows of an output that a row rule looks at."""
    condition = _condition(rule) if rule.expression is None else fn.expr(rule.expression)
    (expression,) = python_list(analyzed_plan(rows.select(condition)).expressions())
    return tuple(sorted(one.name() for one in python_list(expression.references().toSeq())))


def is_rejected(rules: Sequence[RuleDeclaration]) -> Column:
    """Whether a row goes to the quarantine."""
    mask = sum(1 << place for place, rule in enumerate(rules) if rule.on_failure == "quarantine")
    return fn.col(FAILED).bitwiseAND(fn.lit(mask).cast("long")) != 0


def rejection(rules: Sequence[RuleDeclaration]) -> Mapping[str, Column]:
    """Why a row is rejected, as the columns of a `REJECTION_ROW`: the names of all rules that it breaks."""
    failed = fn.col(FAILED)
    names = fn.concat_ws(", ", *(fn.when(_has(failed, place), fn.lit(one.name)) for place, one in enumerate(rules)))
    return rejection_of(RejectionKind.RULE, path="", detail=names, quotes_data=False)


def require_rules(stream: LoadedStream, output: str, rows: DataFrame) -> None:
    """Check the row rules of an output on the plan that Spark makes of them.

    Raises
    ------
    DeclarationError: at the rule, with Spark's reason.
    """
    rules = row_rules(stream.rules).get(output, ())
    require_each(stream, output, rules, lambda rule: rule_problem(rows, rule))


def require_each(
    stream: LoadedStream,
    output: str,
    rules: Iterable[RuleDeclaration],
    problem_of: Callable[[RuleDeclaration], str | None],
) -> None:
    """Check rules of an output one by one.

    Raises
    ------
    DeclarationError: at the rule, with Spark's reason.
    """
    for rule in rules:
        try:
            problem = problem_of(rule)
        except (PySparkException, Py4JJavaError) as error:
            problem = f"Spark refuses it: {first_line(error)}"
        if problem is not None:
            own = stream.declaration.rules
            place = ("rules", own.index(rule)) if rule in own else ("outputs", output)
            raise DeclarationError(f"The rule {rule.name}: {problem}.", location=stream.location(place))


def rule_problem(rows: DataFrame, rule: RuleDeclaration) -> str | None:
    """Why a rule is no condition on a row alone, as Spark analyses it; none when it is one.

    Raises
    ------
    PySparkException, Py4JJavaError: when Spark refuses it.
    """
    if "regex" in rule.kwargs:
        jvm_of(rows.sparkSession).java.util.regex.Pattern.compile(rule.kwargs["regex"])
    selected = rows.select((_condition(rule) if rule.expression is None else fn.expr(rule.expression)).alias("met"))
    if (kind := selected.schema["met"].dataType.simpleString()) != "boolean":
        return f"a condition is true or false, and this is a {kind}"
    if (problem := _unfit_value(rows, rule)) is not None:
        return problem
    (expression,) = python_list(analyzed_plan(selected).expressions())
    if (reach := problem_of(json.loads(expression.toJSON()), ())) is not None:
        return f"it {reach}"
    if not expression.deterministic():
        return "it may be another for the same row: `rand()` and the like are no condition on a row"
    return next((f"it {what}" for name, what in _UNFIT.items() if _holds(expression, name)), None)


def _unfit_value(rows: DataFrame, rule: RuleDeclaration) -> str | None:
    """A value that is no value of the column: Spark converts one of the two, and ends the batch where it cannot."""
    if rule.type not in _COMPARED:
        return None
    kind = rows.select(quoted(rule.kwargs["column"])).schema[0].dataType
    given = [*rule.kwargs.get("value_set", ()), rule.kwargs.get("min_value"), rule.kwargs.get("max_value")]
    for value in (one for one in given if one is not None):
        is_text = isinstance(kind, StringType)
        if (is_text and not isinstance(value, str)) or (isinstance(kind, NumericType) and not _is_number(value)):
            return f"{rule.kwargs['column']} is a {kind.simpleString()}, and {value!r} is none"
    return None


def _is_number(value: object) -> bool:
    try:
        Decimal(str(value))
    except InvalidOperation:
        return False
    return True


def _holds(expression: JavaObject, name: str) -> bool:
    is_one = any(kind.getName().endswith(f"expressions.{name}") for kind in _kinds(expression.getClass()))
    return is_one or any(_holds(child, name) for child in python_list(expression.children()))


def _kinds(kind: JavaObject | None) -> list[JavaObject]:
    """A class, its superclasses and all of their interfaces."""
    if kind is None:
        return []
    return [kind, *(one for part in kind.getInterfaces() for one in _kinds(part)), *_kinds(kind.getSuperclass())]


def _has(marks: Column, place: int) -> Column:
    return marks.bitwiseAND(fn.lit(1 << place).cast("long")) != 0


def _is_feed(declared: IcebergOutput | None) -> bool:
    return declared is not None and declared.operation_column is not None


def _verdict(rule: RuleDeclaration, declared: IcebergOutput | None) -> Column:
    """True, false, or null for a row that does not count."""
    met = _condition(rule) if rule.expression is None else fn.coalesce(fn.expr(rule.expression), fn.lit(False))
    if declared is None or declared.operation_column is None:
        return met
    deletes = (declared.operations or OperationsDeclaration()).delete
    is_deleted = fn.coalesce(fn.col(quoted(declared.operation_column)).isin(*deletes), fn.lit(False))
    return fn.when(~is_deleted, met)


def _condition(rule: RuleDeclaration) -> Column:
    """An expectation as Great Expectations evaluates it on Spark; null for a row that does not count."""
    given, columns = rule.kwargs, [fn.col(quoted(name)) for _, name in rule.columns]
    if (of_one := _OF_ONE_COLUMN.get(rule.type or "")) is not None:
        return of_one(columns[0], given)
    first, second = columns
    is_counted = first.isNotNull() | second.isNotNull()
    if rule.type == "expect_column_pair_values_to_be_equal":
        return fn.when(is_counted, first.eqNullSafe(second))
    is_greater = first >= second if given.get("or_equal") else first > second
    return fn.when(is_counted, fn.coalesce(is_greater, fn.lit(True)))


def between(value: Column, given: Mapping[str, Any]) -> Column:
    """Whether a value is within `min_value` and `max_value`, of which one at least is given."""
    lowest, highest = given.get("min_value"), given.get("max_value")
    bounds = []
    if lowest is not None:
        bounds.append(value > fn.lit(lowest) if given.get("strict_min") else value >= fn.lit(lowest))
    if highest is not None:
        bounds.append(value < fn.lit(highest) if given.get("strict_max") else value <= fn.lit(highest))
    return reduce(Column.__and__, bounds)


_COMPARED = frozenset(
    {
        "expect_column_values_to_be_between",
        "expect_column_values_to_be_in_set",
        "expect_column_values_to_not_be_in_set",
    }
)
"""The expectations that compare the column with the values of their arguments."""

_OF_ONE_COLUMN: Mapping[str, Callable[[Column, Mapping[str, Any]], Column]] = {
    "expect_column_values_to_be_null": lambda value, _: value.isNull(),
    "expect_column_values_to_not_be_null": lambda value, _: value.isNotNull(),
    "expect_column_values_to_be_between": between,
    "expect_column_values_to_be_in_set": lambda value, given: value.isin(*given["value_set"]),
    "expect_column_values_to_not_be_in_set": lambda value, given: ~value.isin(*given["value_set"]),
    "expect_column_values_to_match_regex": lambda value, given: value.rlike(given["regex"]),
    "expect_column_values_to_not_match_regex": lambda value, given: ~value.rlike(given["regex"]),
    "expect_column_value_lengths_to_be_between": lambda value, given: between(fn.length(value), given),
    "expect_column_value_lengths_to_equal": lambda value, given: fn.length(value) == given["value"],
}
