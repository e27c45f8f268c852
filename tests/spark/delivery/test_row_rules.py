"""Row rules: counted by rule and batch, rejected once each, and the same as Great Expectations says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.ledger_rows import recent_rule_results
from tests.fixtures.workshop import Workshop

from sluice.declarations.output_declaration import IcebergOutput
from sluice.declarations.rule_declaration import ROW_KINDS, RuleDeclaration
from sluice.declarations.table_declaration import ExpectationDeclaration
from sluice.errors import DeclarationError
from sluice.ledger.batch_findings import RuleCount
from sluice.ledger.batches import PublicationKey
from sluice_spark.delivery.batch_audit import BatchAudit, RuleBrokenError
from sluice_spark.quality import evaluate
from sluice_spark.query.row_rules import counts_of, found_by_rules, marks_of, rule_problem
from sluice_spark.query.stream_outputs import unite
from sluice_spark.sinks.iceberg import IcebergTarget

ROWS: list[dict[str, Any]] = [
    {"id": 1, "price": 5, "carrier": "AA"},
    {"id": 2, "price": -1, "carrier": "AA"},
    {"id": 3, "price": None, "carrier": "XX"},
    {"id": 4, "price": -2, "carrier": None},
]
PRICE = {"name": "price_is_positive", "expression": "price > 0"}
CARRIER: dict[str, Any] = {
    "name": "known_carrier",
    "type": "expect_column_values_to_be_in_set",
    "kwargs": {"column": "carrier", "value_set": ["AA", "DL"]},
}


def declare(workshop: Workshop, *, of_table: list[dict[str, Any]], **parts: Any) -> str:
    """A stream from a table with `ROWS` into a table with rules; its name."""
    stream, columns = f"s{workshop.namespace}", {"id": "long", "price": "long", "carrier": "string"}
    source = workshop.declare_table("source", columns)
    target = workshop.declare_table("target", columns, rules=of_table)
    workshop.declare_stream(
        stream,
        **{"sql": "SELECT * FROM r", "inputs": {"r": {"stream": {"iceberg": {"table": source}}}}}
        | {"outputs": {"main": {"iceberg": {"table": target}}}}
        | parts,
    )
    workshop.append("source", ROWS)
    return stream


def test_rows_that_break_rules_are_rejected_once_with_all_their_rules(workshop: Workshop) -> None:
    stream = declare(workshop, of_table=[PRICE], rules=[CARRIER], quarantine=True)

    workshop.run(stream, is_recorded=True)

    assert [row["id"] for row in workshop.rows("target")] == [1]
    rejected = workshop.rows(f"quarantine.{stream}")
    assert sorted((row["payload"], row["kind"], row["reason"]) for row in rejected) == [
        ('{"id":2,"price":-1,"carrier":"AA"}', "rule", "the row breaks a rule: price_is_positive"),
        ('{"id":3,"carrier":"XX"}', "rule", "the row breaks a rule: price_is_positive, known_carrier"),
        ('{"id":4,"price":-2}', "rule", "the row breaks a rule: price_is_positive"),
    ]
    (result,) = recent_rule_results(workshop.ledger, table=workshop.table_name("target"))
    assert (result.stream, result.output, result.rows) == (stream, "main", 4)
    assert result.rules == {
        "price_is_positive": RuleCount(counted=4, failed=3, on_failure="quarantine", is_broken=True),
        "known_carrier": RuleCount(counted=3, failed=1, on_failure="quarantine", is_broken=True),
    }


@pytest.mark.full  # every run: a warning about a batch (`test_batch_rules.py`)
def test_a_warning_counts_and_rejects_nothing(workshop: Workshop) -> None:
    mostly = {**CARRIER, "kwargs": {**CARRIER["kwargs"], "mostly": 0.6}, "on_failure": "warn"}
    stream = declare(workshop, of_table=[{**PRICE, "on_failure": "warn"}, mostly])

    (batch, *_) = workshop.run(stream, is_recorded=True).batches

    assert (batch.published_rows, batch.refused_rows) == ({"main": 4}, 0)
    assert len(workshop.rows("target")) == 4
    (result,) = recent_rule_results(workshop.ledger, stream=stream)
    assert result.broken == ("price_is_positive",)
    assert result.rules["known_carrier"] == RuleCount(counted=3, failed=1, on_failure="warn", is_broken=False)


@pytest.mark.full  # every run: one of a batch (`test_batch_rules.py`)
def test_a_rule_that_fails_the_run_lets_nothing_be_staged(workshop: Workshop) -> None:
    stream = declare(workshop, of_table=[{**PRICE, "on_failure": "fail"}])

    with pytest.raises(RuleBrokenError, match=r"breaks price_is_positive by 3 of 4 rows of main"):
        workshop.run(stream)

    assert workshop.rows("target") == []
    assert workshop.rows(f"staging.{stream}__main") == []


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("prise > 0", "prise.* cannot be resolved"),
        ("price + 1", "a condition is true or false, and this is a bigint"),
        ("rand() > price", "another for the same row"),
        ("sum(price) > 0", "sums up several rows|aggregate"),
    ],
)
def test_a_condition_is_checked_on_the_plan(workshop: Workshop, expression: str, problem: str) -> None:
    stream = declare(workshop, of_table=[{"name": "odd", "expression": expression, "on_failure": "warn"}])

    with pytest.raises(DeclarationError, match=rf"The rule odd: .*({problem})"):
        workshop.run(stream)


@pytest.mark.parametrize("call", ["reflect('java.lang.System', 'getenv', 'HOME')", "xpath_string('<a>b</a>', 'a')"])
def test_what_the_words_of_a_condition_hide_its_plan_shows(workshop: Workshop, call: str) -> None:
    rows = workshop.spark.createDataFrame([(1, "UA")], "id long, carrier string")
    hidden = RuleDeclaration.model_construct(name="odd", expression=f"carrier = {call}", kwargs={}, type=None)

    assert (rule_problem(rows, hidden) or "").startswith("it calls ")


@pytest.mark.parametrize(
    ("column", "kind", "given", "problem"),
    [
        ("carrier", "in_set", {"value_set": [1, 2]}, "carrier is a string, and 1 is none"),
        ("price", "between", {"min_value": "low"}, "price is a bigint, and 'low' is none"),
    ],
)
def test_a_value_of_another_type_than_the_column_is_refused_before_a_batch_fails_by_it(
    workshop: Workshop, column: str, kind: str, given: dict[str, Any], problem: str
) -> None:
    rule = {"type": f"expect_column_values_to_be_{kind}", "kwargs": {"column": column, **given}}
    stream = declare(workshop, of_table=[{"name": "odd", "on_failure": "warn", **rule}])

    with pytest.raises(DeclarationError, match=problem):
        workshop.run(stream)


VALUES = [(1, None, None), (2, "", "a"), (3, "ab", None), (4, "AB", "AB"), (5, "abc", "abd"), (6, "b\nab", "a")]
AS_GREAT_EXPECTATIONS: list[tuple[str, dict[str, Any]]] = [
    ("expect_column_values_to_be_null", {"column": "a"}),
    ("expect_column_values_to_not_be_null", {"column": "a"}),
    ("expect_column_values_to_be_between", {"column": "id", "min_value": 2, "max_value": 4, "strict_max": True}),
    ("expect_column_values_to_be_between", {"column": "id", "min_value": 2, "strict_min": True}),
    ("expect_column_values_to_be_in_set", {"column": "a", "value_set": ["ab", "x"]}),
    ("expect_column_values_to_not_be_in_set", {"column": "a", "value_set": ["ab", "x"]}),
    ("expect_column_values_to_match_regex", {"column": "a", "regex": "^ab"}),
    ("expect_column_values_to_not_match_regex", {"column": "a", "regex": "b$"}),
    ("expect_column_value_lengths_to_be_between", {"column": "a", "min_value": 2, "max_value": 3}),
    ("expect_column_value_lengths_to_equal", {"column": "a", "value": 2}),
    ("expect_column_pair_values_to_be_equal", {"column_A": "a", "column_B": "b"}),
    ("expect_column_pair_values_a_to_be_greater_than_b", {"column_A": "a", "column_B": "b"}),
    ("expect_column_pair_values_a_to_be_greater_than_b", {"column_A": "a", "column_B": "b", "or_equal": True}),
]


SAID = [(5, 6), (1, 6), (4, 6), (2, 6), (4, 5), (1, 5), (3, 5), (2, 5), (2, 5), (3, 5), (4, 5), (3, 5), (2, 5)]
"""How many rows break each expectation, of how many, as Great Expectations says."""


def test_expectations_count_what_great_expectations_has_counted(spark: SparkSession) -> None:
    rows = spark.createDataFrame(VALUES, "id long, a string, b string")
    rules = [
        RuleDeclaration(name=f"rule_{place}", type=kind, kwargs=given, on_failure="warn")
        for place, (kind, given) in enumerate(AS_GREAT_EXPECTATIONS)
    ]

    marked = rows.select("*", *marks_of(rules, None))
    counted = marked.agg(*counts_of(rules)).collect()[0]
    (found,) = found_by_rules(counted, {"main": rules}, judged={"main": len(VALUES)}).values()

    assert {one for one, _ in AS_GREAT_EXPECTATIONS} == set(ROW_KINDS)
    assert [(one.failed, one.counted) for one in found.values()] == SAID


@pytest.mark.full  # every run has what it has said, without the library
@pytest.mark.filterwarnings("ignore")  # Great Expectations, imported here first, warns of its own modules
def test_great_expectations_counts_as_it_has_counted(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.createDataFrame(VALUES, "id long, a string, b string")
    wanted = [ExpectationDeclaration(type=kind, kwargs=given) for kind, given in AS_GREAT_EXPECTATIONS]

    said = evaluate(rows, wanted, suite="rules", run="rules", pages=tmp_path)

    assert [one.unexpected_rows for one in said] == [failed for failed, _ in SAID]
    shares = [one.unexpected_percent for one in said]
    assert [100 * failed / counted for failed, counted in SAID] == pytest.approx(shares)


def test_rows_that_hold_a_batch_are_kept_without_masked_columns(spark: SparkSession) -> None:
    held = {
        "later": "a < b",
        "is_public": "secret IS NULL",
        "is_public_within": "person.SECRET IS NULL",
        "of_another_stream": "mail IS NULL",
        "is_ever": "current_date() < DATE'2000-01-01'",
    }
    rules = [RuleDeclaration(name=name, expression=text, on_failure="hold") for name, text in held.items()]
    rules += [RuleDeclaration(name="counted", expression="a < b", on_failure="warn")]
    rows = spark.sql(
        "SELECT *, 's' secret, named_struct('secret', 's') person, 'm' mail "
        "FROM VALUES (1BD, 2), (12345678901234567890.12BD, 2), (4BD, NULL) AS t(a, b)"
    )
    kept = unite({"main": rows}, marks={"main": marks_of(rules, None)})
    audit = BatchAudit(rules={"main": rules}, masked={"secret"}, masked_of=lambda table: {"n.target": ["mail"]}[table])
    counted = kept.agg(*audit.aggregates(kept)).collect()[0]
    target = IcebergTarget(stream="s", output="main", declared=IcebergOutput(table="n.target"), catalog="c")
    found = audit.of_rows(counted, kept, PublicationKey(stream="s", generation=1, batch=0), (target,))

    (result,) = audit.with_samples(kept, found).values()

    assert all(one.failed for one in result.rules.values())
    later = ['{"a":12345678901234567890.12,"b":2}', '{"a":4.00,"b":null}']
    assert json.loads(result.rules["later"].observed or "") == later
    assert {name for name, one in result.rules.items() if one.observed is not None} == {"later"}
