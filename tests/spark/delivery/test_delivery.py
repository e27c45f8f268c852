"""Batches become visible once: after a crash between any two steps, in one table and in several."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from tests.fixtures.drill import sampled
from tests.fixtures.streams_of_tables import (
    COLUMNS,
    all_of_them,
    blind_to_what_is_there,
    dying_at,
    reading,
    writing,
)
from tests.fixtures.workshop import Workshop

from sluice.errors import CheckpointError, DeliveryError, SchemaError
from sluice.ledger.batches import recent_batches, record_batch, totals
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import newest_run
from sluice.publication.crash_points import CrashPoint
from sluice.publication.marks import read_mark
from sluice_spark.run.stop_request import StopReason


@pytest.fixture
def copying(workshop: Workshop, stream_name: str) -> Workshop:
    """A stream that appends what it reads."""
    source, target = workshop.declare_table("source", COLUMNS), workshop.declare_table("target", COLUMNS)
    workshop.declare_stream(
        stream_name, sql="SELECT id, word FROM records", inputs=reading(source), outputs=writing(target)
    )
    return workshop


@pytest.fixture
def stream_name(workshop: Workshop) -> str:
    """A stream that no other test has: the ledger is shared."""
    return f"s{workshop.namespace}"


def test_a_batch_is_appended_and_recorded(copying: Workshop, stream_name: str) -> None:
    copying.append("source", [{"id": 1, "word": "one"}, {"id": 2, "word": "two"}])

    result = copying.run(stream_name)

    assert copying.rows("target") == [{"id": 1, "word": "one"}, {"id": 2, "word": "two"}]
    assert result.reason is StopReason.EXHAUSTED
    (batch,) = result.batches
    head = copying.table("target").current_snapshot()
    assert head is not None
    assert head.summary is not None
    assert head.summary["sluice.publication-key"] == f"{stream_name}:1:0"
    assert head.summary["sluice.run-id"] == batch.run_id
    assert batch.snapshot_ids == {"copies": head.snapshot_id}
    assert (batch.input_rows, batch.published_rows, batch.refused_rows) == (2, {"copies": 2}, 0)
    assert batch.start_offsets == {"records": None}
    assert batch.end_offsets["records"]["snapshot_id"] == copying.table("source").metadata.current_snapshot_id
    run = newest_run(copying.ledger, stream_name)
    assert run is not None
    assert (run.state, run.exit_code, run.reason) == (RunState.FINISHED, 0, "everything that was there is processed")


@pytest.mark.full  # every run has it for increments (`test_increments.py`)
def test_the_next_run_reads_only_what_is_new(copying: Workshop, stream_name: str) -> None:
    copying.append("source", [{"id": 1, "word": "one"}])
    copying.run(stream_name)
    copying.append("source", [{"id": 2, "word": "two"}])

    second = copying.run(stream_name)

    assert [batch.key.batch for batch in second.batches] == [1]
    assert [row["id"] for row in copying.rows("target")] == [1, 2]


@pytest.mark.full  # every run: `test_sinks.py`, with outputs of every kind
def test_a_batch_that_was_written_and_not_noted_is_not_written_again(copying: Workshop, stream_name: str) -> None:
    copying.append("source", [{"id": 1, "word": "one"}])
    copying.run(stream_name)
    copying.forget_last_commit(stream_name)
    copying.append("source", [{"id": 2, "word": "two"}])

    again = copying.run(stream_name)

    assert [row["id"] for row in copying.rows("target")] == [1, 2]
    assert [(batch.key.batch, batch.published_rows) for batch in again.batches] == [
        (0, {"copies": 1}),
        (1, {"copies": 1}),
    ]


def test_a_batch_that_is_staged_again_meets_the_mark(copying: Workshop, stream_name: str) -> None:
    """A driver that does not find what was staged: cleared, or staged by a driver that is still at work."""
    copying.append("source", [{"id": 1, "word": "one"}])
    copying.run(stream_name)
    copying.forget_last_commit(stream_name)

    with blind_to_what_is_there():
        copying.run(stream_name)

    assert [row["id"] for row in copying.rows("target")] == [1]


def test_without_the_mark_it_would_be_written_twice(copying: Workshop, stream_name: str) -> None:
    """The guard is taken out: were this to pass without it, the test above would show nothing."""
    copying.append("source", [{"id": 1, "word": "one"}])
    copying.run(stream_name)
    copying.forget_last_commit(stream_name)

    with (
        blind_to_what_is_there(),
        patch("sluice.publication.publish_batches.batches_to_publish", side_effect=all_of_them),
    ):
        copying.run(stream_name)

    assert [row["id"] for row in copying.rows("target")] == [1, 1]


TWO_OUTPUTS = """
    from pyspark.sql import functions as fn

    def transform(records):
        refused = records.where("id < 0")
        return {
            "copies": records.where("id >= 0"),
            "words": records.where("id >= 0").select("word"),
            "quarantine": refused.select(
                fn.lit("negative id").alias("reason"),
                fn.to_json(fn.struct("id")).alias("position"),
                fn.col("word").alias("payload"),
            ),
        }
"""


@pytest.fixture
def dividing(workshop: Workshop, stream_name: str) -> Workshop:
    """A stream of two outputs that refuses some rows."""
    source, target = workshop.declare_table("source", COLUMNS), workshop.declare_table("target", COLUMNS)
    words = workshop.declare_table("words", {"word": "string"})
    workshop.declare_stream(
        stream_name,
        python=TWO_OUTPUTS,
        inputs=reading(source),
        outputs={**writing(target), "words": {"iceberg": {"table": words}}},
        quarantine=True,
    )
    return workshop


@pytest.mark.full  # every run: two outputs below, a quarantine in `test_row_rules.py`
def test_several_outputs_and_a_quarantine_come_from_one_batch(dividing: Workshop, stream_name: str) -> None:
    dividing.append("source", [{"id": 1, "word": "one"}, {"id": -7, "word": "minus seven"}, {"id": 2, "word": None}])

    (batch,) = dividing.run(stream_name).batches

    assert dividing.rows("target") == [{"id": 1, "word": "one"}, {"id": 2, "word": None}]
    assert dividing.rows("words") == [{"word": "one"}, {"word": None}]
    (refused,) = dividing.rows(f"quarantine.{stream_name}")
    assert refused.pop("refused_at") is not None
    assert refused == {
        "stream": stream_name,
        "generation": 1,
        "batch": 0,
        "reason": "negative id",
        "kind": None,
        "path": None,
        "quotes_data": None,
        "position": '{"id":-7}',
        "payload": "minus seven",
        "resolved_at": None,
        "resolution": None,
        "resolved_by": None,
    }
    assert (batch.input_rows, batch.published_rows, batch.refused_rows) == (3, {"copies": 2, "words": 2}, 1)
    assert set(batch.snapshot_ids) == {"copies", "words", "quarantine"}


@pytest.mark.full  # every run has a table that grows (`test_schema.py`)
def test_a_quarantine_of_an_older_version_gets_the_newer_columns_before_a_stream_begins(
    dividing: Workshop, stream_name: str
) -> None:
    dividing.append("source", [{"id": -7, "word": "minus seven"}])
    with dividing.table(f"quarantine.{stream_name}").update_schema() as schema:
        for column in ("kind", "path", "quotes_data", "resolved_at", "resolution", "resolved_by"):
            schema.delete_column(column)

    with pytest.raises(SchemaError) as refusal:
        dividing.run(stream_name)

    assert [one.column for one in refusal.value.differences] == ["kind", "path", "quotes_data"]
    assert f"`sluice table create quarantine.{stream_name}`" in refusal.value.next_step
    dividing.create_tables()
    (batch,) = dividing.run(stream_name).batches
    assert (batch.key.batch, batch.refused_rows) == (0, 1)


@pytest.mark.full  # every run has one without rows in a half-staged batch
def test_an_output_without_rows_moves_its_mark_and_gets_none(dividing: Workshop, stream_name: str) -> None:
    dividing.append("source", [{"id": -1, "word": "no"}])

    (batch,) = dividing.run(stream_name).batches

    assert dividing.rows("target") == []
    mark = read_mark(dividing.table("target"), stream=stream_name, output="copies")
    assert mark is not None
    assert (mark.generation, mark.batch) == (1, 0)
    assert (batch.published_rows, batch.refused_rows) == ({"copies": 0, "words": 0}, 1)
    assert set(batch.snapshot_ids) == {"copies", "words", "quarantine"}


@pytest.mark.full  # every run: staged and unknown
def test_after_a_crash_between_two_outputs_only_the_missing_ones_are_written(
    dividing: Workshop, stream_name: str
) -> None:
    dividing.append("source", [{"id": 1, "word": "one"}, {"id": -1, "word": "no"}])
    with pytest.raises(OSError, match="dies here"):
        dividing.run(stream_name, reached=dying_at(CrashPoint.FIRST_OUTPUT_PUBLISHED))
    assert len(dividing.rows("target")) == 1
    assert dividing.rows("words") == []

    dividing.run(stream_name)

    assert dividing.rows("target") == [{"id": 1, "word": "one"}]
    assert dividing.rows("words") == [{"word": "one"}]
    assert len(dividing.rows(f"quarantine.{stream_name}")) == 1


LOOKED_UP = """
    def transform(records, words):
        known = words.select("id")
        return {"known": records.join(known, "id"), "unknown": records.join(known, "id", "left_anti")}
"""


@pytest.mark.parametrize("first", sampled(["known", "unknown"], ["unknown"], full=["known"]))
def test_a_half_staged_batch_is_staged_again_from_one_computation(
    workshop: Workshop, stream_name: str, first: str
) -> None:
    """A static input changes between the crash and the repetition: the row belongs to one output then, not to both.

    first: the output that is staged before the crash. The one of unknown rows has none when it is staged again.
    """
    source, words = workshop.declare_table("source", COLUMNS), workshop.declare_table("words", {"id": "long"})
    names = sorted(("known", "unknown"), reverse=first == "unknown")
    tables = {name: workshop.declare_table(name, COLUMNS) for name in names}
    workshop.declare_stream(
        stream_name,
        python=LOOKED_UP,
        inputs={**reading(source), "words": {"static": {"iceberg": {"table": words}}}},
        outputs={name: {"iceberg": {"table": table}} for name, table in tables.items()},
    )
    workshop.append("words", [{"id": 1}])
    workshop.append("source", [{"id": 1, "word": "one"}, {"id": 2, "word": "two"}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream_name, reached=dying_at(CrashPoint.FIRST_OUTPUT_STAGED))
    workshop.append("words", [{"id": 2}])

    (batch,) = workshop.run(stream_name).batches

    assert [row["id"] for row in workshop.rows("known")] == [1, 2]
    assert workshop.rows("unknown") == []
    assert batch.published_rows == {"known": 2, "unknown": 0}


@pytest.mark.full  # every run has a half-staged batch that is written
def test_a_failed_write_is_not_taken_for_what_an_earlier_driver_has_staged(
    workshop: Workshop, stream_name: str
) -> None:
    """The first output is staged by a driver that died, and cannot be written when the batch is computed again. A write
    whose answer was lost looks like this; what is staged is of another computation here."""
    source, words = workshop.declare_table("source", COLUMNS), workshop.declare_table("words", {"id": "long"})
    known, unknown = workshop.declare_table("known", COLUMNS), workshop.declare_table("unknown", COLUMNS)
    workshop.declare_stream(
        stream_name,
        python=LOOKED_UP,
        inputs={**reading(source), "words": {"static": {"iceberg": {"table": words}}}},
        outputs={
            "known": {"iceberg": {"table": known, "mode": "merge", "keys": ["id"]}},
            "unknown": {"iceberg": {"table": unknown, "mode": "merge", "keys": ["id"]}},
        },
    )
    workshop.append("words", [{"id": 1}])
    workshop.append("source", [{"id": 1, "word": "one"}, {"id": 2, "word": "two"}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream_name, reached=dying_at(CrashPoint.FIRST_OUTPUT_STAGED))
    workshop.append("words", [{"id": 1}, {"id": 2}])

    with pytest.raises(DeliveryError, match="two rows of a batch have the key"):
        workshop.run(stream_name)

    assert (workshop.rows("known"), workshop.rows("unknown")) == ([], [])
    workshop.table("words").delete("id = 1")
    workshop.append("words", [{"id": 1}])
    workshop.run(stream_name)
    assert [row["id"] for row in workshop.rows("known")] == [1, 2]
    assert workshop.rows("unknown") == []


def test_a_missing_required_value_is_reported_with_batch_and_table(workshop: Workshop, stream_name: str) -> None:
    source = workshop.declare_table("source", COLUMNS)
    target = workshop.declare_table("target", COLUMNS, required=["id"])
    workshop.declare_stream(
        stream_name, sql="SELECT id, word FROM records", inputs=reading(source), outputs=writing(target)
    )
    workshop.append("source", [{"id": None, "word": "nobody"}])

    with pytest.raises(DeliveryError, match=rf"Batch {stream_name}:1:0 .* {target}: .*NULL value .* non-nullable"):
        workshop.run(stream_name)

    assert workshop.rows("target") == []


def test_an_output_that_does_not_fit_its_table_is_refused_with_every_difference(
    workshop: Workshop, stream_name: str
) -> None:
    source = workshop.declare_table("source", COLUMNS)
    target = workshop.declare_table("target", {"id": "int", "word": "string", "size": "long"})
    workshop.declare_stream(
        stream_name, sql="SELECT id, word AS wort FROM records", inputs=reading(source), outputs=writing(target)
    )

    with pytest.raises(SchemaError) as refusal:
        workshop.run(stream_name)

    assert refusal.value.message == (
        f"The output copies of stream {stream_name} does not fit the table {target}: id: declared int, got bigint; "
        "word: declared string, got nothing; size: declared bigint, got nothing; wort: declared nothing, got string."
    )


@pytest.mark.full  # every run: `test_lost_checkpoints.py`
def test_a_checkpoint_that_lost_its_metadata_is_refused(copying: Workshop, stream_name: str) -> None:
    copying.append("source", [{"id": 1, "word": "one"}])
    copying.run(stream_name)
    (copying.checkpoint(stream_name) / "metadata").unlink()

    with pytest.raises(CheckpointError, match=r"is registered for query .* and has no metadata"):
        copying.run(stream_name)

    assert len(copying.rows("target")) == 1


@pytest.mark.full  # every run has it for state (`test_declaration_changes.py`)
def test_a_checkpoint_of_another_query_is_refused(copying: Workshop, stream_name: str) -> None:
    copying.append("source", [{"id": 1, "word": "one"}])
    copying.run(stream_name)
    metadata = copying.checkpoint(stream_name) / "metadata"
    (metadata.parent / ".metadata.crc").unlink()
    metadata.write_text('{"id":"00000000-0000-0000-0000-000000000000"}')

    with pytest.raises(CheckpointError, match=r"is registered for query .*, got 00000000-0000"):
        copying.run(stream_name)


@pytest.mark.full  # every run adds up random streams (`test_differential.py`)
def test_batches_of_all_runs_add_up_in_the_ledger(dividing: Workshop, stream_name: str) -> None:
    for number in (1, 2):
        dividing.append("source", [{"id": number, "word": "x"}, {"id": -number, "word": "y"}])
        for batch in dividing.run(stream_name).batches:
            record_batch(dividing.ledger, batch)

    summed = totals(dividing.ledger, stream_name)

    assert (summed.batches, summed.input_rows, summed.refused_rows) == (2, 4, 2)
    assert summed.published_rows == {"copies": 2, "words": 2}
    assert len(recent_batches(dividing.ledger, stream_name, limit=10)) == 2
