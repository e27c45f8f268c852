"""Tables that refer to files which are gone: by a writer beside, by a storage that is another one, or for good."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from tests.fixtures.left_files import Yard, catalog_place, yard

from sluice.errors import DivergedError, LakehouseError
from sluice.ledger.batches import recent_batches
from sluice.ledger.connection import Ledger
from sluice.positions.repair_writes import record_visible
from sluice.positions.stream_position import StreamPosition, TableWitness
from sluice.publication.checked_commit import PreparedCommit, TableChange, commit_checked
from sluice.publication.data_files import missing_list
from sluice.publication.pyiceberg_committer import PyIcebergCommitter
from sluice.publication.staging_table import listed_files, load_staging_table, staged_batches

__all__ = ["catalog_place", "yard"]


class _Beside:
    """The real committer; what it needs goes before its first commit is prepared."""

    def __init__(self, yard: Yard, others: Callable[[], object]) -> None:
        self._real = PyIcebergCommitter(yard.bench.catalog)
        self._others = [others]

    def load(self, identifier: str) -> Table:
        """Load a table freshly."""
        return self._real.load(identifier)

    def prepare(self, table: Table, change: TableChange) -> PreparedCommit:
        """Write the manifests of a change."""
        if self._others:
            self._others.pop()()
            raise FileNotFoundError(2, "No such file or directory", "snap-1.avro")
        return self._real.prepare(table, change)


def append_nothing(yard: Yard, others: Callable[[], object]) -> int:
    """How many commits it takes to add an empty snapshot to the target beside others."""
    target = yard.bench.output.target
    change = TableChange(operation=Operation.APPEND, summary={"of": "a test"})
    return commit_checked(_Beside(yard, others), target, lambda _: change, what="nothing").attempts  # type: ignore[union-attr]  # there is something to commit


def test_a_commit_is_prepared_again_where_another_writer_has_moved_the_table_on(yard: Yard) -> None:
    others = yard.bench.target

    assert append_nothing(yard, lambda: others().transaction().set_properties(of="others").commit_transaction()) == 2


def test_a_commit_is_refused_where_the_table_stands_still_and_its_file_is_gone(yard: Yard) -> None:
    with pytest.raises(DivergedError, match=f"^{yard.bench.output.target} refers to a file that is gone"):
        append_nothing(yard, lambda: None)


def test_a_staging_table_that_was_cleared_while_it_was_read_is_not_torn(yard: Yard) -> None:
    output = yard.bench.output
    yard.bench.stage(2, [20])
    read = load_staging_table(yard.bench.catalog, output)
    newest = read.current_snapshot()
    assert newest is not None
    load_staging_table(yard.bench.catalog, output).transaction().set_properties(of="others").commit_transaction()
    read.io.delete(newest.manifest_list)

    with pytest.raises(LakehouseError, match="was cleared while it was read"):
        listed_files(read, staged_batches(read, stream=output.stream, output=output.output))


def test_a_storage_that_has_nothing_is_not_taken_for_one_that_has_lost_a_file(yard: Yard) -> None:
    staging = load_staging_table(yard.bench.catalog, yard.bench.output)
    newest = staging.current_snapshot()
    assert newest is not None
    staging.io.delete(newest.manifest_list)
    assert missing_list(staging) == newest.manifest_list
    staging.io.delete(staging.metadata_location)

    with pytest.raises(LakehouseError, match="is not in the storage"):
        missing_list(staging)


def test_a_table_that_was_moved_on_is_looked_at_again_where_its_earlier_metadata_went(yard: Yard) -> None:
    """As a catalog removes it with `write.metadata.delete-after-commit.enabled`, which staging tables take over from
    their targets."""
    output = yard.bench.output
    read = load_staging_table(yard.bench.catalog, output)
    before = read.metadata_location
    yard.bench.stage(2, [20])
    assert load_staging_table(yard.bench.catalog, output).metadata_location != before
    read.io.delete(before)

    assert missing_list(read) == ""


def test_a_batch_whose_snapshot_was_expired_is_recorded_without_one(yard: Yard, ledger: Ledger) -> None:
    """A later snapshot is not the one in which it became visible."""
    bench = yard.bench
    first, second = bench.stage(2, [20]), bench.stage(3, [30])
    bench.publish(first)
    bench.publish(second)
    newest = bench.target().current_snapshot()
    assert newest is not None
    bench.expire_all_but_the_newest()
    seen = StreamPosition(
        stream=bench.output.stream,
        generation=None,
        checkpoint="",
        contents=None,
        health=None,
        tables=(TableWitness(output=bench.output, position=bench.plan().position),),
    )

    record_visible(ledger, bench.catalog, seen, stands_at=3)

    found = {one.key.batch: one.snapshot_ids for one in recent_batches(ledger, bench.output.stream, 9)}
    assert found == {2: {}, 3: {"main": newest.snapshot_id}}
