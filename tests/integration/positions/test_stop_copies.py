"""The copy at an orderly stop: what keeps it from being made, and that the stop is orderly all the same. No Spark."""

from __future__ import annotations

import logging

import pytest
from tests.integration.cli.test_operations import Copier, copier
from tests.integration.positions.test_repair_commands import filled

from sluice.checkpoints.checkpoint_copies import CheckpointCopy, copies_location, list_copies
from sluice.checkpoints.checkpoint_files import LocalCheckpointFiles
from sluice.settings import load_settings
from sluice.supervision.held_lease import HeldLease
from sluice_spark.run.stop_copy import COPIED_WITHIN_SECONDS, copy_at_stop
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


def copies_after(copier: Copier, checkpoint: str, *, lease: HeldLease, stop: StopRequest) -> tuple[CheckpointCopy, ...]:
    """The copies of a checkpoint when a run has stopped."""
    copy_at_stop(copier.ledger, load_settings(), checkpoint, lease=lease, stop=stop)
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
