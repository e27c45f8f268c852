"""Storages that are away when a run starts: what it would look for there is not taken for absent."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from tests.fixtures.streams import continuous_stream
from tests.unit.positions.test_repair_decision import position

from sluice.errors import CheckpointStorageError
from sluice.settings import FilesConnection, ObjectStoreSettings, Settings
from sluice_spark.run.run_start import require_unbroken_input
from sluice_spark.run.state_replay import StateReplay

NOTHING: Any = None


@pytest.fixture
def away(tmp_path: Path) -> str:
    """A folder that cannot be listed: it lies behind a link to itself."""
    (tmp_path / "root").symlink_to("root")
    return f"{(tmp_path / 'root').as_uri()}/silver/1"


class Deployment:
    """As much of the settings as is asked for."""

    object_store = ObjectStoreSettings()

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def connection(self, *_: object) -> FilesConnection:
        """The folder of files."""
        return FilesConnection(kind="files", root=self._root.as_uri())


def replay(checkpoint: str) -> StateReplay:
    """What a repair may have left in a checkpoint."""
    return StateReplay(
        spark=NOTHING,
        settings=cast("Settings", Deployment()),
        ledger=NOTHING,
        plan=NOTHING,
        run_id="",
        generation=1,
        checkpoint=checkpoint,
        require=NOTHING,
        stop=NOTHING,
    )


def test_batches_that_a_repair_may_have_left_are_not_passed_over(away: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointStorageError):
        _ = replay(away).is_pending
    assert not replay(tmp_path.as_uri()).is_pending
    assert not replay("hdfs://only/spark/1").is_pending


def test_an_input_is_not_taken_for_unbroken(away: str) -> None:
    generation = position({}, visible=0).generation
    assert generation is not None
    checked = partial(
        require_unbroken_input, NOTHING, continuous_stream().declaration, object_store=ObjectStoreSettings()
    )
    with pytest.raises(CheckpointStorageError):
        checked(replace(generation, checkpoint=away))
    checked(replace(generation, checkpoint="hdfs://only/spark/1"))
