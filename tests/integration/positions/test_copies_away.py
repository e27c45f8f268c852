"""A storage of copies that does not answer, or a ledger that does not say whether a state is kept. No Spark."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text as sql
from tests.integration.cli.test_operations import Copier, copier, typed
from tests.integration.positions.test_repair_commands import folder
from tests.integration.positions.test_states_taken_back import published_all, with_copy

from sluice.checkpoints.checkpoint_copies import copies_location, copy_checkpoint, list_copies
from sluice.checkpoints.checkpoint_files import LocalCheckpointFiles, open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import FileObservation
from sluice.errors import CheckpointStorageError
from sluice.settings import load_settings

__all__ = ["copier"]


def let_copies_be_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of the copies does not answer; the checkpoint does."""
    listed = LocalCheckpointFiles.list_files

    def refused(files: LocalCheckpointFiles, folder: str = "") -> Sequence[FileObservation]:
        if "/.copies/" in files.location:
            raise CheckpointStorageError("The folder cannot be listed: Input/output error.")
        return listed(files, folder)

    monkeypatch.setattr(LocalCheckpointFiles, "list_files", refused)


@pytest.mark.full  # every run: the same where the ledger is lost too
def test_copies_that_cannot_be_looked_at_are_not_called_none(
    copier: Copier, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is lost, a copy of it is there, and the folder of the copies does not answer just now."""
    published_all(copier)
    with_copy(copier)
    shutil.rmtree(folder(copier))
    assert "Put the copy of" in typed(["stream", "repair", copier.stream, "--dry-run"], capsys)[1]
    let_copies_be_away(monkeypatch)

    _, shown, errors = typed(["stream", "repair", copier.stream, "--dry-run"], capsys)

    assert "Input/output error" in shown + errors, shown + errors


@pytest.mark.full  # every run: copies that are away
def test_a_copy_that_cannot_be_read_just_now_is_not_passed_over_for_an_older_one(
    copier: Copier, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    published_all(copier)
    checkpoint, store = (
        open_checkpoint_files(one, load_settings().object_store)
        for one in (folder(copier).as_uri(), copies_location(folder(copier).as_uri()))
    )
    checkpoint.write_text("state/0/0/_metadata/schema", "old")
    then = datetime.now(tz=UTC) - timedelta(hours=1)
    copy_checkpoint(checkpoint, store, now=then, token=1, require=lambda: None)
    checkpoint.write_text("state/0/0/_metadata/schema", "the newest")
    newest = copy_checkpoint(checkpoint, store, now=datetime.now(tz=UTC), token=1, require=lambda: None)
    assert newest is not None
    assert len(list_copies(store)) == 2
    (own,) = [one.kept_at for one in newest.files if one.path == "metadata"][:1]
    shutil.rmtree(folder(copier))
    read = LocalCheckpointFiles.read_bytes
    calls: list[str] = []

    def refused(files: LocalCheckpointFiles, path: str) -> bytes | None:
        if path == own and not calls:
            calls.append(path)
            raise CheckpointStorageError("The folder cannot be read: Input/output error.")
        return read(files, path)

    monkeypatch.setattr(LocalCheckpointFiles, "read_bytes", refused)

    _, shown, errors = typed(["stream", "repair", copier.stream, "--dry-run"], capsys)

    assert calls
    assert f"{then:%Y-%m-%d %H:%M}" not in shown or "Input/output error" in shown + errors, shown + errors


def forget(copier: Copier) -> None:
    """An older copy of the ledger, which does not know the stream."""
    with copier.ledger.transaction() as connection:
        for table in ("batches", "generations"):
            connection.execute(sql(f"DELETE FROM {table} WHERE stream = :stream"), {"stream": copier.stream})  # noqa: S608  # names of this test


@pytest.mark.full  # every run: neither
def test_copies_count_where_the_ledger_has_the_generation_and_not_what_it_keeps(
    copier: Copier, capsys: pytest.CaptureFixture[str]
) -> None:
    """A ledger of between the opening of the generation and its first start, or of an earlier version."""
    published_all(copier)
    with_copy(copier)
    shutil.rmtree(folder(copier))
    with copier.ledger.transaction() as connection:
        connection.execute(
            sql("UPDATE generations SET fingerprint = '{}' WHERE stream = :stream"), {"stream": copier.stream}
        )

    shown = typed(["stream", "repair", copier.stream, "--dry-run"], capsys)[1]

    assert "Put the copy of" in shown, shown


def test_a_stream_whose_copies_do_not_answer_is_not_taken_for_one_without_state(
    copier: Copier, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger was lost too, so that the copies alone say that the query keeps state."""
    published_all(copier)
    with_copy(copier)
    shutil.rmtree(folder(copier))
    forget(copier)
    assert "Put the copy of" in typed(["stream", "repair", copier.stream, "--dry-run"], capsys)[1]
    let_copies_be_away(monkeypatch)

    code, shown, errors = typed(["stream", "repair", copier.stream, "--dry-run"], capsys)

    assert "Write into" not in shown, (code, shown + errors)
    assert code != 0, shown + errors
