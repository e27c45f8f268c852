"""Of which batch a backfill takes the offsets up to which it reads."""

from __future__ import annotations

from typing import Any, cast

from pyiceberg.table.snapshots import Operation, Snapshot, Summary
from tests.unit.backfill.test_source_bounds import table_of

from sluice.backfill.observe_backfill import published_batch
from sluice.publication.chain import MarkPosition
from sluice.publication.marks import TargetState
from sluice.publication.staged_batch import StagedMode, StagedOutput, canonical_offsets, offsets_digest
from sluice.stored_keys import END_OFFSETS, OUTPUT, PUBLICATION_KEY, ROWS, RUN_ID, STAGED_MODE, START_OFFSETS, TOKEN

OUTPUT_OF_S = StagedOutput(stream="s", output="main", target="silver.t")


def published(snapshot: Snapshot, end: str) -> Snapshot:
    """The snapshot as one that has made batch 3 of generation 2 visible. end: its canonical offsets."""
    entries = {
        PUBLICATION_KEY: "s:2:3",
        OUTPUT: "main",
        RUN_ID: "r",
        TOKEN: "1",
        START_OFFSETS: canonical_offsets({}),
        END_OFFSETS: end,
        STAGED_MODE: StagedMode(mode="append", table="silver.t").text(),
        ROWS: "1",
    }
    return snapshot.model_copy(update={"summary": Summary(Operation.APPEND, **entries)})


def test_it_is_the_one_that_ends_where_the_mark_says() -> None:
    """A zombie, or a life before the checkpoint was restored, has made another one visible under its number."""
    table = table_of("append", "append")
    right, other = table.metadata.snapshots
    ends = [canonical_offsets({"records": end}) for end in (7, 9)]
    snapshots = [published(right, ends[0]), published(other, ends[1])]
    table.metadata = table.metadata.model_copy(update={"snapshots": snapshots})
    digest = offsets_digest(ends[0])

    found = published_batch(
        cast(Any, None),
        TargetState(table=table, mark=None),
        OUTPUT_OF_S,
        MarkPosition(generation=2, batch=3, token=1, end_offsets_digest=digest),
    )

    assert found is not None
    assert found.end_offsets == {"records": 7}
