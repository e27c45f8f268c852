"""A run stops between two batches: what it has begun is whole, and what it has not begun is left for the next run."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.workshop import Workshop

from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.run_values import DesiredState, RunState
from sluice.ledger.runs import admit_run, newest_run
from sluice.supervision.held_lease import HeldLease
from sluice_spark.run.run_threads import Heartbeat
from sluice_spark.run.stop_request import StopReason, StopRequest
from sluice_spark.session.checkpoint_metadata import read_checkpoint

FILES = 12


@pytest.fixture
def name(workshop: Workshop) -> str:
    """A stream that no other test has: the ledger is shared."""
    return f"s{workshop.namespace}"


def declare_copying(workshop: Workshop, name: str, **how: Any) -> None:
    """A stream that copies one file of its source in each batch."""
    source, target = workshop.declare_table("source", {"id": "long"}), workshop.declare_table("target", {"id": "long"})
    workshop.declare_stream(
        name,
        sql="SELECT id FROM records",
        inputs={"records": {"stream": {"iceberg": {"table": source, "max_files_per_batch": 1}}}},
        outputs={"copies": {"iceberg": {"table": target}}},
        mode="continuous",
        **how,
    )


def test_a_stream_that_pauses_is_stopped_in_a_pause(workshop: Workshop, name: str) -> None:
    declare_copying(workshop, name, trigger={"processing_time": "500 milliseconds"})
    workshop.append("source", [{"id": 1}])

    result = workshop.run(name, stop_after_batches=1)

    assert result.reason is StopReason.STOPPED
    assert not read_checkpoint(workshop.spark, workshop.checkpoint(name).as_uri()).has_unfinished_batch
    run = newest_run(workshop.ledger, name)
    assert run is not None
    assert (run.state, run.exit_code, run.reason) == (RunState.FINISHED, 0, "stopped as requested")


@pytest.mark.full  # every run: one that pauses
def test_a_stream_that_catches_up_is_stopped_between_two_batches(
    workshop: Workshop, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice_spark.run.query_run._PAUSE_SECONDS", 0.1)
    declare_copying(workshop, name, trigger={"processing_time": "1 millisecond"})
    for number in range(FILES):
        workshop.append("source", [{"id": number}])

    result = workshop.run(name, stop_after_batches=2)

    assert result.reason is StopReason.STOPPED
    copied = [row["id"] for row in workshop.rows("target")]
    assert copied == list(range(len(result.batches)))
    assert 2 <= len(copied) < FILES

    workshop.run(name, stop_after_batches=FILES - len(copied))

    assert [row["id"] for row in workshop.rows("target")] == list(range(FILES))


def test_a_request_in_the_ledger_reaches_the_run(workshop: Workshop, name: str) -> None:
    run = admit_run(workshop.ledger, stream=name, mode="continuous", declaration_digest="d", launched_by="a test")
    stop = StopRequest()
    with Heartbeat(workshop.ledger, run.run_id, stop, lease=HeldLease(stream=name, token=run.token)):
        assert not stop.wait(0.2)
        set_desired_state(workshop.ledger, name, DesiredState.STOPPED, requested_by="a test")
        assert stop.wait(10)
    assert stop.reason is StopReason.STOPPED
    seen = newest_run(workshop.ledger, name)
    assert seen is not None
    assert (seen.state, seen.heartbeat_at is not None) == (RunState.RUNNING, True)


def test_the_first_reason_stays() -> None:
    stop = StopRequest()
    stop.make(StopReason.SIGNALLED)
    stop.make(StopReason.STOPPED)
    assert stop.reason is StopReason.SIGNALLED


def test_an_error_of_the_source_fails_the_run_with_its_own_words(workshop: Workshop, name: str) -> None:
    declare_copying(workshop, name, trigger={"processing_time": "200 milliseconds"})
    workshop.append("source", [{"id": 1}])
    workshop.run(name, stop_after_batches=1)
    workshop.table("source").delete("id = 1")  # a stream reads what is appended; a deletion stops it

    with pytest.raises(Exception, match="Cannot process delete snapshot"):
        workshop.run(name, stop_after_batches=1)

    run = newest_run(workshop.ledger, name)
    assert run is not None
    assert (run.state, run.exit_code) == (RunState.FAILED, 1)
    assert "Cannot process delete snapshot" in str(run.reason)
