"""Which generations have begun, by their checkpoints alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.sample_settings import sample_settings

from sluice.positions.later_generation import newest_begun


@pytest.mark.parametrize(
    ("begun", "others", "newest"),
    [
        ((), (), 1),
        ((1, 2), (), 2),
        ((1,), (2,), 1),  # a continuation that is not started, or of which a command has left a part
        ((1, 3), (), 3),  # the second was reset before its start
        ((1, 3, 7), (2,), 7),
    ],
)
def test_a_generation_has_begun_once_its_checkpoint_says_so(
    tmp_path: Path, begun: tuple[int, ...], others: tuple[int, ...], newest: int
) -> None:
    settings = sample_settings(tmp_path).model_copy(update={"checkpoints": tmp_path.as_uri()})
    for number in (*begun, *others):
        folder = tmp_path / "orders" / str(number)
        folder.mkdir(parents=True)
        (folder / "metadata").write_text("{}")
    for number in begun:
        (tmp_path / "orders" / str(number) / "begun").write_text("")

    assert newest_begun("orders", 1, settings) == newest
    hdfs = settings.model_copy(update={"checkpoints": "hdfs://nowhere/checkpoints"})
    assert newest_begun("orders", 1, hdfs) == 1, "only Spark can read it"
