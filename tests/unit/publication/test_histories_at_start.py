"""A start is refused when checkpoint and table have different histories, and only then."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sluice.errors import DivergedError
from sluice.ledger.batches import PublicationKey
from sluice.publication.chain import CheckpointPosition, MarkPosition
from sluice.publication.staged_batch import BatchSummary, StagedMode, StagedOutput, canonical_offsets, offsets_digest
from sluice.publication.start_check import refuse_missing_batches, refuse_newer_table

OUTPUT = StagedOutput(stream="orders", output="rows", target="silver.orders")


def offsets(value: int) -> str:
    return canonical_offsets({"in": value})


def mark(batch: int, *, end: int | None = None, generation: int = 1) -> MarkPosition:
    digest = offsets_digest(offsets(end)) if end is not None else None
    return MarkPosition(generation=generation, batch=batch, token=1, end_offsets_digest=digest)


def checkpoint(planned: int, *, committed: int | None = None, generation: int = 1) -> CheckpointPosition:
    """A checkpoint whose batch n ends at the offset 10 n + 10."""
    return CheckpointPosition(
        generation=generation,
        newest_planned=planned,
        newest_committed=planned if committed is None else committed,
        end_offsets={number: offsets(10 * number + 10) for number in range(planned + 1)},
    )


def published(batch: int, rows: int) -> BatchSummary:
    return BatchSummary(
        key=PublicationKey(stream="orders", generation=1, batch=batch),
        output="rows",
        run_id="r",
        token=1,
        start_offsets=offsets(10 * batch),
        end_offsets=offsets(10 * batch + 10),
        mode=StagedMode(mode="append", table=OUTPUT.target),
        watermark=datetime(2026, 1, 1, tzinfo=UTC),
        rows=rows,
    )


@pytest.mark.parametrize("back", [1, 2, 5, 6])
def test_a_table_that_is_ahead_of_the_checkpoint_is_refused_with_the_difference(back: int) -> None:
    planned = 5 - back
    known = [published(number, 100) for number in range(planned + 1, 6)]
    with pytest.raises(DivergedError) as refusal:
        refuse_newer_table(mark(5, end=60), checkpoint(planned), output=OUTPUT, known=known)
    batches = "1 batch" if back == 1 else f"{back} batches"
    begin, end = offsets(10 * planned + 10), offsets(60)
    assert f"{batches} more, up to 5, with {100 * back} rows, from {begin} to {end}" in refusal.value.message
    assert f"ends with batch {planned} at " in refusal.value.message
    assert "sluice stream repair orders --dry-run" in refusal.value.next_step


def test_what_the_history_no_longer_lists_is_said_to_be_unknown() -> None:
    with pytest.raises(DivergedError, match="2 batches more, up to 5, whose rows and offsets its history no longer"):
        refuse_newer_table(mark(5, end=60), checkpoint(3), output=OUTPUT, known=())


def test_equal_numbers_with_other_offsets_are_refused_also_below_the_newest_batch() -> None:
    for planned in (5, 8):
        with pytest.raises(DivergedError, match="already holds another batch orders:1:5: its end offsets differ"):
            refuse_newer_table(mark(5, end=61), checkpoint(planned), output=OUTPUT, known=())


@pytest.mark.parametrize(
    ("at", "known"),
    [
        pytest.param(mark(5, end=60), checkpoint(5, committed=4), id="a crash between publication and Spark's commit"),
        pytest.param(mark(5, end=60), checkpoint(5), id="a clean stop"),
        pytest.param(mark(3, end=40), checkpoint(5, committed=4), id="batches wait staged"),
        pytest.param(mark(-1), checkpoint(-1), id="the first start"),
        pytest.param(mark(4), checkpoint(5, committed=4), id="an opening, which any offset may follow"),
        pytest.param(mark(5, end=60), checkpoint(-1, generation=2), id="the mark of the generation before"),
        pytest.param(
            mark(5, end=60), CheckpointPosition(generation=1, newest_planned=300, newest_committed=299), id="old"
        ),
    ],
)
def test_legal_states_go_on(at: MarkPosition, known: CheckpointPosition) -> None:
    refuse_newer_table(at, known, output=OUTPUT, known=())


def test_committed_batches_that_are_neither_visible_nor_staged_are_refused() -> None:
    with pytest.raises(DivergedError, match=r"2 batches are missing, 3 to 4, from .*30.* to .*50"):
        refuse_missing_batches(mark(2, end=30), checkpoint(5, committed=4), output=OUTPUT)
    refuse_missing_batches(mark(4, end=50), checkpoint(5, committed=4), output=OUTPUT)
    refuse_missing_batches(mark(2, end=30), checkpoint(5, committed=4, generation=2), output=OUTPUT)
