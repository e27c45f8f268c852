"""A corpus of dirty records through one stream: each is in the table or the quarantine, once, for the right reason."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest
from tests.fixtures.ledger_rows import recent_rule_results
from tests.fixtures.replays import name_in, run_of
from tests.fixtures.workshop import Workshop
from tests.spark.decoding.test_decoding import sent

from sluice.demo.lakehouse_copy import SEEN, copy_lakehouse
from sluice.ledger.batches import totals
from sluice.record_values.rejection import LARGEST_VALUE_BYTES, too_large

COLUMNS = {"id": "long", "carrier": "string", "delay": "long", "at": "timestamptz", "offset": "long"}
VALUES = [
    {"name": "id", "type": "long", "required": True},
    {"name": "carrier", "type": "string", "required": True},
    {"name": "delay", "type": "long"},
    {"name": "at", "type": "timestamptz"},
]
RULES: list[dict[str, Any]] = [
    {"name": "after_the_first_flight", "expression": "at IS NULL OR at >= '1914-01-01'", "on_failure": "quarantine"},
    {
        "name": "a_flight_comes_once",
        "type": "expect_column_values_to_be_unique",
        "kwargs": {"column": "id"},
        "on_failure": "warn",
    },
]
TRANSFORMATION = """
    from pyspark.sql import functions as fn

    KNOWN = {known}

    def transform(records):
        is_known = fn.col("carrier").isin(*KNOWN)
        position = fn.to_json(fn.struct("record.topic", "record.partition", "record.offset"))
        return {{
            "main": records.where(is_known).select("id", "carrier", "delay", "at", "record.offset"),
            "quarantine": records.where(~is_known).select(
                fn.lit("the carrier is not known").alias("reason"),
                position.alias("position"),
                fn.to_json(fn.struct("id", "carrier")).alias("payload"),
            ),
        }}
"""

OVERSIZED = b'{"id": 11, "carrier": "' + b"x" * LARGEST_VALUE_BYTES + b'"}'
FITS = "the value does not fit the declared columns: "
A_TIME = "expected a date, a time and a zone, with at most six digits of a second's fraction"
CORPUS: list[tuple[bytes | None, str | None]] = [
    (b'{"id": 1, "carrier": "AA", "delay": 5, "at": "2013-01-01T10:00:00Z"}', None),
    (b'{"id": 2, "carrier": "UA", "delay": null}', None),
    (b'{"id": null, "carrier": "AA"}', "the value lacks required columns: id"),
    (b'{"id": "four", "carrier": "AA"}', f"{FITS}Expected `int | null`, got `str`, at `$.id`"),
    (b'{"id": 5, "carrier": "AA", "at": "2013-02-30T25:61:00Z"}', f"{FITS}{A_TIME}, at `$.at`"),
    (b'{"id": 6, "carrier": "AA", "at": "0013-01-01T00:00:00Z"}', "the row breaks a rule: after_the_first_flight"),
    (b'{"id": 7, "carrier": "XX"}', "the carrier is not known"),
    (b'{"id": 8, "carrier": "AA"}', None),
    (b'{"id": 8, "carrier": "AA"}', None),
    (b'{"id": 9, "carr', "the value is not JSON: Input data was truncated"),
    (b'{"id": 10, "carrier": "\xff\xfe"}', "the value is not UTF-8 text"),
    (OVERSIZED, too_large(len(OVERSIZED)).sentence),
    (b'{"id": 12, "carrier": "AA", "admin": true}', None),
    (b'{"id": 13, "carier": "AA"}', "the value lacks required columns: carrier"),
    (b'{"id": 14, "carrier": "XX"}', "the carrier is not known"),
    (None, "the record has no value"),
]
"""What is sent, and why it is rejected: nulls, wrong types, impossible times, unknown carriers, a repeated record, cut
JSON, text that is not UTF-8, a value without end, a field that was added, and one that was renamed."""

PLACES = """
    select case when kind = 'rule' then 5 else ("position" ->> '$.offset')::int end as "offset", reason
    from quarantine order by all
"""
"""The rejected records. What a rule rejects is a row of an output, without the position of its record."""

GOOD = [offset for offset, (_, reason) in enumerate(CORPUS) if reason is None]


def declare(workshop: Workshop, topic: str, *, known: tuple[str, ...]) -> str:
    """The stream of the corpus, whose code knows these carriers; its name."""
    source = {"connection": "flights_kafka", "topics": [topic], "value": {"format": "json", "columns": VALUES}}
    workshop.declare_stream(
        name_in(workshop),
        python=TRANSFORMATION.format(known=known),
        inputs={"records": {"stream": {"kafka": source}}},
        outputs={"main": {"iceberg": {"table": workshop.table_name("target")}}},
        quarantine=True,
    )
    return name_in(workshop)


def by_duckdb(workshop: Workshop, query: str) -> list[tuple[Any, ...]]:
    """What an engine that wrote nothing of it finds. query: names the tables as `target` and `quarantine`."""
    target, quarantine = workshop.table_name("target"), f"quarantine.{name_in(workshop)}"
    with closing(copy_lakehouse(workshop.settings, tables=[target, quarantine])) as database:
        for name, table in (("target", target), ("quarantine", quarantine)):
            database.execute(f"create view {name} as from {SEEN}.{table}")
        return database.execute(query).fetchall()


@pytest.mark.full  # every run: `test_decoding.py`, `test_row_rules.py` and `test_replays.py`, each alone
def test_each_dirty_record_is_in_the_table_or_in_the_quarantine_once(workshop: Workshop) -> None:
    workshop.declare_table("target", COLUMNS, rules=RULES)
    topic = sent(workshop, [value for value, _ in CORPUS])
    stream = declare(workshop, topic, known=("AA", "UA"))

    workshop.run_supervised(stream)

    assert by_duckdb(workshop, 'select "offset" from target order by all') == [(offset,) for offset in GOOD]
    rejected = [(offset, reason) for offset, (_, reason) in enumerate(CORPUS) if reason is not None]
    assert by_duckdb(workshop, PLACES) == rejected
    sums = totals(workshop.ledger, stream)
    assert (sums.input_rows, sums.published_rows, sums.refused_rows) == (
        len(CORPUS),
        {"main": len(GOOD)},
        len(rejected),
    )
    (result,) = recent_rule_results(workshop.ledger, stream=stream)
    assert {name: found.failed for name, found in result.rules.items()} == {
        "after_the_first_flight": 1,
        "a_flight_comes_once": 2,
    }

    declare(workshop, topic, known=("AA", "UA", "XX"))
    for _ in range(2):
        run_of(workshop).work()

    known = sorted([*GOOD, 6, 14])
    assert by_duckdb(workshop, 'select "offset" from target order by all') == [(offset,) for offset in known]
    resolved = by_duckdb(
        workshop, "select reason, resolution, count(*) from quarantine where resolution is not null group by all"
    )
    assert resolved == [("the carrier is not known", "replayed", 2)]
    assert by_duckdb(workshop, "select count(*) from quarantine") == [(len(rejected),)]
