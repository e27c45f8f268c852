"""Old rows stay for a while after they have arrived."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from pyiceberg.catalog.sql import SqlCatalog
from tests.unit.maintenance.test_old_files import BORDER, DAY, Place, catalog, place

from sluice.maintenance import old_files
from sluice.maintenance.file_rewrite import CommitConflictError
from sluice.maintenance.old_files import find_old_files
from sluice.publication.crash_points import CrashPoint
from sluice.sources.iceberg_positions import history_of

__all__ = ["catalog", "place"]


def test_a_file_goes_only_a_while_after_it_has_arrived(place: Place) -> None:
    """Again when the commit looks, and not for a snapshot that expired meanwhile."""
    now = datetime.now(UTC)
    found = find_old_files(place.table(), column="at", before=BORDER, read_up_to=None, arrived_before=now - DAY).seen
    assert (found.files, found.fresh) == (0, 2)
    assert place.remove(arrived_before=now - DAY)["removed_data_files_count"] == 0
    assert place.remove(arrived_before=now + DAY)["removed_data_files_count"] == 2


def test_many_files_go_in_several_commits(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """No commit holds more of them, and nothing of what a person has agreed to waits for a person again."""
    monkeypatch.setattr(old_files, "MOST_FILES", 1)
    found = find_old_files(place.table(), column="at", before=BORDER, read_up_to=None)
    assert (found.seen.files, found.seen.more, len(found.files)) == (1, 1, 1)

    removed = place.remove()
    assert (removed["removed_data_files_count"], removed["removed_rows_count"]) == (2, 2)
    assert removed["removed_bytes_count"] > found.seen.data_bytes
    assert place.ids() == [2, 3]
    assert [step.operation for step in history_of(place.table())].count("delete") == 2


@pytest.mark.parametrize("commits", [0, 1])
def test_a_removal_in_several_commits_is_completed_by_the_next_run(
    place: Place, monkeypatch: pytest.MonkeyPatch, commits: int
) -> None:
    """It may end before each of its commits."""
    monkeypatch.setattr(old_files, "MOST_FILES", 1)
    points: list[CrashPoint] = []

    def end(point: CrashPoint) -> None:
        points.append(point)
        if len(points) > commits:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        place.remove(reached=end)
    assert len(place.ids()) == 4 - commits
    assert place.remove()["removed_rows_count"] == 2 - commits
    assert place.ids() == [2, 3]


def test_what_was_removed_stays_where_writers_win_the_next_commit(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_files, "MOST_FILES", 1)
    monkeypatch.setattr(old_files, "_RACES", replace(old_files._RACES, attempts=1))
    points: list[CrashPoint] = []

    def write(point: CrashPoint) -> None:
        points.append(point)
        if len(points) > 1:
            place.append(BORDER + DAY)

    assert place.remove(reached=write)["removed_rows_count"] == 1
    with pytest.raises(CommitConflictError):
        place.remove(reached=write)
    assert len(place.ids()) == 5


def test_files_without_metrics_of_the_column_are_counted(catalog: SqlCatalog) -> None:
    place = Place(catalog=catalog)
    place.create(properties={"write.metadata.metrics.column.at": "counts"})
    place.append(BORDER - DAY, None)
    seen = find_old_files(place.table(), column="at", before=BORDER, read_up_to=None).seen
    assert (seen.files, seen.unbounded) == (0, 1), "the row without a time is none of them"
