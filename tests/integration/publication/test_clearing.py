"""Clearing: a staging table refers to what is not published yet, and to nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
from pyarrow.fs import FileSelector
from pyiceberg.catalog import Catalog
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from tests.fixtures.publication import Workbench
from tests.fixtures.tampering import Requirements, Updates, tampered

from sluice.errors import StaleTokenError
from sluice.publication.chain import PublicationPlan, plan_publication
from sluice.publication.mark_moves import plan_output
from sluice.publication.staged_batch import StagedOutput
from sluice.publication.staging_table import load_staging_table
from sluice.publication.undeclared_outputs import load_output_tables


def test_published_batches_go_and_staged_ones_stay(bench: Workbench) -> None:
    batches = [bench.stage(number, [number]) for number in range(5)]
    bench.publish(*batches[:3])
    assert bench.clear().batches == tuple(batches[:3])
    assert bench.staged() == tuple(batches[3:])
    assert live_rows(bench) == 2
    bench.publish(*batches[3:])
    assert bench.clear().batches == tuple(batches[3:])
    assert bench.clear().batches == ()
    assert (bench.staged(), live_rows(bench)) == ((), 0)
    assert bench.ids() == [0, 1, 2, 3, 4]


def test_what_the_ledger_does_not_have_yet_stays(bench: Workbench) -> None:
    batches = [bench.stage(number, [number]) for number in range(4)]
    bench.publish(*batches[:3])

    assert bench.clear(unrecorded={batches[1].summary.key}).batches == (batches[0], batches[2])
    assert bench.staged() == (batches[1], batches[3])
    bench.publish(batches[3])
    assert bench.clear().batches == (batches[1], batches[3])
    assert (bench.staged(), live_rows(bench), bench.ids()) == ((), 0, [0, 1, 2, 3])


def test_a_staged_batch_can_be_read_as_what_follows_its_parent(bench: Workbench) -> None:
    batches = [bench.stage(number, [number]) for number in range(3)]
    bench.publish(batches[0])
    bench.clear()
    staging = load_staging_table(bench.catalog, bench.output)
    for batch in bench.staged():
        assert batch.parent_id is not None
        assert staging.snapshot_by_id(batch.parent_id) is not None


def test_data_files_stay_and_the_metadata_of_a_hundred_batches_does_not(bench: Workbench) -> None:
    for number in range(8):
        bench.publish(bench.stage(number, [number]))
        bench.clear()
    staging = load_staging_table(bench.catalog, bench.output)
    assert len(staging.snapshots()) <= 3
    assert len(avro_files(bench)) <= 8
    assert bench.ids() == list(range(8))


def test_files_that_went_in_as_part_of_larger_ones_are_deleted(bench: Workbench) -> None:
    batches = [bench.stage(number, [number]) for number in range(4)]
    published = bench.publish(*batches, merge_small=True)
    io = bench.target().io
    assert all(io.new_input(path).exists() for path in published.superseded_files)
    bench.clear(superseded_files=published.superseded_files)
    assert not any(io.new_input(path).exists() for path in published.superseded_files)
    assert bench.ids() == [0, 1, 2, 3]


def test_files_that_the_staging_table_still_lists_are_kept(bench: Workbench) -> None:
    batches = [bench.stage(number, [number]) for number in range(4)]
    published = bench.publish(*batches, merge_small=True)
    io = bench.target().io
    unrecorded = {batch.summary.key for batch in batches[2:]}
    cleared = bench.clear(unrecorded=unrecorded, superseded_files=published.superseded_files)
    assert live_rows(bench) == 2, "the rows of the batches that are still staged can be read"
    assert len(cleared.superseded_left) == 2
    assert all(io.new_input(path).exists() for path in cleared.superseded_left)
    assert bench.clear(superseded_files=cleared.superseded_left).superseded_left == ()
    assert not any(io.new_input(path).exists() for path in published.superseded_files)
    assert bench.ids() == [0, 1, 2, 3]


def test_a_run_that_was_replaced_clears_nothing(bench: Workbench) -> None:
    batch = bench.stage(0, [0])
    bench.publish(batch)
    bench.as_run(2).begin()
    with pytest.raises(StaleTokenError):
        bench.clear()
    assert bench.staged() == (batch,), "the ledger may not have it, and then the newer run records it from here"


def test_a_run_that_is_replaced_while_it_clears_clears_nothing(bench: Workbench) -> None:
    batch = bench.stage(0, [0])
    bench.publish(batch)
    newer = [bench.as_run(2)]

    def begin(requirements: Requirements, updates: Updates) -> tuple[Requirements, Updates]:
        if newer:
            newer.pop().begin()
        return requirements, updates

    with pytest.raises(StaleTokenError):
        replace(bench, catalog=tampered(bench.catalog, change=begin)).clear()
    assert bench.staged() == (batch,)


def test_empty_batches_are_cleared(bench: Workbench) -> None:
    for number in range(3):
        bench.publish(bench.stage(number, []))
    bench.clear()
    assert bench.staged() == ()


def test_a_batch_that_is_staged_while_another_is_cleared(bench: Workbench) -> None:
    bench.publish(bench.stage(0, [0]))
    late = bench.as_run(1)
    first = load_staging_table(late.catalog, late.output)
    bench.clear()
    batch = late.stage(1, [1])
    assert bench.staged() == (batch,)
    assert first.metadata.current_snapshot_id != batch.parent_id
    bench.publish(batch)
    assert bench.ids() == [0, 1]


def live_rows(bench: Workbench) -> int:
    return len(load_staging_table(bench.open_catalog(), bench.output).scan().to_arrow())


def avro_files(bench: Workbench) -> list[str]:
    table = load_staging_table(bench.open_catalog(), bench.output)
    assert isinstance(table.io, PyArrowFileIO)
    scheme, host, path = PyArrowFileIO.parse_location(f"{table.location()}/metadata")
    found = table.io.fs_by_scheme(scheme, host).get_file_info(FileSelector(path))
    return [file.base_name for file in found if file.base_name.endswith(".avro")]


class HurriedCatalog:
    """A catalog behind whose first look at a table another process is done with something."""

    def __init__(self, inner: Catalog, meanwhile: Callable[[], None]) -> None:
        self._inner = inner
        self._meanwhile = [meanwhile]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def load_table(self, identifier: str) -> Table:
        """Load a table, and let the other process work then."""
        table = self._inner.load_table(identifier)
        while self._meanwhile:
            self._meanwhile.pop()()
        return table


def of_tables(catalog: Catalog, output: StagedOutput) -> PublicationPlan:
    """The plan of an output as a check of its stream looks at it."""
    tables = load_output_tables(catalog, output)
    assert tables.position is not None
    return plan_publication(tables.position, tables.staged)


@pytest.mark.parametrize("look", [plan_output, of_tables])
def test_a_batch_that_is_published_and_cleared_between_two_looks_is_no_hole_in_the_chain(
    bench: Workbench, look: Callable[[Catalog, StagedOutput], PublicationPlan]
) -> None:
    batches = [bench.stage(number, [number]) for number in range(3)]
    bench.publish(batches[0])
    bench.clear()

    def finish_the_next() -> None:
        bench.publish(batches[1])
        bench.clear()

    plan = look(cast("Catalog", HurriedCatalog(bench.catalog, finish_the_next)), bench.output)

    assert [one.position[1] for one in plan.ready] == [2]
