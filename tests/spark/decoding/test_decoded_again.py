"""What another stream stored raw is decoded again: by a replay what was rejected, by a refresh what was left out.

Every test run decodes what is stored raw (`test_table_values.py`), and has a replay (`test_replays.py`).
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.fixtures.refreshes import refresh
from tests.fixtures.workshop import Workshop

from sluice.backfill.replayable_rows import Selection
from sluice.ledger.batch_findings import undeclared_fields
from sluice_spark.backfill.replay_run import ReplayRun

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
STORED = {"raw": "binary", "customer": "string", "topic": "string", "partition": "int", "offset": "long"}
ID: dict[str, Any] = {"name": "id", "type": "long"}


def stored(workshop: Workshop, *values: bytes) -> str:
    """A table of records as a bronze stream stores them; the name of the stream that decodes them."""
    workshop.declare_table("stored", {**STORED, "timestamp": "timestamptz"})
    workshop.append(
        "stored",
        [
            {
                "raw": value,
                "customer": "same",
                "topic": "orders",
                "partition": 0,
                "offset": offset,
                "timestamp": NOON + timedelta(milliseconds=offset, microseconds=offset),
            }
            for offset, value in enumerate(values)
        ],
    )
    return f"s{workshop.namespace}"


def declare(workshop: Workshop, name: str, columns: list[dict[str, Any]], *, sql: str, target: dict[str, str]) -> None:
    """Declare what of the values becomes columns."""
    table = workshop.declare_table("target", target)
    value = {"format": "json", "columns": columns}
    source = {"table": workshop.table_name("stored"), "value_column": "raw", "value": value}
    workshop.declare_stream(
        name,
        sql=sql,
        inputs={"orders": {"stream": {"iceberg": source}}},
        outputs={"main": {"iceberg": {"table": table}}},
        quarantine=True,
    )


@pytest.mark.full
def test_a_replay_finds_rejected_records_at_their_places_and_decodes_them_as_declared_now(workshop: Workshop) -> None:
    name = stored(workshop, b'{"id": 1, "n": "x"}', b'{"id": 2, "n": 5}', b'{"id": 3, "n": "y"}', b"{")
    how: dict[str, Any] = {"sql": "SELECT id, record.offset FROM orders", "target": {"id": "long", "offset": "long"}}
    declare(workshop, name, [ID, {"name": "n", "type": "long"}], **how)
    workshop.run_supervised(name)
    assert workshop.rows("target") == [{"id": 2, "offset": 1}]
    declare(workshop, name, [ID, {"name": "n", "type": "string"}], **how)

    run = ReplayRun(
        settings=workshop.settings,
        ledger=workshop.ledger,
        stream=workshop.stream(name),
        selection=Selection(),
        asked_by="a test",
        open_session=lambda: workshop.spark,
    )
    tried = replace(run, only_tries=True).work()
    done = replace(run, planned=tried.digest).work()

    assert (tried.open, tried.by_source, tried.rows) == (3, 3, 2)
    assert (done.rows, done.marked) == (2, 2)
    assert workshop.rows("target") == [{"id": number, "offset": number - 1} for number in (1, 2, 3)]
    found = {json.loads(row["position"])["offset"]: row["resolution"] for row in workshop.rows(f"quarantine.{name}")}
    assert found == {0: "replayed", 2: "replayed", 3: None}


@pytest.mark.full  # the reading of a refresh; what is decoded is asked above
def test_a_refresh_decodes_what_an_earlier_declaration_left_out(workshop: Workshop) -> None:
    name = stored(workshop, b'{"id": 1, "word": "one"}', b'{"id": 2}', b"{")
    declare(workshop, name, [ID], sql="SELECT id FROM orders", target={"id": "long"})
    workshop.run_supervised(name)
    assert [(one.field, one.times) for one in undeclared_fields(workshop.ledger, name)] == [("word", 1)]
    word = {"name": "word", "type": "string"}
    declare(workshop, name, [ID, word], sql="SELECT id, word FROM orders", target={"id": "long", "word": "string"})

    refresh(workshop, name)

    assert workshop.rows("target") == [{"id": 1, "word": "one"}, {"id": 2, "word": None}]
    (row,) = workshop.rows(f"quarantine.{name}")
    assert (row["payload"], row["resolution"]) == ("{", None)
