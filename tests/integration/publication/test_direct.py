"""What a table's history says to a run that wants to write it through Iceberg's own sink."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from tests.fixtures.publication import Workbench

from sluice.errors import DivergedError, RolledBackError, StaleTokenError
from sluice.publication.direct_history import (
    CLOCKS_APART,
    EPOCH,
    QUERY_ID,
    DirectWriter,
    direct_batches,
    require_direct_start,
)


def write(bench: Workbench, batch: int, *, token: int) -> None:
    """Append a batch of one row as Iceberg's sink does for a run."""
    table = bench.target()
    rows = pa.Table.from_pylist([{"kind": "a", "id": batch}], table.schema().as_arrow())
    written = {**writer(bench, token=token).properties(), QUERY_ID: "query", EPOCH: str(batch)}
    table.append(rows, snapshot_properties=written)


def writer(bench: Workbench, *, token: int) -> DirectWriter:
    """A run of the stream."""
    names = bench.output
    return DirectWriter(
        stream=names.stream,
        output=names.output,
        generation=1,
        run_id=f"run-{token}",
        token=token,
        query_id="query",
    )


def test_the_batches_are_read_from_history_the_newest_first(bench: Workbench) -> None:
    bench.declare()
    write(bench, 0, token=1)
    bench.write_as_another(99)
    write(bench, 1, token=2)

    found = list(direct_batches(bench.target(), stream=bench.output.stream, output=bench.output.output))

    assert [(one.batch, one.rows, one.run_id, one.token) for one in found] == [(1, 1, "run-2", 2), (0, 1, "run-1", 1)]
    assert list(direct_batches(bench.target(), stream=bench.output.stream, output="another")) == []


def require_start(
    bench: Workbench,
    own: DirectWriter,
    *,
    unfinished_since: datetime | None = None,
    planned: int = 0,
    committed: int = -1,
    continues_behind: int | None = None,
    recorded: int | None = None,
) -> None:
    """Ask whether a run may begin."""
    require_direct_start(
        bench.target(),
        own,
        planned=planned,
        committed=committed,
        continues_behind=continues_behind,
        unfinished_since=unfinished_since,
        recorded=recorded,
    )


def test_a_run_that_was_overtaken_does_not_begin(bench: Workbench) -> None:
    bench.declare()
    write(bench, 0, token=2)

    with pytest.raises(StaleTokenError, match="This run's token is 1, and batch 0 on"):
        require_start(bench, writer(bench, token=1), unfinished_since=None)
    require_start(bench, writer(bench, token=2), unfinished_since=None)


def test_an_unfinished_batch_needs_a_history_that_reaches_back_to_it(bench: Workbench) -> None:
    bench.declare()
    now, own = datetime.now(UTC), writer(bench, token=2)
    bench.write_as_another(1)
    require_start(bench, own, unfinished_since=now)  # history is whole, and the batch not in it
    write(bench, 0, token=1)
    bench.write_as_another(2)
    require_start(bench, own, unfinished_since=now)  # the sink finds its newest batch

    bench.expire_all_but_the_newest()

    require_start(bench, own, unfinished_since=None)
    require_start(bench, own, unfinished_since=now + CLOCKS_APART + timedelta(hours=1))
    with pytest.raises(DivergedError, match="it is unknown whether the batch is in the table"):
        require_start(bench, own, unfinished_since=now)


def test_a_table_that_shows_more_than_the_checkpoint_has_planned_lets_no_run_begin(bench: Workbench) -> None:
    bench.declare()
    for batch in range(3):
        write(bench, batch, token=1)
    own = writer(bench, token=2)

    require_start(bench, own, planned=2)
    with pytest.raises(DivergedError, match=r"shows batch 1:2 of .*, and the checkpoint of .* ends with batch 1"):
        require_start(bench, own, planned=1)
    with pytest.raises(DivergedError, match=r"shows batch 1:2 of .*, and the ledger knows no generation behind 0"):
        require_start(bench, replace(own, generation=0), planned=2)


def test_a_table_that_was_rolled_back_lets_no_run_begin(bench: Workbench) -> None:
    bench.declare()
    snapshots = []
    for batch in range(2):
        write(bench, batch, token=1)
        newest = bench.target().current_snapshot()
        assert newest is not None
        snapshots.append(newest.snapshot_id)
    own, recorded = writer(bench, token=2), snapshots[1]
    require_start(bench, own, planned=1, committed=1, recorded=recorded)
    bench.write_as_another(5)
    require_start(bench, own, planned=1, committed=1, recorded=recorded)

    bench.target().manage_snapshots().rollback_to_snapshot(snapshots[0]).commit()
    bench.write_as_another(6)
    with pytest.raises(RolledBackError, match="main does not lead to batch"):
        require_start(bench, own, planned=1, committed=1, recorded=recorded)
    with pytest.raises(RolledBackError, match="main does not lead to batch 1"):  # also where nothing remembers it
        require_start(bench, own, planned=1, committed=1)


def test_a_table_that_lost_the_first_batch_of_all_lets_no_run_begin(bench: Workbench) -> None:
    bench.declare()
    bench.write_as_another(5)
    before = bench.target().current_snapshot()
    write(bench, 0, token=1)
    newest = bench.target().current_snapshot()
    assert before is not None
    assert newest is not None

    bench.target().manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()

    with pytest.raises(RolledBackError, match="main does not lead to batch 0"):
        require_start(bench, writer(bench, token=2), committed=0, recorded=newest.snapshot_id)


def test_a_batch_of_a_left_driver_behind_a_continuation_lets_no_run_begin(bench: Workbench) -> None:
    bench.declare()
    write(bench, 0, token=1)
    continued = replace(writer(bench, token=2), generation=2)
    require_start(bench, continued, continues_behind=0, committed=0)
    write(bench, 1, token=1)

    with pytest.raises(DivergedError, match=r"got batch 1:1 of .* from run run-1 behind where generation 2 continues"):
        require_start(bench, continued, continues_behind=0, committed=0)
    require_start(bench, replace(continued, query_id="another"), committed=-1)
