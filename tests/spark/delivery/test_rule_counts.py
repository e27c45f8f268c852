"""What row rules count: while a batch is computed only whether a rule says anything, and the rest of the kept rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import product
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from tests.fixtures.faulty_drivers import declare_lost
from tests.fixtures.ledger_rows import recent_rule_results
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop

from sluice.declarations.rule_declaration import RuleDeclaration
from sluice.ledger.batch_findings import RuleCount
from sluice.ledger.batches import PublicationKey
from sluice.publication.crash_points import CrashPoint
from sluice_spark.delivery.batch_audit import BatchAudit, Results
from sluice_spark.query.row_rules import marks_of
from sluice_spark.query.stream_outputs import unite

KEY = PublicationKey(stream="s", generation=1, batch=0)
BITS = 6
NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)


def rules_of(place: int) -> list[RuleDeclaration]:
    """A rule on each column, of which a null counts for none but the last; the first rejects rows, the second holds."""
    actions: list[Any] = ["quarantine", "hold", "warn", "warn", "warn"]
    known = [
        RuleDeclaration(
            name=f"known_{place}_{bit}",
            type="expect_column_values_to_be_in_set",
            kwargs={"column": f"c{bit}", "value_set": [0]} | ({"mostly": 0.1} if action == "hold" else {}),
            on_failure=action,
        )
        for bit, action in enumerate(actions)
    ]
    return [*known, RuleDeclaration(name=f"zero_{place}", expression=f"c{BITS - 1} = 0", on_failure="warn")]


def judged(audit: BatchAudit, rows: DataFrame, *, kept: DataFrame | None = None) -> Results:
    """What the rules find as a batch is judged. kept: read for the counts by rule; the rows, if unset."""
    counted = rows.agg(*audit.aggregates(rows)).collect()[0]
    return audit.of_rows(counted, rows if kept is None else kept, KEY, ())


def united(spark: SparkSession, audit: BatchAudit, **outputs: Sequence[tuple[int | None, ...]]) -> DataFrame:
    """Rows of outputs, of which some are judged."""
    columns = ", ".join(f"c{bit} long" for bit in range(BITS))
    frames = {name: spark.createDataFrame(rows, columns) for name, rows in outputs.items()}
    return unite(frames, marks={name: marks_of(rules, None) for name, rules in audit.rules.items()})


def test_every_pattern_of_two_outputs_counts_for_each_of_its_rules(spark: SparkSession) -> None:
    audit = BatchAudit(rules={"one": rules_of(1), "two": rules_of(2)})
    patterns = list(product((0, 1, None), repeat=BITS))
    given = {"one": patterns, "two": [one for one in patterns if one[2] == 1] * 2}

    found = judged(audit, united(spark, audit, **given, unjudged=patterns))

    assert {output: one.rows for output, one in found.items()} == {name: len(rows) for name, rows in given.items()}
    for output, rows in given.items():
        counted = {
            rule.name: (
                len(rows) if rule.expression else sum(row[bit] is not None for row in rows),
                sum(row[bit] == 1 or (row[bit] is None and rule.expression is not None) for row in rows),
                sum(row[bit] == row[0] == 1 for row in rows) if rule.on_failure == "hold" else None,
            )
            for bit, rule in enumerate(audit.rules[output])
        }
        assert {name: (one.counted, one.failed, one.rejected) for name, one in found[output].rules.items()} == counted
    assert found["one"].held_by == {}
    assert list(found["one"].broken) == [rule.name for rule in rules_of(1) if rule.on_failure != "hold"]


def test_of_a_batch_of_which_no_rule_says_anything_nothing_is_counted_afterwards(spark: SparkSession) -> None:
    audit = BatchAudit(rules={"one": rules_of(1), "two": rules_of(2)})
    clean, marked = [(0,) * BITS] * 3, [(0,) * BITS, (None, *(0,) * (BITS - 1))]
    failing = "CAST(raise_error('it is read again') AS LONG) _sluice_failed"
    unread = spark.sql(f"SELECT {failing}, 0L _sluice_ignored, 'one' _sluice_judged")

    found = judged(audit, united(spark, audit, one=clean, two=clean[:2], unjudged=marked), kept=unread)

    assert {output: one.rows for output, one in found.items()} == {"one": 3, "two": 2}
    for output, number in (("one", 3), ("two", 2)):
        assert {(rule.counted, rule.failed, rule.is_broken) for rule in found[output].rules.values()} == {
            (number, 0, False)
        }
    with pytest.raises(Exception, match="it is read again"):
        judged(audit, united(spark, audit, one=clean, two=marked), kept=unread)


@pytest.mark.full  # every run: the counts (`test_batch_rules.py`)
@pytest.mark.parametrize("point", [CrashPoint.STAGED, None])
def test_the_state_of_a_stream_moves_once_though_its_batch_is_counted_afterwards(
    workshop: Workshop, point: CrashPoint | None
) -> None:
    """Also when nothing is left to stage, and a batch is computed for its state alone. The state counts what it leaves
    out, each time that a batch is computed."""
    columns, stream = {"id": "long", "at": "timestamptz"}, f"s{workshop.namespace}"
    source = workshop.declare_table("source", columns)
    rules = [{"name": "small", "expression": "id < 3", "on_failure": "warn"}]
    target = workshop.declare_table("target", columns, rules=rules)
    workshop.declare_stream(
        stream,
        python="""
            def transform(r):
                return r.withWatermark("at", "1 hour").dropDuplicatesWithinWatermark(["id"])
        """,
        inputs={"r": {"stream": {"iceberg": {"table": source}}}},
        outputs={"main": {"iceberg": {"table": target}}},
    )
    workshop.append("source", [{"id": number, "at": NOON} for number in (1, 2, 3, 3, 3)])
    if point is not None:
        with pytest.raises(OSError, match="dies here"):
            workshop.run(stream, is_recorded=True, reached=dying_at(point))
        declare_lost(workshop, stream)

    run = workshop.run(stream, is_recorded=True)

    assert sorted(row["id"] for row in workshop.rows("target")) == [1, 2, 3]
    assert sum(batch.duplicate_rows for batch in run.batches) == 2
    first = recent_rule_results(workshop.ledger, stream=stream)[-1]
    assert first.rules == {"small": RuleCount(counted=3, failed=1, on_failure="warn", is_broken=True)}
