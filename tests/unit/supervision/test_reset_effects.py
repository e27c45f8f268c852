"""What the plan of a reset says of inputs and outputs, kind by kind."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.streams import continuous_stream

from sluice.sources.table_starts import ObservedStart, StartAmount
from sluice.supervision.reset_effects import describe_inputs, describe_outputs

ONLY_NEW = "only what comes after that start; what came since the last batch is never read"
TWICE = "what is read again is published again: earlier rows are there twice"
PARTLY = "what the input no longer contains is missing from the new ones"
KAFKA = {"connection": "flights_kafka", "topics": ["flights"]}
FILES = {"connection": "landing", "format": "text", "path": "in"}


@pytest.mark.parametrize(
    ("source", "described"),
    [
        ({"kafka": KAFKA}, "every record that its topics still contain"),
        ({"kafka": KAFKA | {"starting": "latest"}}, ONLY_NEW),
        ({"kafka": KAFKA | {"starting": {"flights": {0: 7}}}}, "every record from the declared offsets on"),
        ({"kafka": KAFKA | {"starting": "2026-01-01T00:00:00Z"}}, "every record since 2026-01-01T00:00:00+00:00"),
        ({"kinesis": {"connection": "k", "stream": "s"}}, "every record that it still contains"),
        ({"kinesis": {"connection": "k", "stream": "s", "starting": "latest"}}, ONLY_NEW),
        ({"files": FILES}, "every file that lies below in"),
        (
            {"files": FILES | {"afterwards": "delete"}},
            "every file that lies below in; what was read is gone from there (`afterwards`)",
        ),
        (
            {"iceberg": {"table": "bronze.flights"}},
            "every row of bronze.flights, then what is appended",
        ),
        ({"iceberg": {"table": "bronze.flights", "starting": "latest"}}, ONLY_NEW),
        (
            {"iceberg": {"table": "bronze.flights", "starting": "2026-01-01T00:00:00Z"}},
            "what was appended to bronze.flights since 2026-01-01T00:00:00+00:00",
        ),
        (
            {"iceberg": {"table": "bronze.flights", "from_timestamp": "2026-01-01T00:00:00Z"}},
            "what was appended to bronze.flights since 2026-01-01T00:00:00+00:00",
        ),
        (
            {"iceberg": {"table": "bronze.flights", "starting": {"snapshot_id": 7}}},
            "what was appended to bronze.flights after snapshot 7",
        ),
        (
            {"iceberg": {"table": "bronze.flights", "starting": {"tag": "loaded"}}},
            "what was appended to bronze.flights after the snapshot with the tag loaded",
        ),
        ({"delta": {"connection": "landing", "path": "rows"}}, "every row of rows"),
        ({"rate": {}}, ONLY_NEW),
    ],
)
def test_what_the_next_start_reads(source: dict[str, Any], described: str) -> None:
    declared = continuous_stream(inputs={"rows": {"stream": source}}).declaration
    assert list(describe_inputs(declared)) == [f"The next start reads from input rows: {described}."]


@pytest.mark.parametrize(
    ("observed", "ends"),
    [
        (
            ObservedStart(amount=StartAmount(rows=3_002_650, data_bytes=5 * 1024**2)),
            "3,002,650 rows in 5.0 MiB of files.",
        ),
        (ObservedStart(amount=StartAmount(rows=7, data_bytes=None)), "; now these are 7 rows."),
        (
            ObservedStart(amount=StartAmount(rows=7, data_bytes=900, in_one_batch=True)),
            "7 rows in 900 bytes of files, all of them in the first batch, whatever the input's limits.",
        ),
        (ObservedStart(problem="the catalog does not answer"), "is unknown: the catalog does not answer."),
        (
            ObservedStart(refusal="it lies ahead"),
            "The next start is refused because of input rows: it lies ahead.",
        ),
    ],
)
def test_how_much_the_next_start_reads(observed: ObservedStart, ends: str) -> None:
    inputs = {"rows": {"stream": {"iceberg": {"table": "bronze.flights"}}}}
    (sentence,) = describe_inputs(continuous_stream(inputs=inputs).declaration, {"rows": observed})
    assert sentence.endswith(ends)


def test_a_static_input_is_not_mentioned() -> None:
    inputs = {
        "rows": {"stream": {"kafka": KAFKA}},
        "names": {"static": {"iceberg": {"table": "bronze.names"}}},
    }
    assert len(list(describe_inputs(continuous_stream(inputs=inputs).declaration))) == 1


@pytest.mark.parametrize(
    ("output", "described"),
    [
        ({"iceberg": {"table": "b.t"}}, f"table b.t, append: {TWICE}"),
        ({"iceberg": {"table": "b.t", "delivery": "direct"}}, f"table b.t, append: {TWICE}"),
        (
            {"iceberg": {"table": "b.t", "mode": "merge", "keys": ["id", "day"]}},
            "table b.t, merge: what is read again replaces the rows of the same id, day",
        ),
        (
            {"iceberg": {"table": "b.t", "mode": "complete"}},
            f"table b.t, complete: the first batch replaces all rows; {PARTLY}",
        ),
        (
            {"iceberg": {"table": "b.t", "mode": "overwrite_partitions"}},
            f"table b.t, overwrite_partitions: each batch replaces the partitions of its rows; {PARTLY}",
        ),
        ({"delta": {"connection": "landing", "path": "t"}}, f"Delta table t, append: {TWICE}"),
        (
            {"delta": {"connection": "landing", "path": "t", "mode": "overwrite"}},
            f"Delta table t, overwrite: the first batch replaces all rows; {PARTLY}",
        ),
        ({"kafka": {"connection": "flights_kafka", "topic": "t"}}, "kafka: what is read again is sent again"),
        ({"files": {"connection": "landing", "path": "t"}}, f"files: {TWICE}, in folders of generation 3"),
        ({"python": {"function": "f.py:f"}}, "python: it receives what is read again"),
    ],
)
def test_what_becomes_of_rows_that_are_published_already(output: dict[str, Any], described: str) -> None:
    declared = continuous_stream(outputs={"main": output}).declaration
    assert list(describe_outputs(declared, generation=3, keeps_state=False)) == [f"Output main, {described}."]


def test_a_merge_with_state_lacks_what_the_input_lost() -> None:
    outputs = {"main": {"iceberg": {"table": "b.t", "mode": "merge", "keys": ["id"]}}}
    declared = continuous_stream(outputs=outputs).declaration
    (described,) = describe_outputs(declared, generation=2, keeps_state=True)
    assert described.endswith(f"replaces the rows of the same id; its state begins empty, so {PARTLY}.")


def test_the_quarantine_is_described() -> None:
    declared = continuous_stream(quarantine=True).declaration
    assert f"Quarantine, quarantine.flights: {TWICE}." in describe_outputs(declared, generation=2, keeps_state=False)
