"""What a process has imported before its first stream is excluded from garbage collections, later objects are not."""

from __future__ import annotations

import gc

from sluice_spark.delivery.choose_delivery import exclude_imports


def test_what_exists_is_excluded_once_and_what_comes_later_is_collected() -> None:
    exclude_imports.cache_clear()
    gc.unfreeze()  # as in a driver; the tests' own process has excluded its modules already

    exclude_imports()
    excluded = gc.get_freeze_count()
    made_meanwhile: list[list[int]] = [[] for _ in range(1000)]
    exclude_imports()

    assert excluded > 10_000
    assert any(one is made_meanwhile for one in gc.get_objects())
