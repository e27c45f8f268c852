"""Batch rules: judged before anything is staged, counted by rule and batch, and the same as Great Expectations says."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as fn
from tests.fixtures.faulty_drivers import declare_lost
from tests.fixtures.ledger_rows import recent_rule_results
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop

from sluice.declarations.rule_declaration import BATCH_KINDS, RuleDeclaration
from sluice.errors import DeclarationError
from sluice.ledger.batch_findings import RuleCount
from sluice.ledger.held_batches import find_held
from sluice.operations import OperationVerb
from sluice.publication.crash_points import CrashPoint
from sluice.publication.held_decisions import decide, plan_decision
from sluice_spark.delivery.batch_audit import RuleBrokenError
from sluice_spark.quality import import_great_expectations
from sluice_spark.query.batch_conditions import judge_batch

COLUMNS = {"id": "long", "price": "double", "carrier": "string", "at": "timestamptz"}
NOW = datetime.now(UTC)


def row(number: int, *, price: float | None = 5.0, carrier: str | None = "AA", age: int = 1) -> dict[str, Any]:
    """A row. age: of its time, in hours."""
    return {"id": number, "price": price, "carrier": carrier, "at": NOW - timedelta(hours=age)}


def rule(name: str, kind: str, on_failure: str = "warn", **kwargs: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "kwargs": kwargs, "on_failure": on_failure}


EVERY: list[dict[str, Any]] = [
    rule("enough", "expect_table_row_count_to_be_between", min_value=5),
    rule("once", "expect_column_values_to_be_unique", column="id"),
    rule("mostly_once", "expect_compound_columns_to_be_unique", column_list=["id", "carrier"], mostly=0.5),
    rule("usual", "expect_column_mean_to_be_between", column="price", max_value=100),
    rule("fresh", "column_to_be_fresh", column="at", within="2 hours"),
    rule("known", "column_values_to_exist_in_table", column="carrier", table="", table_column="code"),
]


def declare(
    workshop: Workshop, rules: list[dict[str, Any]], *, output: dict[str, Any] | None = None, sql: str = ""
) -> str:
    """A stream of a batch for each snapshot of its source, into a table with rules; its name."""
    stream, known = f"s{workshop.namespace}", workshop.declare_table("known", {"code": "string"})
    of_table = [
        one | {"kwargs": one["kwargs"] | {"table": known}} if "table" in one["kwargs"] else one for one in rules
    ]
    source = workshop.declare_table("source", COLUMNS)
    target = workshop.declare_table("target", COLUMNS, rules=of_table)
    workshop.append("known", [{"code": "AA"}, {"code": "DL"}])
    workshop.declare_stream(
        stream,
        sql=sql or "SELECT * FROM r",
        inputs={"r": {"stream": {"iceberg": {"table": source, "max_files_per_batch": 1}}}},
        outputs={"main": {"iceberg": {"table": target} | (output or {})}},
    )
    return stream


def found_in(workshop: Workshop, stream: str, batch: int) -> dict[str, tuple[int, int, bool]]:
    (result,) = [one for one in recent_rule_results(workshop.ledger, stream=stream) if one.batch == batch]
    return {name: (one.counted, one.failed, one.is_broken) for name, one in result.rules.items()}


def ids(workshop: Workshop) -> list[int]:
    return [one["id"] for one in workshop.rows("target")]


def test_each_rule_is_counted_in_each_batch(workshop: Workshop) -> None:
    stream = declare(workshop, EVERY)
    workshop.append("source", [row(1), row(1, carrier="XX"), row(2, price=None, carrier=None), row(3, price=400)])
    workshop.append("source", [row(number, age=3) for number in range(10, 15)])

    workshop.run(stream, is_recorded=True)

    assert len(workshop.rows("target")) == 9, "a warning holds nothing back"
    assert found_in(workshop, stream, 0) == {
        "enough": (4, 0, True),
        "once": (4, 2, True),
        "mostly_once": (4, 0, False),
        "usual": (4, 0, True),
        "fresh": (4, 0, False),
        "known": (3, 1, True),
    }
    assert [name for name, (*_, is_broken) in found_in(workshop, stream, 1).items() if is_broken] == ["fresh"]
    (first,) = [one for one in recent_rule_results(workshop.ledger, stream=stream) if one.batch == 0]
    assert first.rules["usual"].observed == "136.66666666666666"


def test_a_rule_that_fails_the_run_lets_nothing_be_staged(workshop: Workshop) -> None:
    stream = declare(workshop, [{**EVERY[1], "on_failure": "fail"}])
    workshop.append("source", [row(1), row(1)])

    with pytest.raises(RuleBrokenError, match=r"breaks once by 2 of 2 rows of main"):
        workshop.run(stream)

    assert workshop.rows(f"staging.{stream}__main") == []


@pytest.mark.parametrize("point", [CrashPoint.STAGED, pytest.param(CrashPoint.HELD, marks=pytest.mark.full)])
def test_a_crash_publishes_nothing_of_a_batch_that_a_rule_holds(workshop: Workshop, point: CrashPoint) -> None:
    stream = declare(workshop, [{**EVERY[0], "on_failure": "hold"}])
    workshop.append("source", [row(1)])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(point))
    declare_lost(workshop, stream)

    workshop.run(stream, is_recorded=True)

    assert ids(workshop) == []
    held = find_held(workshop.ledger, stream)
    assert held is not None
    assert held.reason == "enough with 1 rows of main"
    plan = plan_decision(workshop.ledger, workshop.stream(stream), OperationVerb.RELEASE_BATCH)
    decide(workshop.ledger, plan, requested_by="a test", planned=plan.digest)
    workshop.run(stream, is_recorded=True)
    assert ids(workshop) == [1]
    assert found_in(workshop, stream, 0) == {"enough": (1, 0, True)}


@pytest.mark.full  # every run judges batches that are appended
def test_a_batch_is_judged_as_it_is_staged(workshop: Workshop) -> None:
    """Of a merge one row for each key, without those that are deleted."""
    rules = [EVERY[1], rule("enough", "expect_table_row_count_to_equal", value=2)]
    merge = {"mode": "merge", "keys": ["id"], "ordering_column": "at", "operation_column": "op"}
    stream = declare(workshop, rules, output=merge, sql="SELECT *, IF(id = 9, 'd', 'u') AS op FROM r")
    workshop.append("source", [row(1, age=2), row(1, age=1), row(2), row(9)])

    workshop.run(stream, is_recorded=True)

    assert found_in(workshop, stream, 0) == {"once": (2, 0, False), "enough": (2, 0, False)}


def test_a_table_that_is_not_there_is_found_on_the_plan(workshop: Workshop) -> None:
    stream = declare(workshop, [EVERY[5]])
    workshop.append("source", [row(1)])
    workshop.catalog.drop_table(workshop.table_name("known"))

    with pytest.raises(DeclarationError, match=r"The rule known: Spark refuses it: .*known.* cannot be found"):
        workshop.run(stream)


NAN = float("nan")
VALUES = [
    (1, "a", None, None, 1.5, None, "2024-01-01"),
    (1, "b", None, "x", 2.5, None, None),
    (2, None, 7, "x", NAN, None, "2024-01-03"),
    (3, "c", 9, "y", 10.0, None, "2024-01-02"),
    (None, None, 9, "y", 4.0, None, None),
]
SCHEMA = "id long, word string, few int, pair string, price double, nothing double, at string"
QUANTILES = {"quantiles": [0.1, 0.5, 0.9], "value_ranges": [[1, 1], [None, 2], [2.9999, None]]}
AS_GREAT_EXPECTATIONS: list[tuple[str, dict[str, Any]]] = [
    ("expect_table_row_count_to_be_between", {"min_value": 5, "max_value": 5}),
    ("expect_table_row_count_to_be_between", {"min_value": 5, "strict_min": True}),
    ("expect_table_row_count_to_equal", {"value": 5}),
    ("expect_column_values_to_be_unique", {"column": "id"}),
    ("expect_column_values_to_be_unique", {"column": "word"}),
    ("expect_column_values_to_be_unique", {"column": "id", "mostly": 0.5}),
    ("expect_column_values_to_be_unique", {"column": "nothing"}),
    ("expect_compound_columns_to_be_unique", {"column_list": ["few", "pair"]}),
    ("expect_compound_columns_to_be_unique", {"column_list": ["id", "few"]}),
    ("expect_column_min_to_be_between", {"column": "few", "min_value": 7}),
    ("expect_column_min_to_be_between", {"column": "nothing", "min_value": 0}),
    ("expect_column_max_to_be_between", {"column": "few", "max_value": 9, "strict_max": True}),
    ("expect_column_max_to_be_between", {"column": "at", "min_value": "2024-01-03", "max_value": "2024-01-04"}),
    ("expect_column_max_to_be_between", {"column": "at", "max_value": "2024-01-02"}),
    ("expect_column_mean_to_be_between", {"column": "few", "min_value": 8.3, "max_value": 8.4}),
    ("expect_column_mean_to_be_between", {"column": "price", "min_value": 0}),
    ("expect_column_stdev_to_be_between", {"column": "few", "min_value": 1.1, "max_value": 1.2}),
    ("expect_column_stdev_to_be_between", {"column": "few", "max_value": 1.1}),
    ("expect_column_quantile_values_to_be_between", {"column": "id", "quantile_ranges": QUANTILES}),
    (
        "expect_column_quantile_values_to_be_between",
        {"column": "id", "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[2, 3]]}},
    ),
    (
        "expect_column_quantile_values_to_be_between",
        {"column": "nothing", "quantile_ranges": {"quantiles": [0.5], "value_ranges": [[None, None]]}},
    ),
    ("expect_column_proportion_of_non_null_values_to_be_between", {"column": "few", "min_value": 0.6}),
    ("expect_column_proportion_of_non_null_values_to_be_between", {"column": "few", "min_value": 0.61}),
]


KINDS = [kind for kind, _ in AS_GREAT_EXPECTATIONS]


def said_by_great_expectations(rows: DataFrame) -> list[tuple[bool, int | None]]:
    """Of each expectation whether it holds, and how many rows break it where it is about rows. The library cannot store
    its own result of the quantiles, so nothing is stored."""
    import_great_expectations()
    import great_expectations as gx
    from great_expectations.expectations.expectation_configuration import ExpectationConfiguration

    asset = gx.get_context(mode="ephemeral").data_sources.add_spark("s", persist=False).add_dataframe_asset("rows")
    batch = asset.add_batch_definition_whole_dataframe("b").get_batch(batch_parameters={"dataframe": rows})
    found = []
    for kind, given in AS_GREAT_EXPECTATIONS:
        said = batch.validate(ExpectationConfiguration(type=kind, kwargs=dict(given)).to_domain_obj())
        assert not said.exception_info.get("raised_exception"), said.exception_info
        found.append((bool(said.success), said.result.get("unexpected_count")))
    return found


@pytest.mark.full  # every run has what it counts for rows (`test_row_rules.py`)
@pytest.mark.filterwarnings("ignore")  # Great Expectations, imported here first, warns of its own modules
def test_expectations_find_what_great_expectations_finds(spark: SparkSession) -> None:
    rows = spark.createDataFrame(VALUES, SCHEMA).withColumn("at", fn.to_timestamp_ntz("at")).persist()
    rules = [
        RuleDeclaration(name=f"rule_{place}", type=kind, kwargs=given, on_failure="warn")
        for place, (kind, given) in enumerate(AS_GREAT_EXPECTATIONS)
    ]

    found = judge_batch(rows, rules, catalog="lakehouse", now=NOW)

    assert {one for one, _ in AS_GREAT_EXPECTATIONS} == {kind for kind in BATCH_KINDS if kind.startswith("expect_")}
    said = said_by_great_expectations(rows)
    assert [(kind, not found[rule.name].is_broken) for kind, rule in zip(KINDS, rules, strict=True)] == [
        (kind, holds) for kind, (holds, _) in zip(KINDS, said, strict=True)
    ]
    failed = [(rule.name, rows) for rule, (_, rows) in zip(rules, said, strict=True) if rows is not None]
    assert failed == [(name, found[name].failed) for name, _ in failed]
    assert {holds for holds, _ in said} == {True, False}


def test_of_a_batch_without_rows_only_their_number_is_judged(spark: SparkSession) -> None:
    rules = [RuleDeclaration.model_validate(one) for one in EVERY[:5]]

    found = judge_batch(
        spark.createDataFrame([], "id long, carrier string, price double, at timestamp"),
        rules,
        catalog="lakehouse",
        now=NOW,
    )

    assert [name for name, one in found.items() if one.is_broken] == ["enough"]
    assert found["fresh"] == RuleCount(counted=0, failed=0, on_failure="warn", is_broken=False)
