"""What a table that was loaded after a commit's answer says about that commit."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata, new_table_metadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER

from sluice.publication.checked_commit import Fate, decide_fate

OURS, PARENT = 7, 3
"""The snapshot of the commit, and the one on which it was prepared; its sequence number is 4."""


def metadata(parents: Mapping[int, int | None], *, head: int | None, newest_number: int) -> TableMetadata:
    """A table with these snapshots, each with its parent."""
    empty = new_table_metadata(Schema(), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, "s3://bucket/table")
    snapshots = [
        Snapshot(snapshot_id=snapshot_id, parent_snapshot_id=parent, manifest_list=f"s3://bucket/{snapshot_id}.avro")
        for snapshot_id, parent in parents.items()
    ]
    return empty.model_copy(
        update={"snapshots": snapshots, "current_snapshot_id": head, "last_sequence_number": newest_number}
    )


@pytest.mark.parametrize(
    ("now", "fate"),
    [
        pytest.param(metadata({3: None, 7: 3}, head=7, newest_number=4), Fate.LANDED, id="main ends with it"),
        pytest.param(metadata({3: None, 7: 3, 8: 7}, head=8, newest_number=5), Fate.LANDED, id="it is behind another"),
        pytest.param(metadata({7: None, 8: 7}, head=8, newest_number=5), Fate.LANDED, id="its parent has expired"),
        pytest.param(metadata({3: None, 8: 3}, head=8, newest_number=4), Fate.NEVER, id="another has its place"),
        pytest.param(metadata({2: None, 3: 2}, head=3, newest_number=4), Fate.NEVER, id="a branch has its number"),
        pytest.param(metadata({3: None}, head=3, newest_number=3), Fate.OPEN, id="it may still land"),
        pytest.param(metadata({8: 7}, head=8, newest_number=5), Fate.OPEN, id="it has landed and expired"),
        pytest.param(metadata({8: None}, head=8, newest_number=5), Fate.OPEN, id="the history before has expired"),
        pytest.param(metadata({3: None, 7: 3}, head=3, newest_number=4), Fate.OPEN, id="main was set back behind it"),
        pytest.param(metadata({2: None, 3: 2}, head=2, newest_number=4), Fate.OPEN, id="main was set back further"),
        pytest.param(metadata({}, head=None, newest_number=0), Fate.OPEN, id="nothing is left"),
    ],
)
def test_only_a_whole_history_without_it_shows_that_it_never_landed(now: TableMetadata, fate: Fate) -> None:
    assert decide_fate(snapshot_id=OURS, sequence_number=4, parent_id=PARENT, now=now) is fate


def test_the_first_commit_of_a_table_is_never_known_to_have_failed() -> None:
    after = metadata({8: None}, head=8, newest_number=1)
    assert decide_fate(snapshot_id=OURS, sequence_number=1, parent_id=None, now=after) is Fate.OPEN
    assert decide_fate(snapshot_id=8, sequence_number=1, parent_id=None, now=after) is Fate.LANDED
