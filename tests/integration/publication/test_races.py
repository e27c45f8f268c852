"""Real processes that publish the same batches at the same time; `make drill` lets many more of them race.

Every run has a commit of another one at each moment of a publication (`test_zombies.py`), and on both catalogs a commit
that lands only where it was checked (`test_table_committer.py`).
"""

from __future__ import annotations

import pytest
from tests.faults.publishing_races import run_races
from tests.fixtures.publication import CatalogPlace

ROUNDS = 3


@pytest.mark.full
def test_of_racing_publishers_one_wins_each_batch(catalog_place: CatalogPlace) -> None:
    report = run_races(catalog_place, name="the catalog", rounds=ROUNDS, publishers=3)
    assert report.is_right, report
    assert report.lost_races > 0
    assert report.foreign_commits > 0
