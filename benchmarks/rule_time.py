"""What 20 row rules cost a stream: the same records from Kafka with and without them, by turns in one Spark.

    .venv/bin/python -m benchmarks.rule_time [--rows 200000] [--batches 4] [--rounds 4]

JSON records are decoded by Sluice into a table. One record of a hundred breaks a rule. With rules it goes to the
quarantine; without, the transformation leaves it out, so that both tables hold the same rows, which is compared before
any time counts. *filtered* has no quarantine of its own rows and so no second output: its one table is written while it
is computed. *rejected by the transformation* is the way without rules to keep the rejected rows: two outputs.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.delivery_time import COLUMNS, Bench, fill_topic, open_bench
from benchmarks.paired_turns import Limit, Turn, print_turns, speed, take_turns

from sluice.ledger.batch_rules import recent_rule_results

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
LIMITS = (
    Limit(way="20 rules", what="speed of batches", figure=speed, least=0.85),
    Limit(way="rejected by the transformation", what="speed of batches", figure=speed, least=0.1),
)


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
    if rules:
        found = recent_rule_results(workshop.ledger, stream=stream)
        failed = sum(one.rules["hundredth"].failed for one in found)
        if failed != bench.rows * bench.batches // 100 or {len(one.rules) for one in found} != {len(RULES)}:
            raise SystemExit(f"the rules counted {failed} rows in {len(found)} batches")
    return turn


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print; ends with 1 when two ways leave different tables, or a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=200_000, help="rows of a batch")
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=4)
    options = parser.parse_args(arguments)
    if len(RULES) != 20:
        raise SystemExit(f"there are {len(RULES)} rules")
    with open_bench(rows=options.rows, batches=options.batches) as bench:
        bench = replace(bench, topic=fill_topic(bench.stack, rows=options.rows * options.batches))
        turns = take_turns(
            {
                "filtered": lambda: run(bench, FILTERED),
                "20 rules": lambda: run(bench, PLAIN, rules=RULES),
                "rejected by the transformation": lambda: run(bench, REJECTING),
            },
            rounds=options.rounds,
        )
    title = f"{options.rows} rows a batch, one of a hundred is rejected"
    return 0 if print_turns(title, turns, LIMITS) else 1


if __name__ == "__main__":
    sys.exit(main())
