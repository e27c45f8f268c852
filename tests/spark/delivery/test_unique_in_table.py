"""Values that are unique in a table: compared with its rows, with batches that wait, and with the rest of the batch."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.faulty_drivers import declare_lost
from tests.fixtures.ledger_rows import recent_rule_results
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop

from sluice.declarations.output_declaration import IcebergOutput
from sluice.declarations.rule_declaration import RuleDeclaration
from sluice.errors import DeliveryError
from sluice.ledger.batches import PublicationKey
from sluice.ledger.held_batches import find_held
from sluice.operations import OperationVerb
from sluice.publication.crash_points import CrashPoint
from sluice.publication.held_decisions import decide, plan_decision
from sluice.publication.staged_batch import PlannedBatch, StagedBatch
from sluice_spark.delivery.batch_audit import BatchAudit
from sluice_spark.query.batch_conditions import judge_batch
from sluice_spark.sinks.iceberg import IcebergTarget

COLUMNS = {"id": "long", "place": "string"}
ID = {"name": "once", "type": "column_values_to_be_unique_in_table", "kwargs": {"column": "id"}}
BOTH = {
    "name": "both",
    "type": "compound_columns_to_be_unique_in_table",
    "kwargs": {"column_list": ["id", "place"]},
    "on_failure": "warn",
}


def declare(workshop: Workshop, *rules: dict[str, Any], outputs: int = 1) -> str:
    """A stream with a batch for each snapshot of its source; its name."""
    stream = f"s{workshop.namespace}"
    source = workshop.declare_table("source", COLUMNS)
    targets = [workshop.declare_table(f"target_{n}", COLUMNS, rules=list(rules)) for n in range(outputs)]
    python = "def transform(r):\n    return {'out_0': r, 'out_1': r}\n" if outputs > 1 else ""
    workshop.declare_stream(
        stream,
        sql="" if python else "SELECT * FROM r",
        python=python,
        inputs={"r": {"stream": {"iceberg": {"table": source, "max_files_per_batch": 1}}}},
        outputs={f"out_{n}": {"iceberg": {"table": target}} for n, target in enumerate(targets)},
    )
    return stream


def append(workshop: Workshop, *rows: tuple[int | None, str | None]) -> None:
    workshop.append("source", [{"id": number, "place": place} for number, place in rows])


def found(workshop: Workshop, stream: str) -> dict[tuple[int, str], list[tuple[int, int]]]:
    """What each rule found in each batch of its first output, with how many rows count: by number, then name."""
    results = [one for one in recent_rule_results(workshop.ledger, stream=stream) if one.output == "out_0"]
    return {
        (one.batch, name): [(rule.counted, rule.failed)] for one in results for name, rule in sorted(one.rules.items())
    }


def release(workshop: Workshop, stream: str) -> int:
    """Release the batch that is held; its number."""
    held = find_held(workshop.ledger, stream)
    assert held is not None
    plan = plan_decision(workshop.ledger, workshop.stream(stream), OperationVerb.RELEASE_BATCH)
    decide(workshop.ledger, plan, requested_by="a test", planned=plan.digest)
    workshop.run(stream, is_recorded=True)
    return held.key.batch


@pytest.mark.full  # every run: `test_repeated_values.py`
def test_a_batch_is_compared_with_the_table_and_with_those_that_wait_before_it(workshop: Workshop) -> None:
    stream = declare(workshop, ID, BOTH)
    append(workshop, (1, "a"), (2, None), (None, None))
    append(workshop, (3, "c"), (2, None))  # held: 2 is in the table
    append(workshop, (4, "d"), (None, "a"))
    append(workshop, (3, "d"))  # 3 waits in the second batch
    append(workshop, (5, "e"), (5, "f"))

    workshop.run(stream, is_recorded=True)

    assert sorted(one["id"] or 0 for one in workshop.rows("target_0")) == [0, 1, 2]
    assert [release(workshop, stream) for _ in range(3)] == [1, 3, 4]
    assert found(workshop, stream) == {
        (0, "once"): [(2, 0)],
        (0, "both"): [(2, 0)],
        (1, "once"): [(2, 1)],
        (1, "both"): [(2, 1)],
        (2, "once"): [(1, 0)],
        (2, "both"): [(2, 0)],
        (3, "once"): [(1, 1)],
        (3, "both"): [(1, 0)],
        (4, "once"): [(2, 2)],
        (4, "both"): [(2, 0)],
    }
    assert len(workshop.rows("target_0")) == 10


@pytest.mark.full  # every run has a death once it is visible (`test_repeated_values.py`)
@pytest.mark.parametrize(
    "point",
    [CrashPoint.FIRST_OUTPUT_STAGED, CrashPoint.STAGED, CrashPoint.FIRST_OUTPUT_PUBLISHED],
)
def test_a_batch_is_never_compared_with_itself(workshop: Workshop, point: CrashPoint) -> None:
    """What a driver had staged of it when it died stays in the staging table beside what the next one stages."""
    stream = declare(workshop, ID, outputs=2)
    append(workshop, (1, "a"), (2, "b"))
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(point))
    declare_lost(workshop, stream)

    workshop.run(stream, is_recorded=True)

    assert find_held(workshop.ledger, stream) is None
    assert [len(workshop.rows(f"target_{n}")) for n in range(2)] == [2, 2]
    assert found(workshop, stream) == {(0, "once"): [(2, 0)]}


NAN = float("nan")
WIDEST = 10**20
VALUES: dict[str, tuple[list[Any], list[Any], int]] = {
    "bigint": ([1, 2, None, 9], [2, 5, None], 1),
    "string": (["b", "ü", "é" * 40, None], ["é" * 40, "b" * 3, "zz"], 1),
    "decimal(38,2)": ([Decimal(WIDEST), Decimal("1.10")], [Decimal("1.1"), Decimal(-WIDEST)], 1),
    "double": ([0.0, NAN, 1.5], [-0.0, NAN, 2.0], 2),
    "date": ([date(2024, 1, 1), date(1582, 10, 4)], [date(1582, 10, 4), date(2024, 1, 2)], 1),
    "timestamp": ([datetime(2024, 1, 1, tzinfo=UTC)], [datetime(2024, 1, 1, tzinfo=UTC)], 1),
    "timestamp_ntz": ([datetime(2024, 1, 1)], [datetime(2024, 1, 1), datetime(2024, 1, 2)], 1),  # noqa: DTZ001  # no zone
    "binary": ([b"\x00", b""], [b"", b"\x01"], 1),
    "boolean": ([True], [True, False], 1),
}


@pytest.mark.parametrize("kind", VALUES)
def test_equal_values_are_found_whatever_their_type(spark: SparkSession, kind: str) -> None:
    batch, known, repeated = VALUES[kind]
    rows = spark.createDataFrame([(one,) for one in batch], f"id {kind}")
    table = spark.createDataFrame([(one,) for one in known], f"id {kind}")

    judged = judge_batch(
        rows,
        [RuleDeclaration.model_validate(ID)],
        catalog="lakehouse",
        now=datetime.now(UTC),
        present=lambda names: table.select(*names),
    )

    assert (judged["once"].counted, judged["once"].failed) == (sum(one is not None for one in batch), repeated)


@pytest.mark.full  # every run: rows of a batch that was rejected (`test_repeated_values.py`)
def test_a_batch_that_is_cleared_while_it_is_read_is_looked_for_again(workshop: Workshop) -> None:
    """Publications have a thread of their own: the rows are in the table then."""
    stream = declare(workshop, ID)
    append(workshop, (1, "a"))
    workshop.run(stream, is_recorded=True)
    declared = IcebergOutput(table=workshop.table_name("target_0"))
    target = IcebergTarget(stream=stream, output="out_0", declared=declared, catalog=workshop.settings.catalog.name)
    key = PublicationKey(stream=stream, generation=1, batch=9)
    planned = PlannedBatch(key=replace(key, batch=8), run_id="r", token=1, start_offsets="{}", end_offsets="{}")
    gone = StagedBatch(
        summary=planned.staged_as("out_0", target.mode),
        snapshot_id=7,
        parent_id=6,
        staged_at=datetime.now(UTC),
        data_files=1,
        is_overtaken=False,
    )
    rows = workshop.spark.createDataFrame([(1, "z"), (8, "z")], "id long, place string")
    audit = BatchAudit(rules={"out_0": (RuleDeclaration.model_validate(ID),)})

    def failed(*looks: tuple[StagedBatch, ...]) -> int:
        following = iter(looks)
        judged = audit.of_batch(
            rows,
            key,
            [target],
            rows={"out_0": 2},
            found={},
            now=datetime.now(UTC),
            waiting=lambda _: next(following),
        )
        return judged["out_0"].rules["once"].failed

    assert failed((gone,), (), ()) == 1
    with pytest.raises(DeliveryError, match="cannot be judged by the rules once"):
        failed((gone,), (gone,))
