"""A new stream begins as declared: with every row that a table holds, whatever became of its history."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.begun_tables import BegunStream, PastTable, declare_past
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop

from sluice.errors import DeclarationError
from sluice.operations import OperationPlan, OperationVerb
from sluice.publication.crash_points import CrashPoint
from sluice.settings import FilesConnection
from sluice.supervision.control_plans import with_beginning
from sluice_spark.run.table_beginning import begin_in_tables

BEGINNING = "sluice_spark.run.run_start.begin_in_tables"

SAMPLE = [
    pytest.param("append", "fresh", False, marks=pytest.mark.full),  # every run copies fresh tables
    pytest.param("merge", "partitions evolved", True, marks=pytest.mark.full),
    pytest.param("window", "compacted and expired", True, marks=pytest.mark.full),
    pytest.param("deduplicate", "merged", False, marks=pytest.mark.full),  # the join has state as well
    pytest.param("join", "expired", True, marks=pytest.mark.full),
    ("append", "expired", True),
]


@pytest.mark.parametrize(("kind", "past", "is_written"), SAMPLE)
def test_every_row_of_the_table_is_read_once(
    kind: str, past: str, is_written: bool, workshop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer commits between the decision where the stream begins and its first batch."""
    source, other = declare_past(workshop, kind, past)
    stream = BegunStream.declare(kind, source, other)
    if is_written:
        _append_before_the_first_batch(monkeypatch, *(table for table in (source, other) if table is not None))

    stream.run()
    stream.run()

    assert stream.got() == stream.right()
    source.append(6, 9, word="new", minutes=100_000)
    stream.run()
    assert stream.got() == stream.right()


@pytest.mark.full  # every run reads each row once by increments
def test_a_continuous_stream_reads_the_table_in_one_batch_and_then_within_its_limits(workshop: Workshop) -> None:
    source = PastTable.declare(workshop, "source", appends=3)
    source.expire()
    source.append(10, 12)
    source.append(12, 14)
    stream = BegunStream.declare("append", source, is_continuous=True, max_files_per_batch=1)

    done = stream.run(stop_when=lambda batch: len(stream.got()) >= 10)

    assert [batch.published_rows["rows"] for batch in done.batches if batch.published_rows["rows"]] == [6, 2, 2]
    assert stream.got() == stream.right()


@pytest.mark.full
def test_a_first_batch_that_crashed_is_read_again_whatever_was_expired_meanwhile(workshop: Workshop) -> None:
    source = PastTable.declare(workshop, "source", appends=3)
    source.expire()
    stream = BegunStream.declare("append", source)

    with pytest.raises(Exception, match="dies here"):
        stream.run(reached=dying_at(CrashPoint.BATCH_BEGUN))
    source.compact()
    source.expire()
    source.append(12, 14)
    stream.run()

    assert stream.got() == stream.right()


@pytest.mark.full  # every run: the plan of a reset (`test_resets.py`)
def test_the_plan_of_the_first_start_says_how_much_is_read(workshop: Workshop) -> None:
    source = PastTable.declare(workshop, "source", appends=2)
    source.expire()
    stream = BegunStream.declare("append", source)
    refused = BegunStream.declare("append", source, starting={"tag": "nowhere"})

    def begins(one: BegunStream) -> str:
        plan = OperationPlan(verb=OperationVerb.START, subject=one.name, seen=None)
        (step,) = with_beginning(plan, workshop.ledger, workshop.stream(one.name), workshop.settings).steps
        return step.sentence

    data_bytes = sum(task.file.file_size_in_bytes for task in workshop.table(source.name).scan().plan_files())
    assert begins(stream) == (
        f"The next start reads from input records: every row of {source.name}, then what is appended; now these are 4 "
        f"rows in {data_bytes:,} bytes of files, all of them in the first batch, whatever the input's limits."
    )
    assert begins(refused).startswith("The next start is refused because of input records: ")


def test_a_table_with_delete_files_is_refused_and_nothing_is_read(workshop: Workshop) -> None:
    source = PastTable.declare(workshop, "source", appends=1)
    source.append(2, 9)
    source.delete_on_read(3)
    stream = BegunStream.declare("append", source)

    with pytest.raises(DeclarationError, match="has 1 delete files") as refusal:
        stream.run()

    assert "rewrite_data_files" in refusal.value.next_step
    assert stream.got() == []


@pytest.mark.full  # every run has the refusals without Spark (`unit/sources/test_table_starts.py`)
def test_a_start_that_cannot_be_reached_is_refused(workshop: Workshop) -> None:
    source = PastTable.declare(workshop, "source", appends=2)
    source.expire()
    starts: dict[str, Any] = {
        "does not reach back to 2020": "2020-01-01T00:00:00Z",
        "lies ahead": "2999-01-01T00:00:00Z",
        "does not reach back to snapshot 7": {"snapshot_id": 7},
        "has no tag nowhere": {"tag": "nowhere"},
    }

    for reason, starting in starts.items():
        stream = BegunStream.declare("append", source, starting=starting)
        with pytest.raises(DeclarationError, match=f"Input records cannot begin as declared: .*{reason}"):
            stream.run()
        assert stream.got() == []


@pytest.mark.full
def test_a_stream_begins_after_a_snapshot_a_tag_a_time_or_now(workshop: Workshop) -> None:
    source = PastTable.declare(workshop, "source", appends=2)
    source.merge(3, word="merged")
    loaded = workshop.table(source.name)
    snapshot = loaded.current_snapshot()
    assert snapshot is not None
    loaded.manage_snapshots().create_tag(snapshot.snapshot_id, "loaded").commit()
    source.append(10, 12)
    begun = workshop.table(source.name).current_snapshot()
    assert begun is not None
    time = datetime.fromtimestamp(begun.timestamp_ms / 1000, UTC).isoformat()
    after = [
        BegunStream.declare("append", source, starting={"snapshot_id": snapshot.snapshot_id}),
        BegunStream.declare("append", source, starting={"tag": "loaded"}),
        BegunStream.declare("append", source, starting=time),
    ]
    now = BegunStream.declare("append", source, starting="latest")

    for stream in (*after, now):
        stream.run()
    source.append(12, 13)
    for stream in (*after, now):
        stream.run()

    for stream in after:
        assert [row[0] for row in stream.got()] == [10, 11, 12]
    assert [row[0] for row in now.got()] == [12]


@pytest.mark.full  # every run has the rule (`unit/sources/test_table_starts.py`)
def test_now_is_after_a_merge_too(workshop: Workshop) -> None:
    source = PastTable.declare(workshop, "source", appends=1)
    source.merge(3, word="merged")
    stream = BegunStream.declare("append", source, starting="latest")

    stream.run()
    source.append(12, 13)
    stream.run()

    assert [row[0] for row in stream.got()] == [12]


@pytest.mark.full  # only earlier versions have left such a checkpoint
def test_a_stream_that_was_begun_goes_on_whatever_is_declared_now(workshop: Workshop) -> None:
    """The first offset was left to Iceberg's source, as in former versions."""
    source = PastTable.declare(workshop, "source", appends=2)
    source.append(10, 12)
    source.expire()
    stream = BegunStream.declare("append", source)
    with pytest.MonkeyPatch.context() as former:
        former.setattr(BEGINNING, lambda _spark, _ledger, _plan, checkpoint, _settings, **_: checkpoint)
        stream.run()
    assert [row[0] for row in stream.got()] == [10, 11], "what the oldest snapshot added"

    source.append(12, 13)
    stream.run()

    assert [row[0] for row in stream.got()] == [10, 11, 12]


@pytest.mark.full
def test_a_delta_table_whose_log_no_longer_reaches_the_declared_time_is_refused(
    workshop: Workshop, tmp_path: Path
) -> None:
    lake = FilesConnection(kind="files", root=(tmp_path / "lake").as_uri())
    connections = {**workshop.settings.connections, "lake": lake}
    own = replace(workshop, settings=workshop.settings.model_copy(update={"connections": connections}))
    folder = tmp_path / "lake" / "numbers"
    for number in range(3):
        rows = own.spark.range(number, number + 1)
        rows.write.format("delta").mode("append").option("delta.checkpointInterval", "1").save(folder.as_uri())
    (folder / "_delta_log" / "00000000000000000000.json").unlink()
    target = own.declare_table("target", {"id": "long"})
    name = f"d{own.namespace}"
    for keys, ids in (({"from_timestamp": "2020-01-01T00:00:00Z"}, []), ({}, [0, 1, 2])):
        own.declare_stream(
            name,
            sql="SELECT id FROM rows",
            inputs={"rows": {"stream": {"delta": {"connection": "lake", "path": "numbers", **keys}}}},
            outputs={"main": {"iceberg": {"table": target}}},
        )
        with pytest.raises(DeclarationError, match="is version 1, of") if keys else nullcontext():
            own.run(name)
        assert [row["id"] for row in own.rows("target")] == ids


def _append_before_the_first_batch(monkeypatch: pytest.MonkeyPatch, *tables: PastTable) -> None:
    left = [True]

    def begin_and_append(*arguments: Any, **named: Any) -> Any:
        begun = begin_in_tables(*arguments, **named)
        if left:
            left.clear()
            for table in tables:
                table.append(100, 104, word="beside", minutes=60)
                table.append(102, 106, word="beside again", minutes=90)
        return begun

    monkeypatch.setattr(BEGINNING, begin_and_append)
