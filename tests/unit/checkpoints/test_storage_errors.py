"""What says something of a checkpoint, and what says something of its storage."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.checkpoints.checkpoint_files import LocalCheckpointFiles
from sluice.errors import CheckpointError
from sluice.failure_reasons import FailureClass, FailureReason
from sluice.failures.classification import classify
from sluice.failures.error_chains import chain_of


def test_a_folder_in_the_place_of_a_file_is_damage_and_no_storage_that_is_away(tmp_path: Path) -> None:
    """A restore with the wrong tool has made folders of files. No restart repairs that, and no service is to be seen
    to."""
    (tmp_path / "offsets" / "1").mkdir(parents=True)
    with pytest.raises(CheckpointError) as failed:
        LocalCheckpointFiles(tmp_path.as_uri()).read_text("offsets/1")
    failure = classify(chain_of(failed.value))

    assert failure.failure_class is FailureClass.CHECKPOINT, f"{failed.value.message} -> {failure}"


def test_a_file_in_the_place_of_a_folder_is_damage_and_no_storage_that_is_away(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("x")
    with pytest.raises(CheckpointError) as failed:
        LocalCheckpointFiles(tmp_path.as_uri()).list_files("state")
    failure = classify(chain_of(failed.value))

    assert failure.failure_class is FailureClass.CHECKPOINT, f"{failed.value.message} -> {failure}"


def test_a_folder_that_this_user_may_not_read_is_no_object_store_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> bytes:
        raise PermissionError(13, "Permission denied")

    files = LocalCheckpointFiles(tmp_path.as_uri())
    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(CheckpointError) as failed:
        files.read_text("metadata")

    assert classify(chain_of(failed.value)).reason is FailureReason.ACCESS_REFUSED, failed.value.message
