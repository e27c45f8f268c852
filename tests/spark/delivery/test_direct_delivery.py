"""Iceberg's own sink, started, watched and started again by the platform."""

from __future__ import annotations

import pyarrow as pa
import pytest
from tests.fixtures.crash_scenarios import BATCHES
from tests.fixtures.faulty_drivers import declare_lost, faulty_driver
from tests.fixtures.stack import Stack
from tests.fixtures.streams_of_tables import COLUMNS, writing
from tests.fixtures.workshop import Workshop

from sluice.errors import DivergedError
from sluice.ledger.batches import recent_batches
from sluice.publication.crash_points import CrashPoint
from sluice.publication.direct_history import EPOCH, QUERY_ID, DirectWriter, direct_batches

ROWS = [{"id": number, "word": f"word {number}"} for number in range(BATCHES + 1)]


@pytest.fixture
def stream_name(workshop: Workshop) -> str:
    """A stream that no other test has: the ledger is shared."""
    return f"s{workshop.namespace}"


@pytest.fixture
def copying(workshop: Workshop, stream_name: str) -> Workshop:
    """A stream that appends what it reads, a file in a batch, into a table with partitions and a required column."""
    source = workshop.declare_table("source", COLUMNS)
    target = workshop.declare_table("target", COLUMNS, required=["id"], partitioning=[{"column": "word"}])
    workshop.declare_stream(
        stream_name,
        sql="SELECT word, id FROM records",
        inputs={"records": {"stream": {"iceberg": {"table": source, "max_files_per_batch": 1}}}},
        outputs=writing(target, delivery="direct"),
        mode="continuous",
        trigger={"processing_time": "100 milliseconds"},
    )
    return workshop


@pytest.mark.full  # every test run has its two halves: written and not noted, and not heard of by the ledger
def test_a_killed_driver_loses_and_doubles_nothing(copying: Workshop, stream_name: str, services: Stack) -> None:
    for row in ROWS[:BATCHES]:
        copying.append("source", [row])
    dying = faulty_driver(copying, services.environment(), stream_name, point=CrashPoint.PUBLISHED, occurrence=2)
    with dying as driver:
        driver.await_death()
    declare_lost(copying, stream_name)
    copying.append("source", [ROWS[-1]])

    second = copying.run(stream_name, stop_when=lambda batch: batch.key.batch == BATCHES)

    assert copying.rows("target") == ROWS
    by_first = recent_batches(copying.ledger, stream_name, limit=100)
    recorded = {batch.key.batch: batch for batch in (*by_first, *second.batches)}  # by a run here, to the test alone
    visible = {
        batch.batch: batch for batch in direct_batches(copying.table("target"), stream=stream_name, output="copies")
    }
    assert sorted(visible) == sorted(recorded) == list(range(BATCHES + 1))
    last = recorded[BATCHES]
    assert last.snapshot_ids == {"copies": visible[BATCHES].snapshot_id}
    assert last.published_rows == {"copies": 1}
    assert last.input_rows == 1
    assert last.end_offsets["records"]["snapshot_id"] == copying.table("source").metadata.current_snapshot_id
    for number, batch in recorded.items():
        assert batch.snapshot_ids == {"copies": visible[number].snapshot_id}
        assert batch.published_rows == {"copies": 1}


def test_a_batch_that_was_written_and_not_noted_is_skipped_and_recorded(copying: Workshop, stream_name: str) -> None:
    copying.append("source", [ROWS[0]])
    (first,) = copying.run(stream_name, stop_after_batches=1).batches
    copying.forget_last_commit(stream_name)
    copying.append("source", [ROWS[1]])

    again = copying.run(stream_name, stop_after_batches=2)

    assert copying.rows("target") == ROWS[:2]
    assert [batch.key.batch for batch in again.batches] == [0, 1]
    assert again.batches[0].snapshot_ids == first.snapshot_ids
    assert [batch.published_rows for batch in again.batches] == [{"copies": 1}, {"copies": 1}]


def test_what_the_ledger_did_not_hear_of_is_recorded_by_the_next_run(copying: Workshop, stream_name: str) -> None:
    """The workshop's own runs record nothing: as if every driver had died before its ledger's thread came to it."""
    copying.append("source", [ROWS[0]])
    (first,) = copying.run(stream_name, stop_after_batches=1).batches
    copying.append("source", [ROWS[1]])

    recovered, _ = copying.run(stream_name, stop_after_batches=2).batches

    assert recovered.key == first.key
    assert recovered.run_id == first.run_id
    assert (recovered.start_offsets, recovered.end_offsets) == (first.start_offsets, first.end_offsets)
    assert (recovered.published_rows, recovered.snapshot_ids) == (first.published_rows, first.snapshot_ids)


@pytest.mark.full  # every run records one with its offsets
def test_a_batch_whose_offsets_spark_has_purged_is_recorded_without_them(copying: Workshop, stream_name: str) -> None:
    """A ledger that was set back by a minute forgets more batches than Spark keeps offsets of."""
    for number, row in enumerate(ROWS[:3]):
        copying.append("source", [row])
        batches = copying.run(stream_name, stop_after_batches=number + 1).batches
    (copying.checkpoint(stream_name) / "offsets" / "0").unlink()
    copying.append("source", [ROWS[3]])

    recovered = copying.run(stream_name, stop_after_batches=4).batches

    assert [batch.published_rows for batch in recovered] == [{"copies": 1}] * 4
    assert [bool(batch.end_offsets) for batch in recovered] == [False, False, True, True]
    assert recovered[2].start_offsets == batches[2].start_offsets


@pytest.mark.full  # every run has it without Spark (`test_direct.py`)
def test_a_history_that_is_cut_off_behind_an_unfinished_batch_is_refused(copying: Workshop, stream_name: str) -> None:
    """Iceberg's sink would append the batch a second time. The pin protects the snapshot until it is removed."""
    copying.append("source", [ROWS[0]])
    copying.run(stream_name, stop_after_batches=1)
    copying.forget_last_commit(stream_name)
    written = copying.table("target").current_snapshot()
    assert written is not None
    copying.append("target", [{"id": 99, "word": "another writer"}])
    (pin,) = (name for name, ref in copying.table("target").refs().items() if ref.snapshot_id == written.snapshot_id)
    with pytest.raises(ValueError, match="is protected"):
        copying.table("target").maintenance.expire_snapshots().by_id(written.snapshot_id).commit()
    copying.table("target").manage_snapshots().remove_tag(pin).commit()
    copying.table("target").maintenance.expire_snapshots().by_id(written.snapshot_id).commit()

    with pytest.raises(DivergedError, match="it is unknown whether the batch is in the table"):
        copying.run(stream_name, stop_after_batches=1)

    assert len(copying.rows("target")) == 2


def test_an_old_driver_that_writes_beside_its_successor_is_reported(copying: Workshop, stream_name: str) -> None:
    """It cannot be held back, as staged delivery does; the run ends and names its snapshot."""
    for row in ROWS[:2]:
        copying.append("source", [row])
    zombie = DirectWriter(stream=stream_name, output="copies", generation=1, run_id="the old one", token=0)
    written = [{QUERY_ID: "query", EPOCH: "0", **zombie.properties()}]

    def reached(here: CrashPoint) -> None:
        if here is CrashPoint.PUBLISHED and written:
            table = copying.table("target")
            rows = pa.Table.from_pylist([ROWS[0]], schema=table.schema().as_arrow())
            table.append(rows, snapshot_properties=written.pop())
            copying.append("source", [ROWS[2]])

    with pytest.raises(DivergedError, match="got batch 0 from run the old one, token 0, after this run"):
        copying.run(stream_name, reached=reached)
