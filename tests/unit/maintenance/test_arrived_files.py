"""Old rows stay for a while after they have arrived."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.unit.maintenance.test_old_files import BORDER, DAY, Place, catalog, place

from sluice.maintenance.old_files import find_old_files

__all__ = ["catalog", "place"]


def test_a_file_goes_only_a_while_after_it_has_arrived(place: Place) -> None:
    """Again when the commit looks, and not for a snapshot that expired meanwhile."""
    now = datetime.now(UTC)
    found = find_old_files(place.table(), column="at", before=BORDER, read_up_to=None, arrived_before=now - DAY).seen
    assert (found.files, found.fresh) == (0, 2)
    assert place.remove(arrived_before=now - DAY)["removed_data_files_count"] == 0
    assert place.remove(arrived_before=now + DAY)["removed_data_files_count"] == 2
