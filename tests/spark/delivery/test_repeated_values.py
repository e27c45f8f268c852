"""Values that are unique in a table whose rows and batches change: rejected, separated, expired, new."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.faulty_drivers import declare_lost
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop
from tests.spark.delivery.test_unique_in_table import COLUMNS, ID, append, declare, found

from sluice.declarations.output_declaration import IcebergOutput
from sluice.declarations.rule_declaration import RuleDeclaration
from sluice.errors import DeclarationError
from sluice.ledger.batches import PublicationKey
from sluice.ledger.held_batches import find_held
from sluice.operations import OperationVerb
from sluice.publication.crash_points import CrashPoint
from sluice.publication.held_decisions import decide, plan_decision
from sluice_spark.delivery.batch_audit import BatchAudit
from sluice_spark.query.batch_conditions import judge_batch
from sluice_spark.sinks.iceberg import IcebergTarget


def test_the_rows_of_a_rejected_batch_are_not_in_the_table(workshop: Workshop) -> None:
    """A person rejects a batch, and its sender sends it again without what was wrong."""
    stream = declare(workshop, ID)
    append(workshop, (1, "a"))
    append(workshop, (3, "c"), (1, "x"))  # held: 1 is in the table
    workshop.run(stream, is_recorded=True)
    plan = plan_decision(workshop.ledger, workshop.stream(stream), OperationVerb.REJECT_BATCH)
    decide(workshop.ledger, plan, requested_by="a test", planned=plan.digest)
    append(workshop, (3, "c"))

    workshop.run(stream, is_recorded=True)

    assert find_held(workshop.ledger, stream) is None, "3 is neither in the table nor waits for it"
    assert sorted(one["id"] for one in workshop.rows("target_0")) == [1, 3]
    assert found(workshop, stream)[2, "once"] == [(1, 0)]


@pytest.mark.full
def test_rows_that_were_separated_from_a_batch_are_not_in_the_table(workshop: Workshop) -> None:
    """They are in the quarantine, and their sender sends them again without what was wrong."""
    stream = f"s{workshop.namespace}"
    source = workshop.declare_table("source", COLUMNS)
    placed = {"name": "placed", "expression": "place IS NOT NULL", "on_failure": "hold"}
    target = workshop.declare_table("target_0", COLUMNS, rules=[ID, placed])
    workshop.declare_stream(
        stream,
        python="""
            def transform(r):
                own = ["'own' reason", "CAST(NULL AS STRING) position", "CAST(id AS STRING) payload"]
                return {"out_0": r.where("id < 100"), "quarantine": r.where("id >= 100").selectExpr(*own)}
        """,
        quarantine=True,
        inputs={"r": {"stream": {"iceberg": {"table": source, "max_files_per_batch": 1}}}},
        outputs={"out_0": {"iceberg": {"table": target}}},
    )
    append(workshop, (1, "a"), (2, None))
    workshop.run(stream, is_recorded=True)
    plan = plan_decision(workshop.ledger, workshop.stream(stream), OperationVerb.SEPARATE_BATCH)
    decide(workshop.ledger, plan, requested_by="a test", planned=plan.digest)
    append(workshop, (2, "b"))

    workshop.run(stream, is_recorded=True)

    assert find_held(workshop.ledger, stream) is None, "2 is in the quarantine alone"
    assert sorted(one["id"] for one in workshop.rows("target_0")) == [1, 2]


@pytest.mark.parametrize("days", [10_000_000, -800_000])
def test_a_date_that_python_does_not_have_is_compared(spark: SparkSession, days: int) -> None:
    rows = spark.sql(f"SELECT date_from_unix_date({days}) AS id")

    judged = judge_batch(
        rows,
        [RuleDeclaration.model_validate(ID)],
        catalog="lakehouse",
        now=datetime.now(UTC),
        present=lambda names: rows.select(*names),
    )

    assert (judged["once"].counted, judged["once"].failed) == (1, 1)


@pytest.mark.full  # every run: rows that were rejected
@pytest.mark.parametrize("is_expired", [True, False])
def test_rows_that_have_left_the_table_are_not_in_it(workshop: Workshop, is_expired: bool) -> None:
    """The files of a visible batch are those of the table. The staging table lists them until it is cleared, which a
    slow continuous stream does after 20 batches; the table may have been rewritten and its snapshots expired."""
    stream = declare(workshop, ID)
    append(workshop, (1, "a"))
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.PUBLISHED))
    declare_lost(workshop, stream)
    table = workshop.table("target_0")
    paths = [task.file.file_path for task in table.scan().plan_files()]
    table.delete("id = 1")
    for path in paths if is_expired else ():
        table.io.delete(path)
    append(workshop, (1, "b"))

    workshop.run(stream, is_recorded=True)

    assert find_held(workshop.ledger, stream) is None
    assert [one["place"] for one in workshop.rows("target_0")] == ["b"]


@pytest.mark.parametrize("kind", ["array<int>", "struct<a:int>"])
def test_equal_nested_values_are_found(spark: SparkSession, kind: str) -> None:
    value: Any = {"array<int>": [1], "struct<a:int>": (1,)}[kind]
    rows = spark.createDataFrame([(value,)], f"id {kind}")

    judged = judge_batch(
        rows,
        [RuleDeclaration.model_validate(ID)],
        catalog="lakehouse",
        now=datetime.now(UTC),
        present=lambda names: spark.createDataFrame([(value,)], f"id {kind}").select(*names),
    )

    assert (judged["once"].counted, judged["once"].failed) == (1, 1)


def test_a_value_that_a_stream_before_masks_is_not_kept(workshop: Workshop) -> None:
    declare(workshop)
    target = IcebergTarget(
        stream="s",
        output="out_0",
        declared=IcebergOutput(table=workshop.table_name("target_0")),
        catalog=workshop.settings.catalog.name,
    )
    rule = {"name": "top", "type": "expect_column_max_to_be_between", "kwargs": {"column": "id", "max_value": 5}}
    audit = BatchAudit(rules={"out_0": (RuleDeclaration.model_validate(rule),)}, masked_of=lambda _: {"id"})
    rows = workshop.spark.createDataFrame([(4711, "z")], "id long, place string")

    judged = audit.of_batch(
        rows,
        PublicationKey(stream="s", generation=1, batch=0),
        [target],
        rows={"out_0": 1},
        found={},
        now=datetime.now(UTC),
    )

    assert judged["out_0"].rules["top"].observed is None


@pytest.mark.full  # every run compares columns that are there
def test_a_column_that_is_new_is_compared_while_a_batch_of_before_waits(workshop: Workshop) -> None:
    stream = declare(workshop, ID)
    append(workshop, (5, "a"), (5, "b"))
    workshop.run(stream, is_recorded=True)
    assert find_held(workshop.ledger, stream) is not None
    columns = {**COLUMNS, "code": "long"}
    new = {"name": "new", "type": "column_values_to_be_unique_in_table", "kwargs": {"column": "code"}}
    workshop.declare_table("source", columns)
    workshop.declare_table("target_0", columns, rules=[ID, new])
    workshop.append("source", [{"id": 6, "place": "c", "code": 1}])

    workshop.run(stream, is_recorded=True)

    held = find_held(workshop.ledger, stream)
    assert held is not None
    assert (held.key.batch, held.queued) == (0, 1)


FIRST, MIDDLE, LAST = (f"{one}0000000-0000-4000-8000-000000000001" for one in "07f")


@pytest.mark.full  # every run compares each other type (`test_unique_in_table.py`)
@pytest.mark.parametrize("again", [MIDDLE, FIRST, LAST])
def test_a_uuid_that_is_in_the_table_is_found(workshop: Workshop, again: str) -> None:
    """Spark has it as text. Iceberg's bounds of it are other ones."""
    stream = f"s{workshop.namespace}"
    source = workshop.declare_table("source", {"id": "string", "place": "string"})
    target = workshop.declare_table("target_0", {"id": "uuid", "place": "string"}, rules=[ID])
    workshop.declare_stream(
        stream,
        sql="SELECT * FROM r",
        inputs={"r": {"stream": {"iceberg": {"table": source, "max_files_per_batch": 1}}}},
        outputs={"out_0": {"iceberg": {"table": target}}},
    )
    workshop.append("source", [{"id": one, "place": "a"} for one in (FIRST, MIDDLE, LAST)])
    workshop.run(stream, is_recorded=True)
    assert len(workshop.rows("target_0")) == 3
    workshop.append("source", [{"id": again, "place": "b"}])

    workshop.run(stream, is_recorded=True)

    held = find_held(workshop.ledger, stream)
    assert held is not None
    assert held.reason == "once by 1 of 1 rows of out_0"


def test_a_decimal_of_digits_behind_the_point_alone_is_compared(spark: SparkSession) -> None:
    """Spark takes a literal of Python for one digit more than it has."""
    rows = spark.createDataFrame([(Decimal("1E-38"),)], "id decimal(38,38)")

    judged = judge_batch(
        rows,
        [RuleDeclaration.model_validate(ID)],
        catalog="lakehouse",
        now=datetime.now(UTC),
        present=lambda names: rows.select(*names),
    )

    assert (judged["once"].counted, judged["once"].failed) == (1, 1)


def test_maps_are_the_same_in_any_order(spark: SparkSession) -> None:
    rows = spark.sql("SELECT map('a', 1, 'b', 2) id UNION ALL SELECT map('b', 3)")
    present = spark.sql("SELECT map('b', 2, 'a', 1) id")

    judged = judge_batch(
        rows,
        [RuleDeclaration.model_validate(ID)],
        catalog="lakehouse",
        now=datetime.now(UTC),
        present=lambda names: present.select(*names),
    )

    assert (judged["once"].counted, judged["once"].failed) == (2, 1)


def test_a_type_that_cannot_be_compared_is_found_on_the_plan(workshop: Workshop) -> None:
    columns = {"id": "map<string, int>"}
    source, known = workshop.declare_table("source", columns), workshop.declare_table("known", columns)
    known_there = {"name": "known", "type": "column_values_to_exist_in_table"}
    kwargs = {"column": "id", "table": known, "table_column": "id"}
    target = workshop.declare_table("target_0", columns, rules=[{**known_there, "kwargs": kwargs}])
    workshop.declare_stream(
        stream := f"s{workshop.namespace}",
        sql="SELECT * FROM r",
        inputs={"r": {"stream": {"iceberg": {"table": source}}}},
        outputs={"out_0": {"iceberg": {"table": target}}},
    )
    with pytest.raises(DeclarationError, match="The rule known: Spark refuses it"):
        workshop.run(stream)
