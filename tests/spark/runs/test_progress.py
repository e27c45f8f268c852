"""Spark's report of a batch becomes an observation, and an observation becomes one line."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sluice_spark.delivery.delivery_port import DeliveredBatch, DeliveringRun
from sluice_spark.run.progress_listener import BatchOrigin, batch_line, observe_batch

RUN = DeliveringRun(stream="silver_flights", generation=2, run_id="r1", token=1)
ORIGIN = BatchOrigin(run=RUN, sources=("records", "words"))
DELIVERED = DeliveredBatch(rows={"flights": 6094, "quarantine": 34})
PROGRESS: dict[str, Any] = {
    "batchId": 7,
    "timestamp": "2026-11-20T16:44:46.000Z",
    "numInputRows": 12516,
    "durationMs": {"addBatch": 900, "triggerExecution": 1234},
    "eventTime": {"watermark": "2013-01-07T23:49:00.000Z"},
    "stateOperators": [
        {
            "operatorName": "dedupeWithinWatermark",
            "numRowsTotal": 400,
            "memoryUsedBytes": 5000,
            "numRowsDroppedByWatermark": 5,
            "customMetrics": {"numDroppedDuplicateRows": 125},
        },
        {
            "operatorName": "stateStoreSave",
            "numRowsTotal": 30,
            "memoryUsedBytes": 700,
            "numRowsDroppedByWatermark": 0,
            "customMetrics": {},
        },
    ],
    "sources": [
        {"startOffset": None, "endOffset": {"snapshot_id": 3}},
        {"startOffset": {"snapshot_id": 1}, "endOffset": {"snapshot_id": 2}},
    ],
    "observedMetrics": {"sluice.input.records": {"rows": 6258}, "another": {"rows": 1}},
}


def test_a_report_becomes_an_observation() -> None:
    batch = observe_batch(PROGRESS, DELIVERED, ORIGIN)

    assert str(batch.key) == "silver_flights:2:7"
    assert batch.started_at == datetime(2026, 11, 20, 16, 44, 46, tzinfo=UTC)
    assert (batch.duration_ms, batch.durations_ms["addBatch"]) == (1234, 900)
    assert batch.input_rows == 6258  # not Spark's number, which counts the source once for each output
    assert batch.published_rows == {"flights": 6094}
    assert (batch.refused_rows, batch.late_rows, batch.duplicate_rows) == (34, 5, 125)
    assert batch.input_rows == 6094 + 34 + 5 + 125
    assert batch.watermark == datetime(2013, 1, 7, 23, 49, tzinfo=UTC)
    assert batch.start_offsets == {"records": None, "words": {"snapshot_id": 1}}
    assert batch.end_offsets == {"records": {"snapshot_id": 3}, "words": {"snapshot_id": 2}}
    assert batch.snapshot_ids == {}  # Spark does not know them


def test_the_state_is_that_of_all_operators_and_unset_without_any() -> None:
    batch = observe_batch(PROGRESS, DELIVERED, ORIGIN)
    stateless = observe_batch({**PROGRESS, "stateOperators": []}, DELIVERED, ORIGIN)

    assert (batch.state_rows, batch.state_bytes) == (430, 5700)
    assert (stateless.state_rows, stateless.state_bytes) == (None, None)


def test_the_late_rows_of_an_aggregation_are_those_counted_below_it() -> None:
    """Spark's own number is one of groups; without the metric it is better than none."""
    operators = [
        {"operatorName": "stateStoreSave", "numRowsDroppedByWatermark": 4, "customMetrics": {}},
        {"operatorName": "symmetricHashJoin", "numRowsDroppedByWatermark": 3, "customMetrics": {}},
    ]
    windowed = {**PROGRESS, "stateOperators": operators}
    counted = {**windowed, "observedMetrics": {"sluice.late.0": {"rows": 1000}, "sluice.late.1": {"rows": 10}}}

    assert observe_batch(counted, DELIVERED, ORIGIN).late_rows == 1013
    assert observe_batch(windowed, DELIVERED, ORIGIN).late_rows == 7


def test_a_watermark_that_saw_no_event_is_none() -> None:
    untouched = {**PROGRESS, "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"}}
    assert observe_batch(untouched, DELIVERED, ORIGIN).watermark is None
    assert observe_batch({**PROGRESS, "eventTime": {}}, DELIVERED, ORIGIN).watermark is None


def test_the_line_of_a_batch() -> None:
    assert batch_line(observe_batch(PROGRESS, DELIVERED, ORIGIN)) == (
        "batch 7: 6258 in, 6094 flights, 34 refused, 5 late, 125 duplicate, 1.23 s, watermark 2013-01-07 23:49"
    )
