"""The column by which old rows go gets another name, and what has gone by it stays known."""

from __future__ import annotations

from datetime import timedelta

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import TimestamptzType
from tests.unit.maintenance.test_old_files import BORDER, DAY, NAME, Place, catalog, place

from sluice.backfill.intervals import Interval
from sluice.backfill.old_input_rows import without_old_rows
from sluice.backfill.read_bounds import TableBound
from sluice.errors import UnpublishableError
from sluice.tables.table_observation import removed_from

__all__ = ["catalog", "place"]

AGREED = timedelta(days=90)


@pytest.fixture
def renamed(place: Place) -> Place:
    """Rows were removed by `at`, which is named `happened_at` now."""
    place.remove(agreed=AGREED)
    with place.table().update_schema() as change:
        change.rename_column("at", "happened_at")
    return place


def test_rows_go_by_the_new_name(renamed: Place) -> None:
    said = removed_from(renamed.table())
    assert said is not None
    assert (said.column, said.before, said.agreed) == ("happened_at", BORDER, AGREED)

    assert renamed.remove(column="happened_at", before=BORDER + DAY)["removed_rows_count"] == 1
    assert renamed.ids() == [2]
    said = removed_from(renamed.table())
    assert said is not None
    assert (said.column, said.before) == ("happened_at", BORDER + DAY)


def test_a_backfill_reads_by_the_new_name(renamed: Place) -> None:
    bound = TableBound(input="rows", table=NAME, snapshot_id=1, column="happened_at")
    day = Interval(start=BORDER, end=BORDER + DAY)
    assert without_old_rows(bound, renamed.table(), wide=day).problem == ""


def test_another_column_of_the_former_name_is_another_one(renamed: Place, catalog: SqlCatalog) -> None:
    with renamed.table().update_schema() as change:
        change.add_column("at", TimestamptzType())
    place = Place(catalog=catalog)
    with place.table().update_spec() as spec:
        spec.remove_field("at_day")
    place.append(BORDER - DAY)
    with pytest.raises(UnpublishableError, match=r"were removed by happened_at, and these would go by at\."):
        place.remove()


def test_a_dropped_column_is_that_of_no_name(place: Place) -> None:
    with place.table().update_spec() as spec:
        spec.remove_field("at_day")
    place.remove(agreed=AGREED)
    with place.table().update_schema() as change:
        change.delete_column("at")
    with place.table().update_schema() as change:
        change.add_column("at", TimestamptzType())
    said = removed_from(place.table())
    assert said is not None
    assert said.column == "at (dropped)"
