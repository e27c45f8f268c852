"""What is written, given up or in doubt: it stays, it is dated and noted, and it is listed with the reason."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.fixtures.left_behind import age, reset
from tests.fixtures.publication import COLUMNS
from tests.integration.cli.test_operations import Copier, copier
from tests.integration.leftovers.test_leftovers import ANN, Yard, empty_yard, left_of, yard
from tests.integration.leftovers.test_unseen_leftovers import FOLDER, local

from sluice.errors import UnhealthyError
from sluice.leftovers.remove_leftovers import clean
from sluice.publication.crash_points import CrashPoint
from sluice.settings import load_settings

__all__ = ["COLUMNS", "copier", "empty_yard", "yard"]


@pytest.fixture
def readable() -> Iterator[Path]:
    """A folder that every user may enter."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_a_folder_whose_files_may_be_listed_and_not_looked_at_keeps_no_other(
    copier: Copier, readable: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rights of a folder are r and not x for the user of Airflow: `Path.is_symlink` raises PermissionError, which
    is no `CheckpointError`."""
    monkeypatch.setenv("SLUICE_CHECKPOINTS", readable.as_uri())
    settings = load_settings()
    stream, other = f"a{copier.stream}", f"z{copier.stream}"
    reset(copier.ledger, stream, settings)
    reset(copier.ledger, other, settings)
    left = replace(left_of(copier), settings=settings, stream="")
    assert {one.stream for one in left.found} >= {stream, other}
    (readable / stream / "1" / "state").chmod(0o744)
    (readable / stream / "1").chmod(0o744)
    left = replace(left_of(copier), settings=settings, stream="")

    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        streams = {one.stream for one in left.found}
    finally:
        if os.getuid() == 0:
            os.seteuid(0)

    assert other in streams


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
