"""The copies that a run makes: when they are made, what keeps them from it, and that the run goes on all the same."""

from __future__ import annotations

import logging
import threading
from datetime import timedelta

import pytest
from tests.fixtures.drivers import await_condition
from tests.integration.cli.test_operations import Copier, copier
from tests.integration.positions.test_repair_commands import filled

from sluice.checkpoints.checkpoint_copies import CheckpointCopy, copies_location, list_copies
from sluice.checkpoints.checkpoint_files import LocalCheckpointFiles
from sluice.settings import load_settings
from sluice.supervision.held_lease import HeldLease
from sluice_spark.run.run_threads import COPIED_WITHIN_SECONDS, RunCopies
from sluice_spark.run.stop_request import StopReason, StopRequest

__all__ = ["copier"]


class _AskedLongAgo(StopRequest):
    """A stop that was asked for too long ago for a copy."""

    @property
    def seconds_ago(self) -> float:
        return COPIED_WITHIN_SECONDS + 1


def held() -> HeldLease:
    """The lease of the run."""
    lease = HeldLease(stream="copier", token=1)
    lease.renewed(asked_at_seconds=lease.now_seconds())
    return lease


def lost() -> HeldLease:
    """A lease that another run has by now."""
    lease = held()
    lease.lost("another run has it")
    return lease


def run_copies(copier: Copier, checkpoint: str, *, lease: HeldLease, stop: StopRequest) -> RunCopies:
    """The copies of a run."""
    return RunCopies(ledger=copier.ledger, settings=load_settings(), checkpoint=checkpoint, lease=lease, stop=stop)


def copies_after(copier: Copier, checkpoint: str, *, lease: HeldLease, stop: StopRequest) -> tuple[CheckpointCopy, ...]:
    """The copies of a checkpoint when a run has stopped."""
    run_copies(copier, checkpoint, lease=lease, stop=stop).copy_at_stop()
    return list_copies(LocalCheckpointFiles(copies_location(checkpoint)))


def test_a_copy_is_made_while_the_run_has_its_lease_and_the_stop_its_time(
    copier: Copier, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = filled(copier, batches=2).as_uri()
    stop = StopRequest()
    stop.make(StopReason.STOPPED)
    with caplog.at_level(logging.INFO):
        assert copies_after(copier, checkpoint, lease=lost(), stop=stop) == ()
        assert copies_after(copier, checkpoint, lease=held(), stop=_AskedLongAgo()) == ()
        assert caplog.text.count("broke off") == 2
        (copy,) = copies_after(copier, checkpoint, lease=held(), stop=stop)

    assert copy.committed == 1
    assert f"the copy {copy.clock} of the checkpoint stands behind batch 1" in caplog.text


def test_copies_are_made_on_schedule_while_the_query_runs(copier: Copier) -> None:
    checkpoint = filled(copier, batches=2)
    store = LocalCheckpointFiles(copies_location(checkpoint.as_uri()))
    copies = run_copies(copier, checkpoint.as_uri(), lease=held(), stop=StopRequest())

    def newest() -> int:
        return max((one.committed for one in list_copies(store)), default=-1)

    with copies.made_every(timedelta(milliseconds=50)):
        await_condition(lambda: newest() == 1)
        (checkpoint / "commits/1").unlink()
        (checkpoint / "offsets/1").unlink()
        await_condition(lambda: list_copies(store)[0].committed == 0)
    left = list_copies(store)

    assert [one.committed for one in left] == [0, 1]
    assert not [thread for thread in threading.enumerate() if thread.name == "checkpoint-copies"]


def test_a_copy_that_fails_in_an_unforeseen_way_is_followed_by_the_next_one(
    copier: Copier, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = filled(copier, batches=2).as_uri()
    store, read = LocalCheckpointFiles(copies_location(checkpoint)), LocalCheckpointFiles.read_bytes
    failed: list[str] = []

    def fail_once(files: LocalCheckpointFiles, path: str) -> bytes | None:
        if not failed:
            failed.append(path)
            raise ValueError("unforeseen")
        return read(files, path)

    monkeypatch.setattr(LocalCheckpointFiles, "read_bytes", fail_once)
    with run_copies(copier, checkpoint, lease=held(), stop=StopRequest()).made_every(timedelta(milliseconds=1)):
        await_condition(lambda: bool(list_copies(store)))

    assert "failed; the next one follows" in caplog.text


def test_no_copy_is_made_on_schedule_without_the_lease(copier: Copier, caplog: pytest.LogCaptureFixture) -> None:
    checkpoint = filled(copier, batches=2).as_uri()

    with run_copies(copier, checkpoint, lease=lost(), stop=StopRequest()).made_every(timedelta(milliseconds=1)):
        await_condition(lambda: caplog.text.count("another run has it") > 1)

    assert list_copies(LocalCheckpointFiles(copies_location(checkpoint))) == ()


def test_a_copy_that_is_under_way_when_the_query_ends_is_given_up(
    copier: Copier, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = filled(copier, batches=2).as_uri()
    is_reading, may_read, read = threading.Event(), threading.Event(), LocalCheckpointFiles.read_bytes

    class End(threading.Event):
        def set(self) -> None:
            super().set()
            may_read.set()

    def wait_and_read(files: LocalCheckpointFiles, path: str) -> bytes | None:
        is_reading.set()
        may_read.wait()
        return read(files, path)

    monkeypatch.setattr(LocalCheckpointFiles, "read_bytes", wait_and_read)
    monkeypatch.setattr("sluice_spark.run.run_threads.Event", End)
    with run_copies(copier, checkpoint, lease=held(), stop=StopRequest()).made_every(timedelta(milliseconds=1)):
        is_reading.wait()

    assert list_copies(LocalCheckpointFiles(copies_location(checkpoint))) == ()
    assert "The query has ended" in caplog.text
