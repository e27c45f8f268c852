"""Old rows stay for a while after they have arrived."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.unit.maintenance.test_old_files import BORDER, DAY, Place, catalog, place

from sluice.maintenance import old_files
from sluice.maintenance.old_files import find_old_files

__all__ = ["catalog", "place"]


def test_a_file_goes_only_a_while_after_it_has_arrived(place: Place) -> None:
    """Again when the commit looks, and not for a snapshot that expired meanwhile."""
    now = datetime.now(UTC)
    found = find_old_files(place.table(), column="at", before=BORDER, read_up_to=None, arrived_before=now - DAY).seen
    assert (found.files, found.fresh) == (0, 2)
    assert place.remove(arrived_before=now - DAY)["removed_data_files_count"] == 0
    assert place.remove(arrived_before=now + DAY)["removed_data_files_count"] == 2


def test_one_run_holds_no_more_files_than_it_removes(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_files, "MOST_FILES", 1)
    found = find_old_files(place.table(), column="at", before=BORDER, read_up_to=None)
    assert (found.seen.files, found.seen.more, len(found.files)) == (1, 1, 1)


def test_files_without_metrics_of_the_column_are_counted(catalog: SqlCatalog) -> None:
    place = Place(catalog=catalog)
    place.create(properties={"write.metadata.metrics.column.at": "counts"})
    place.append(BORDER - DAY, None)
    seen = find_old_files(place.table(), column="at", before=BORDER, read_up_to=None).seen
    assert (seen.files, seen.unbounded) == (0, 1), "the row without a time is none of them"
