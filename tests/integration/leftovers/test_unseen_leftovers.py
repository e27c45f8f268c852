"""What cannot be seen now, or lies behind links, is neither removed nor called gone, and keeps nothing else."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from pyiceberg.exceptions import ServerError
from pyiceberg.table import Table
from sqlalchemy import insert, select, update
from tests.fixtures.left_behind import age, reset
from tests.fixtures.publication import COLUMNS
from tests.integration.cli.test_operations import Copier, copier
from tests.integration.leftovers.test_left_tables import DAY, abandoned, failing, has_ended, staged
from tests.integration.leftovers.test_leftovers import ANN, Yard, empty_yard, left_of, yard

from sluice.backfill.intervals import name_part
from sluice.checkpoints.checkpoint_copies import rehearsal_location
from sluice.checkpoints.checkpoint_files import LocalCheckpointFiles, open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import FileObservation
from sluice.errors import CheckpointError, CheckpointStorageError, UnhealthyError
from sluice.ledger.backfill_attempts import begin_attempt
from sluice.ledger.events import LedgerEvent
from sluice.ledger.generations import record_identities
from sluice.ledger.refreshes import Refresh, RefreshObservation
from sluice.ledger.table_writers import known_writes
from sluice.leftovers.remove_leftovers import clean, plan_cleaning
from sluice.publication.crash_points import CrashPoint
from sluice.publication.staging_layout import BACKFILL_NAMESPACE
from sluice.settings import load_settings
from sluice.sources.source_identities import output_table_name
from sluice.tables.catalog import BoundedRestCatalog

__all__ = ["COLUMNS", "copier", "empty_yard", "yard"]

FOLDER = pytest.mark.parametrize("empty_yard", ["folder"], indirect=True)


def local(uri: str) -> Path:
    """The folder at a URI."""
    return Path(unquote(urlsplit(uri).path))


@pytest.mark.full  # every run: a mark that cannot be read (`test_leftovers.py`)
def test_a_table_that_cannot_be_loaded_keeps_no_other_stream(copier: Copier, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its metadata file is gone, so that the catalog answers 500 for it alone."""
    settings = load_settings()
    reset(copier.ledger, copier.stream, settings)
    record_identities(copier.ledger, copier.stream, 2, {output_table_name(copier.bench.output.target): "uuid"})
    other = f"z{copier.stream}"
    reset(copier.ledger, other, settings)
    assert other in {one.stream for one in replace(left_of(copier), stream="").found}
    load = BoundedRestCatalog.load_table

    def broken(catalog: BoundedRestCatalog, name: Any) -> Table:
        if name == copier.bench.output.target:
            raise ServerError("RuntimeIOException: Failed to open the metadata file")
        loaded: Table = load(catalog, name)
        return loaded

    monkeypatch.setattr(BoundedRestCatalog, "load_table", broken)

    left = replace(left_of(copier), stream="")

    assert other in {one.stream for one in left.found}
    assert copier.stream not in {one.stream for one in left.found}, "it is unknown where its table stands"


@pytest.mark.full  # every run: a link (`test_leftovers.py`)
@FOLDER
def test_a_folder_that_is_a_loop_of_links_keeps_no_other(yard: Yard) -> None:
    """`Path.resolve` of Python 3.11 raises RuntimeError for one."""
    folder = local(yard.settings.checkpoints) / yard.stream / "1"
    shutil.rmtree(folder)
    folder.symlink_to(folder)

    assert [(one.kind, bool(one.problem)) for one in yard.left().found] == [("copies", True), ("checkpoint", True)]
    other = f"z{yard.stream}"
    reset(yard.ledger, other, yard.settings)
    assert {one.stream for one in replace(yard.left(), stream="").due} >= {other}


@FOLDER
def test_copies_of_a_checkpoint_that_was_not_listed_stay(yard: Yard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later generation that a restored ledger does not know may write the checkpoint today. Its newest change is not
    seen, so nothing is known of since when it is not needed, and its copies are needed as long as it is."""
    age(yard.ledger, yard.stream, days=40)
    (local(yard.settings.checkpoints) / yard.stream / "1" / "offsets" / "1").write_text("written today")
    now = timedelta(0)
    assert yard.left(later=now).due == (), "the checkpoint was written today"
    listed = LocalCheckpointFiles.list_files

    def refused(files: LocalCheckpointFiles, folder: str = "") -> Sequence[FileObservation]:
        if files.location.endswith(f"/{yard.stream}/1") and "/." not in files.location:
            raise CheckpointStorageError("The folder cannot be listed: Input/output error.")
        return listed(files, folder)

    monkeypatch.setattr(LocalCheckpointFiles, "list_files", refused)
    assert yard.left(later=now).due == ()


@FOLDER
def test_copies_of_a_checkpoint_that_is_a_link_stay_while_it_is_written(yard: Yard, tmp_path: Path) -> None:
    """The same without any failure: somebody has moved the folder to a larger disk."""
    folder, moved = local(yard.settings.checkpoints) / yard.stream / "1", tmp_path / "larger_disk"
    folder.rename(moved)
    folder.symlink_to(moved)
    age(yard.ledger, yard.stream, days=40)
    (moved / "offsets" / "1").write_text("written today")

    assert yard.left(later=timedelta(0)).due == ()


@FOLDER
def test_what_a_rehearsal_left_and_cannot_be_listed_is_no_green_end(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = open_checkpoint_files(
        rehearsal_location(f"{yard.settings.checkpoints}/{yard.stream}/1"), yard.settings.object_store
    )
    trial.write_text("state/0/0/1.delta", "ten bytes.")
    listed = LocalCheckpointFiles.list_files

    def refused(files: LocalCheckpointFiles, folder: str = "") -> Sequence[FileObservation]:
        if "/.rehearsals/" in files.location:
            raise CheckpointStorageError("The folder cannot be listed: Input/output error.")
        return listed(files, folder)

    with monkeypatch.context() as away:
        away.setattr(LocalCheckpointFiles, "list_files", refused)
        with pytest.raises(UnhealthyError, match="Input/output error"):
            clean(yard.left(), actor=ANN)


@FOLDER
def test_what_a_rehearsal_left_on_another_disk_is_listed_with_the_reason(yard: Yard, tmp_path: Path) -> None:
    """`.rehearsals` is scratch, so somebody links it to another disk. "Any other is listed with the reason" (0104)."""
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    (local(yard.settings.checkpoints) / ".rehearsals").symlink_to(scratch)
    place = rehearsal_location(f"{yard.settings.checkpoints}/{yard.stream}/1")
    assert place not in {one.place for one in yard.left().found}, "nothing is there"
    open_checkpoint_files(place, yard.settings.object_store).write_text("state/0/0/1.delta", "ten bytes.")

    clean(yard.left(), actor=ANN)

    assert [(one.kind, one.place, bool(one.problem)) for one in yard.left().found] == [("rehearsal", place, True)]


@FOLDER
def test_what_lies_behind_a_linked_folder_of_a_checkpoint_is_not_called_gone(yard: Yard, tmp_path: Path) -> None:
    """`state` on a larger disk: it is neither listed, nor dated, nor removed, and the end is green."""
    folder, moved = local(yard.settings.checkpoints) / yard.stream / "1", tmp_path / "larger_disk"
    (folder / "state").rename(moved)
    (folder / "state").symlink_to(moved)

    removed = clean(yard.left(), actor=ANN)

    is_left = any(file.is_file() for file in moved.rglob("*"))
    assert not is_left or yard.left().found, f"{len(removed)} were called removed, and the state is there"


@FOLDER
def test_a_storage_that_does_not_answer_fails_nothing_that_is_not_due(
    yard: Yard, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Left behind yesterday: nothing of it was to be removed for another 29 days."""

    def refused(_: LocalCheckpointFiles, folder: str = "") -> Sequence[FileObservation]:
        raise CheckpointStorageError("The folder cannot be listed: Input/output error.")

    monkeypatch.setattr(LocalCheckpointFiles, "list_files", refused)
    assert clean(yard.left(later=timedelta(days=1)), actor=ANN) == ()


@pytest.mark.full  # every run: `test_orphan_removal.py`
def test_the_files_of_a_dead_backfill_are_orphans_once_its_staging_table_is_removed(copier: Copier) -> None:
    """While an attempt may run, the removal of orphans keeps every file that a backfill of the stream has left."""
    began = datetime.now(UTC) - timedelta(hours=1)
    begin_attempt(copier.ledger, copier.stream, start=DAY.start, end=DAY.end, launched_by="ann", identity="w1")
    staged(copier, f"{BACKFILL_NAMESPACE}.{copier.stream}__copies__{name_part(DAY)}")
    clean(left_of(copier), actor=ANN)
    assert left_of(copier).found == ()

    assert known_writes(copier.ledger, ["w1"], since=began)["w1"] is not None


def test_a_table_that_is_away_keeps_everything_of_its_stream(copier: Copier) -> None:
    """Dropped by mistake, and about to be registered again from a backup: where it stands then is not known now."""
    reset(copier.ledger, copier.stream, load_settings())
    record_identities(copier.ledger, copier.stream, 2, {output_table_name(copier.bench.output.target): "uuid"})
    copier.bench.catalog.drop_table(copier.bench.output.target)

    assert left_of(copier).found == ()


def aged(copier: Copier, refresh: RefreshObservation) -> None:
    """Make a refresh, its abandonment and the files of its shadow 40 days old."""
    with copier.ledger.transaction() as connection:
        names = [one.name for one in LedgerEvent.__table__.columns if one.name not in ("number", "recorded_at")]
        at_then = select(
            *(LedgerEvent.__table__.c[name] for name in names), LedgerEvent.recorded_at - timedelta(days=40)
        )
        at_then = at_then.where(LedgerEvent.name == refresh.stream)  # beside today's, as no event is ever changed
        connection.execute(insert(LedgerEvent).from_select([*names, "recorded_at"], at_then))
        of_refresh = update(Refresh).where(Refresh.number == refresh.number)
        connection.execute(of_refresh.values(began_at=Refresh.began_at - timedelta(days=40)))
    then = (datetime.now(UTC) - timedelta(days=40)).timestamp()
    for file in local(load_settings().checkpoints).rglob("*"):
        os.utime(file, (then, then))


@pytest.mark.full  # every run: `test_left_tables.py`
def test_what_was_not_removed_of_a_refresh_goes_with_the_next_command(copier: Copier) -> None:
    """Its end is noted meanwhile, which says nothing of since when its checkpoint is not needed."""
    aged(copier, abandoned(copier))
    stays = failing(CrashPoint.BEGUN, CheckpointError("it stays"), at=3)
    with pytest.raises(UnhealthyError, match="1 of 4 leftovers were not removed"):
        clean(left_of(copier, later=timedelta(0)), actor=ANN, reached=stays)

    clean(left_of(copier, later=timedelta(0)), actor=ANN)

    assert left_of(copier, later=timedelta(0)).found == ()


def test_the_end_of_a_refresh_is_in_the_plan_that_notes_it(copier: Copier) -> None:
    """The removal was killed behind its last table, so that nothing of it is left to be removed."""
    abandoned(copier)
    with pytest.raises(KeyboardInterrupt):
        clean(left_of(copier), actor=ANN, reached=failing(CrashPoint.CLEARED, KeyboardInterrupt(), at=4))
    plan = plan_cleaning(left_of(copier))
    assert not has_ended(copier)
    clean(left_of(copier), actor=ANN, planned=plan.digest)
    assert has_ended(copier)

    assert "refresh" in " ".join(step.sentence for step in plan.steps)
