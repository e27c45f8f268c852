"""Iceberg's offsets are told from those of other sources."""

from __future__ import annotations

import pytest
from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from tests.fakes.checkpoint_files import FakeCheckpointFiles

from sluice.sources.iceberg_positions import BEGINNING, first_offsets, snapshot_of, step_of

OFFSET = '{"version":1,"snapshot_id":4395228297730365165,"position":0,"scan_all_files":false}'


@pytest.mark.parametrize(
    ("offset", "snapshot_id"),
    [
        (OFFSET, 4395228297730365165),
        ({"version": 1, "snapshot_id": 7, "position": 1, "scan_all_files": False}, 7),
        ('{"version":1,"snapshot_id":-1,"position":-1,"scan_all_files":false}', BEGINNING),
        ('{"flights":{"0":12}}', None),
        ('{"logOffset":1}', None),
        ("v1\n{}", None),
        ("12", None),
        ("", None),
        (None, None),
    ],
    ids=["text", "read", "empty table", "Kafka", "files", "Kafka's first", "rate", "empty", "none"],
)
def test_the_snapshot_of_an_offset(offset: object, snapshot_id: int | None) -> None:
    assert snapshot_of(offset) == snapshot_id


def test_the_first_offsets_of_a_checkpoint_by_their_source() -> None:
    checkpoint = FakeCheckpointFiles(
        {
            "metadata": '{"id":"1"}',
            "sources/0/0": 'v1\n{"path":"s3a://landing/a.json"}',
            "sources/1/offsets/0": OFFSET,
            "sources/2/offsets/0": OFFSET.replace("4395228297730365165", "-1"),
            "sources/2/offsets/.0.crc": "crc",
        }
    )

    found = first_offsets(checkpoint)
    assert {number: offset.snapshot_id for number, offset in found.items()} == {1: 4395228297730365165, 2: BEGINNING}


@pytest.mark.parametrize(
    ("said", "changed"), [("long ago", 5), ('{"column": "at", "before": "2026-08-22T00:00:00Z"}', 0)]
)
def test_only_what_sluice_says_of_removed_rows_hides_them(said: str, changed: int) -> None:
    """A backfill and a reader judge the same snapshot alike."""
    summary = Summary(Operation.DELETE, **{"deleted-records": "5", "sluice.removed-before": said})
    step = step_of(Snapshot(snapshot_id=1, timestamp_ms=1, manifest_list="file:/m", summary=summary))
    assert (step.changed_rows, step.removes_old_rows) == (changed, not changed)
