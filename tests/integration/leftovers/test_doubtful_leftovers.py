"""What is written, given up or in doubt: it stays, it is dated and noted, and it is listed with the reason."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta
from pathlib import Path

from tests.fixtures.left_behind import age
from tests.fixtures.publication import COLUMNS
from tests.integration.cli.test_operations import copier
from tests.integration.leftovers.test_leftovers import ANN, Yard, empty_yard, yard
from tests.integration.leftovers.test_unseen_leftovers import FOLDER, local

from sluice.errors import UnhealthyError
from sluice.leftovers.remove_leftovers import clean
from sluice.publication.crash_points import CrashPoint

__all__ = ["COLUMNS", "copier", "empty_yard", "yard"]


@FOLDER
def test_a_checkpoint_that_is_written_between_the_look_and_its_removal_stays(yard: Yard) -> None:
    """A night's removal takes long: here a driver that was given up writes while what comes before it is removed. "The
    time counts from the newest change of a file, too: a driver that was given up may write" (0104)."""
    age(yard.ledger, yard.stream, days=40)
    checkpoint = local(yard.settings.checkpoints) / yard.stream / "1"
    written: list[Path] = []

    def drives_on(here: CrashPoint) -> None:
        if here is CrashPoint.CLEARED and not written:  # the copies are gone, the checkpoint is next
            written.append(checkpoint / "offsets" / "1")
            written[0].write_text("written today")

    left = yard.left(later=timedelta(0))
    assert [one.kind for one in left.due] == ["copies", "checkpoint"]
    with suppress(UnhealthyError):
        clean(left, actor=ANN, reached=drives_on)

    assert written[0].exists(), "what was written today is removed"
