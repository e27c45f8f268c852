"""What rules cost a stream: 20 row rules beside none, by turns in one Spark, and a suite of batch rules by itself.

    .venv/bin/python -m benchmarks.rule_time [--rows 200000] [--batches 4] [--rounds 4] [--staged 1000000]

JSON records are decoded by Sluice into a table, and one record of a hundred is rejected into the quarantine: by the
transformation in *without rules*, by the rules in *20 rules*. So both ways leave the same rows in both tables, which is
compared before any time counts. *left out* shows what the quarantine costs: the transformation drops those records, and
the one table is written while it is computed.

The batch rules, one of each kind, judge what one snapshot of a table has added, read from the object store and, as
batches are judged, from memory; once without and once with those that also read the table, which had as many rows
before. The limit is for all of them. The first time of each is a warm-up and does not count.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from benchmarks.delivery_time import COLUMNS, Bench, fill_topic, open_bench
from benchmarks.paired_turns import Limit, Turn, print_turns, speed, take_turns
from pyspark.sql import DataFrame
from rich.console import Console
from tests.fixtures.ledger_rows import recent_rule_results
from tests.fixtures.workshop import Workshop

from sluice.declarations.rule_declaration import BATCH_KINDS, UNIQUE_IN_TABLE, RuleDeclaration
from sluice_spark.query.batch_conditions import judge_batch

BROKEN = "id % 100 = 7"
RULES: list[dict[str, Any]] = [
    {"name": "hundredth", "expression": f"NOT ({BROKEN})"},
    *(
        {
            "name": f"amount_{number}",
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "amount", "min_value": -number, "max_value": 10.0**9},
        }
        for number in range(1, 6)
    ),
    *({"name": f"id_{number}", "expression": f"id >= -{number}"} for number in range(1, 5)),
    *(
        {"name": f"word_{number}", "type": "expect_column_values_to_match_regex", "kwargs": kwargs}
        for number, kwargs in enumerate({"column": "word", "regex": regex} for regex in ("^word", "[0-9]+$", "^w.*d "))
    ),
    *(
        {"name": f"length_{number}", "type": "expect_column_value_lengths_to_be_between", "kwargs": kwargs}
        for number, kwargs in enumerate({"column": "word", "min_value": least} for least in (1, 2, 3))
    ),
    *(
        {"name": f"given_{column}", "type": "expect_column_values_to_not_be_null", "kwargs": {"column": column}}
        for column in ("id", "word", "amount", "at")
    ),
]
PLAIN = "def transform(records):\n    return records.select('id', 'word', 'amount', 'at')"
FILTERED = PLAIN + f".where('NOT ({BROKEN})')"
REJECTING = PLAIN.replace("return ", "rows = ") + (
    f"\n    return {{'copies': rows.where('NOT ({BROKEN})'), 'quarantine': rows.where('{BROKEN}').selectExpr("
    "\"'broken' reason\", 'CAST(NULL AS STRING) position', 'to_json(struct(*)) payload')}"
)
LIMITS = (Limit(way="20 rules", what="speed of batches", figure=speed, least=0.85),)


SUITE_SECONDS = 5.0
SUITE: dict[str, dict[str, Any]] = {
    "expect_table_row_count_to_be_between": {"min_value": 1},
    "expect_table_row_count_to_equal": {"value": 7},
    "expect_column_values_to_be_unique": {"column": "id"},
    "expect_compound_columns_to_be_unique": {"column_list": ["word", "amount"]},
    "column_values_to_be_unique_in_table": {"column": "id"},
    "compound_columns_to_be_unique_in_table": {"column_list": ["word", "amount"]},
    "expect_column_min_to_be_between": {"column": "at", "min_value": "2026-01-01"},
    "expect_column_max_to_be_between": {"column": "amount", "max_value": 10.0**9},
    "expect_column_mean_to_be_between": {"column": "amount", "min_value": 1},
    "expect_column_stdev_to_be_between": {"column": "amount", "min_value": 1},
    "expect_column_quantile_values_to_be_between": {
        "column": "amount",
        "quantile_ranges": {"quantiles": [0.5, 0.99], "value_ranges": [[1, None], [None, 10.0**9]]},
    },
    "expect_column_proportion_of_non_null_values_to_be_between": {"column": "word", "min_value": 0.99},
    "column_to_be_fresh": {"column": "at", "within": "1 hour"},
    "column_values_to_exist_in_table": {"column": "word", "table_column": "word"},
}
BROKEN_OF_SUITE = ["expect_table_row_count_to_equal", "column_to_be_fresh"]


def judge_suite(bench: Bench, *, rows: int, rounds: int) -> bool:
    """Judge what one snapshot of so many rows has added, and print how long it takes; whether it keeps the limit."""
    workshop = bench.workshop()
    target, known = workshop.declare_table("target", COLUMNS), workshop.declare_table("known", {"word": "string"})
    catalog = workshop.settings.catalog.name
    made = ["id", "concat('word ', id % 97) word", "id / 7 amount", "timestamp '2026-01-01 00:00:00Z' at"]
    for added in (bench.spark.range(-rows, 0), bench.spark.range(rows)):
        added.selectExpr(*made).writeTo(f"{catalog}.{target}").append()
    bench.spark.range(97).selectExpr("concat('word ', id) word").writeTo(f"{catalog}.{known}").append()
    first, second = (one.snapshot_id for one in workshop.table(target).history())
    between = {"start-snapshot-id": str(first), "end-snapshot-id": str(second)}
    rules = suite_with(known)
    of_batch = [rule for rule in rules if rule.type not in UNIQUE_IN_TABLE]
    staged = bench.spark.read.options(**between).table(f"{catalog}.{target}")
    before = bench.spark.read.option("versionAsOf", first).table(f"{catalog}.{target}")

    def median_seconds(judged: Sequence[RuleDeclaration], place: str) -> float:
        seconds = judged_seconds(staged, judged, before=before, catalog=catalog, rounds=rounds)
        spread = f"{statistics.median(seconds):.2f} s ({min(seconds):.2f} to {max(seconds):.2f})"
        beside = "" if judged is of_batch else f", of which {len(rules) - len(of_batch)} read the table,"
        Console(width=140).print(f"{len(judged)} batch rules{beside} on {rows:,} rows from {place}: {spread}")
        return statistics.median(seconds)

    median_seconds(of_batch, "the object store")
    is_met = median_seconds(rules, "the object store") <= SUITE_SECONDS
    Console(width=140).print(f"at most {SUITE_SECONDS:g} s for all of them: {'met' if is_met else 'MISSED'}")
    staged.persist()
    median_seconds(of_batch, "memory")
    median_seconds(rules, "memory")
    staged.unpersist()
    return is_met


def suite_with(known: str) -> list[RuleDeclaration]:
    """A rule of each kind. known: the table that has all words."""
    if set(SUITE) != set(BATCH_KINDS):
        raise SystemExit(f"the suite and the kinds of rules differ by {set(SUITE) ^ set(BATCH_KINDS)}")
    return [
        RuleDeclaration(
            name=f"rule_{place}",
            type=kind,
            kwargs=given | ({"table": known} if "table_column" in given else {}),
            on_failure="warn",
        )
        for place, (kind, given) in enumerate(SUITE.items())
    ]


def judged_seconds(
    rows: DataFrame, rules: Sequence[RuleDeclaration], *, before: DataFrame, catalog: str, rounds: int
) -> list[float]:
    """How long the rules take, by round. before: the rows that the table has already."""
    seconds = []
    for _ in range(rounds + 1):
        began = time.monotonic()
        found = judge_batch(
            rows, rules, catalog=catalog, now=datetime.now(UTC), present=lambda names: before.select(*names)
        )
        seconds.append(time.monotonic() - began)
        broken = [rule.type for rule in rules if found[rule.name].is_broken]
        if broken != BROKEN_OF_SUITE:
            raise SystemExit(f"broken are {broken}")
    return seconds[1:]


def run(bench: Bench, python: str, *, rules: Sequence[dict[str, Any]] = (), **parts: Any) -> Turn:
    """One turn of a stream of decoded records."""
    workshop = bench.workshop()
    target = workshop.declare_table("target", COLUMNS, rules=list(rules))
    columns = [{"name": name, "type": kind} for name, kind in COLUMNS.items()]
    value = {"format": "json", "columns": columns}
    source = {"connection": "flights_kafka", "topics": [bench.topic], "max_offsets_per_batch": bench.rows}
    stream = f"s{workshop.namespace}"
    workshop.declare_stream(
        stream,
        python=python,
        inputs={"records": {"stream": {"kafka": {**source, "starting": "earliest", "value": value}}}},
        outputs={"copies": {"iceberg": {"table": target}}},
        quarantine=True,
        **parts,
    )
    turn = bench.turn_of(workshop, stream, target, is_recorded=True)
    if python != FILTERED:
        require_rejected(bench, workshop, stream)
    if rules:
        found = recent_rule_results(workshop.ledger, stream=stream)
        failed = sum(one.rules["hundredth"].failed for one in found)
        if failed != bench.rows * bench.batches // 100 or {len(one.rules) for one in found} != {len(RULES)}:
            raise SystemExit(f"the rules counted {failed} rows in {len(found)} batches")
    return turn


def require_rejected(bench: Bench, workshop: Workshop, stream: str) -> None:
    """Check that the quarantine holds the records that break a rule, each of them once."""
    quarantine = f"{workshop.settings.catalog.name}.{workshop.stream(stream).declaration.quarantine_table}"
    rejected = bench.spark.table(quarantine).selectExpr("get_json_object(payload, '$.id') id")
    broken = bench.spark.range(bench.rows * bench.batches).where(BROKEN).selectExpr("CAST(id AS STRING) id")
    if different := rejected.exceptAll(broken).count() + broken.exceptAll(rejected).count():
        raise SystemExit(f"{different} records of the quarantine are not those that break a rule")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; ends with 1 when two ways leave different tables, or a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of a batch")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--staged", type=int, default=1_000_000, help="rows that the batch rules judge")
    options = parser.parse_args(arguments)
    if len(RULES) != 20:
        raise SystemExit(f"there are {len(RULES)} rules")
    with open_bench(rows=options.rows, batches=options.batches) as bench:
        bench = replace(bench, topic=fill_topic(bench.stack, rows=options.rows * options.batches))
        turns = take_turns(
            {
                "without rules": lambda: run(bench, REJECTING),
                "20 rules": lambda: run(bench, PLAIN, rules=RULES),
                "left out": lambda: run(bench, FILTERED),
            },
            rounds=options.rounds,
        )
        is_met = judge_suite(bench, rows=options.staged, rounds=options.rounds)
    title = f"{options.rows} rows a batch, one of a hundred is rejected"
    return 0 if print_turns(title, turns, LIMITS) and is_met else 1


if __name__ == "__main__":
    sys.exit(main())
