"""What exists before a stream is excluded from its garbage collections, and afterwards no longer."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from sluice_spark.session.garbage import quick_collections


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """A process that has excluded nothing, as a driver has not; the tests' own process has."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("unfrozen")
def test_modules_are_excluded_while_a_stream_runs() -> None:
    with quick_collections():
        assert gc.get_freeze_count() > 10_000

    assert gc.get_freeze_count() == 0


@pytest.mark.usefixtures("unfrozen")
def test_they_stay_excluded_until_the_last_block_ends() -> None:
    with quick_collections():
        excluded = gc.get_freeze_count()
        with quick_collections():
            made_meanwhile: list[list[int]] = [[] for _ in range(1000)]
        assert gc.get_freeze_count() > excluded - 100
        assert any(one is made_meanwhile for one in gc.get_objects())

    assert gc.get_freeze_count() == 0
