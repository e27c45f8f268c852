"""What readers hold back, and what it costs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sluice.maintenance.pin_plan import Pin, PinKind, reader_costs
from sluice.tables.table_observation import SnapshotObservation, TableObservation

NOW = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)


def table(newest: int = 10) -> TableObservation:
    """A table with one snapshot a day, each of which replaced a mebibyte of files."""
    snapshots = tuple(
        SnapshotObservation(
            snapshot_id=number,
            parent_id=number - 1 if number > 1 else None,
            committed_at=NOW - (newest - number) * DAY,
            operation="replace",
            removed_bytes=1024**2,
        )
        for number in range(1, newest + 1)
    )
    return TableObservation(
        table="bronze.rows",
        observed_at=NOW,
        metadata_location="",
        snapshot_id=newest,
        committed_at=NOW,
        rows=0,
        small_file_bytes=1,
        partitions=(),
        delete_files=0,
        manifests=0,
        snapshots=snapshots,
        references=(),
    )


def pin(snapshot_id: int, stream: str = "silver") -> Pin:
    """The pin of a reader."""
    return Pin(kind=PinKind.POSITION, stream=stream, endpoint="rows", snapshot_id=snapshot_id)


def test_a_reader_holds_back_what_is_older_than_the_policy_from_its_position_on() -> None:
    (cost,) = reader_costs(table(), (pin(2),), cutoff=NOW - 5 * DAY, retain_last=1)

    assert (cost.snapshots, cost.replaced_bytes, cost.age) == (3, 8 * 1024**2, 8 * DAY)
    assert str(cost) == (
        "stream silver (rows) holds back 3 old snapshots and 8.0 MiB of replaced files; the oldest is 8 d old"
    )


def test_a_reader_near_the_newest_snapshot_holds_back_nothing() -> None:
    assert reader_costs(table(), (pin(9),), cutoff=NOW - 5 * DAY, retain_last=1) == ()
    assert reader_costs(table(), (pin(2),), cutoff=NOW - 5 * DAY, retain_last=20) == ()


def test_a_position_that_is_not_on_main_holds_back_nothing() -> None:
    assert reader_costs(table(), (pin(99),), cutoff=NOW, retain_last=1) == ()


def test_the_reader_that_holds_back_most_comes_first() -> None:
    costs = reader_costs(table(), (pin(4, "gold"), pin(2)), cutoff=NOW - 5 * DAY, retain_last=1)

    assert [(cost.stream, cost.snapshots) for cost in costs] == [("silver", 3), ("gold", 1)]
