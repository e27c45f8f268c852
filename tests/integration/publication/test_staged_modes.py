"""A batch is published as it was declared when it was staged, whatever the declaration says today."""

from __future__ import annotations

import pytest
from tests.fixtures.publication import Workbench

from sluice.errors import DeliveryError, UndeclaredOutputError
from sluice.publication.repair import close_output, leave_output, reopen_output
from sluice.publication.staged_batch import StagedBatch, StagedOutput, read_summary
from sluice.publication.undeclared_outputs import (
    find_undeclared_outputs,
    load_output_tables,
    refuse_undeclared_outputs,
)
from sluice.stored_keys import STAGED_MODE
from sluice_spark.delivery.stream_takeover import publish_staged


def stage(bench: Workbench, batch: int, ids: list[int], *, mode: str) -> StagedBatch:
    """Stage a batch as a driver of today does."""
    return bench.stage(batch, ids, mode=bench.mode(mode))


@pytest.mark.parametrize(
    ("staged", "declared", "expected"),
    [
        ("append", "complete", [1, 2, 3]),
        pytest.param("append", "overwrite_partitions", [1, 2, 3], marks=pytest.mark.full),
        ("complete", "append", [3]),
        pytest.param("overwrite_partitions", "append", [3], marks=pytest.mark.full),
        pytest.param("append", "append", [1, 2, 3], marks=pytest.mark.full),
    ],
)
def test_the_mode_of_the_staged_batch_counts(bench: Workbench, staged: str, declared: str, expected: list[int]) -> None:
    bench.publish(stage(bench, 0, [1, 2], mode="append"))
    stage(bench, 1, [3], mode=staged)
    publish_staged(bench.publisher(mode=declared), bench.checkpoint(1))
    assert bench.ids() == expected


def test_batches_of_several_modes_are_published_in_order(bench: Workbench) -> None:
    for number, mode in enumerate(("append", "append", "complete", "append")):
        stage(bench, number, [number], mode=mode)
    publish_staged(bench.publisher(mode="complete"), bench.checkpoint(3))
    assert (bench.ids(), bench.mark().batch) == ([2, 3], 3)


def test_a_mode_that_cannot_be_read_is_refused(bench: Workbench) -> None:
    entries = bench.stage(0, [0]).summary.properties() | {STAGED_MODE: '{"mode": "unheard of", "table": "a.b"}'}
    with pytest.raises(DeliveryError, match=f"The entry {STAGED_MODE} of a staged batch cannot be read"):
        read_summary(entries)


def test_a_batch_without_a_mode_is_refused(bench: Workbench) -> None:
    entries = bench.stage(0, [0]).summary.properties()
    with pytest.raises(DeliveryError, match=f"has a summary that cannot be read: KeyError.*{STAGED_MODE}"):
        read_summary({name: value for name, value in entries.items() if name != STAGED_MODE})


def test_what_waits_for_an_output_that_is_not_declared_blocks_the_start(bench: Workbench) -> None:
    stream = bench.output.stream
    assert find_undeclared_outputs(bench.catalog, stream, [load_output_tables(bench.catalog, bench.output)]) == ()
    bench.publish(stage(bench, 0, [0], mode="append"))
    waiting = stage(bench, 1, [1, 2], mode="append")
    (former,) = find_undeclared_outputs(bench.catalog, stream, [])
    assert (former.output, former.target, former.waiting) == ("main", bench.output.target, (waiting,))
    assert [batch.summary.key.batch for batch in former.visible] == [0]
    with pytest.raises(UndeclaredOutputError, match="1 batch with 2 rows is staged for") as refusal:
        refuse_undeclared_outputs([former], generation=1)
    assert f"`sluice batch publish {stream} main`" in refusal.value.next_step
    refuse_undeclared_outputs([former], generation=2)  # a reset has left the batch behind


def test_a_chain_for_another_table_is_not_the_declared_ones(bench: Workbench) -> None:
    waiting = stage(bench, 0, [0], mode="append")
    elsewhere = StagedOutput(stream=bench.output.stream, output="main", target=f"{bench.output.stream}.elsewhere")
    bench.declare(table=elsewhere.target)
    (former,) = find_undeclared_outputs(
        bench.catalog, bench.output.stream, [load_output_tables(bench.catalog, elsewhere)]
    )
    assert (former.target, former.waiting) == (bench.output.target, (waiting,))


def test_a_target_that_was_renamed_is_still_the_declared_one(bench: Workbench) -> None:
    stage(bench, 0, [0], mode="append")
    renamed = StagedOutput(stream=bench.output.stream, output="main", target=f"{bench.output.stream}.renamed")
    bench.catalog.rename_table(bench.output.target, renamed.target)
    assert (
        find_undeclared_outputs(bench.catalog, bench.output.stream, [load_output_tables(bench.catalog, renamed)]) == ()
    )


def test_a_former_output_can_be_declared_again(bench: Workbench) -> None:
    """Its batches in between were not meant for it: nothing is missing."""
    bench.publish(stage(bench, 0, [0], mode="append"))
    new = bench.as_run(2)
    (former,) = find_undeclared_outputs(new.catalog, bench.output.stream, [])
    leave_output(new.catalog, former, token=2)
    close_output(new.catalog, former, checkpoint=new.checkpoint(0, newest_committed=0))
    assert new.staged() == ()
    third = bench.as_run(3)
    assert third.observe().redeclared == (bench.output,)
    reopen_output(third.catalog, bench.output, token=3, checkpoint=third.checkpoint(8, newest_committed=8))
    assert third.observe().redeclared == ()
    third.begin(newest_committed=8)
    assert third.mark().position == (1, 8)
    publish_staged(third.publisher(), third.checkpoint(8, newest_committed=8))
    third.publish(third.stage(9, [9]))
    bench.as_run(4).begin(newest_committed=8)
    assert third.mark().position == (1, 9), "it is open, and moves no further by itself"
