"""What a batch is, when it counts as visible, and what the ledger gets of it from its snapshots alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.fixtures.streams import continuous_stream
from tests.unit.publication.test_chain import NOW, offsets, position, staged

from sluice.errors import DivergedError, StagingError
from sluice.publication.chain import batches_to_publish, is_visible
from sluice.publication.staged_batch import PlannedBatch, recovered_observation, rejected_observation

TARGET = "silver.orders"


def planned(batch: int, start: int, end: int) -> PlannedBatch:
    return staged(1, batch, start, end).summary


def test_key_and_offsets_together_identify_a_batch() -> None:
    found = staged(1, 4, 10, 20, token=1).summary
    assert replace(found, token=9, run_id="another").is_staged_as(found)
    assert not planned(4, 10, 21).is_staged_as(found)
    assert not planned(4, 11, 20).is_staged_as(found)
    assert not planned(5, 10, 20).is_staged_as(found)


@pytest.mark.parametrize(("at", "end", "expected"), [(3, 20, False), (4, 20, True), (4, None, True), (5, None, True)])
def test_a_batch_at_the_mark_or_below_it_is_visible(at: int, end: int | None, *, expected: bool) -> None:
    assert is_visible(position(at, end=end), planned(4, 10, 20), target=TARGET) is expected


def test_a_batch_of_a_left_generation_is_visible() -> None:
    assert is_visible(position(0, end=1, generation=2), planned(4, 10, 20), target=TARGET)


@pytest.mark.parametrize(("at", "end"), [(4, 21), (5, 30)])
def test_another_batch_under_its_number_and_later_ones_diverge(at: int, end: int) -> None:
    with pytest.raises(DivergedError):
        is_visible(position(at, end=end), planned(4, 10, 20), target=TARGET)


def test_only_what_follows_the_mark_is_published() -> None:
    chain = [staged(number, number, 10 * number, 10 * number + 10) for number in range(5)]
    admitted = batches_to_publish(position(1, end=20), chain, token=9, target=TARGET)
    assert [batch.summary.key.batch for batch in admitted] == [2, 3, 4]
    with pytest.raises(StagingError, match="the batches in between are not staged"):
        batches_to_publish(position(1, end=20), chain[3:], token=9, target=TARGET)
    with pytest.raises(DivergedError, match="Another batch is published"):
        batches_to_publish(position(1, end=21), chain[1:], token=9, target=TARGET)


def test_the_record_of_a_recovered_batch_has_what_its_snapshots_hold() -> None:
    main = staged(1, 4, 10, 20, rows=7)
    rejected = replace(main, summary=replace(main.summary, output="quarantine", rows=2))
    record = recovered_observation({"main": main, "quarantine": rejected})
    assert (record.key, record.started_at, record.watermark) == (main.summary.key, main.staged_at, NOW)
    assert (record.input_rows, record.published_rows, record.refused_rows) == (9, {"main": 7}, 2)
    assert (record.duration_ms, record.late_rows, record.duplicate_rows) == (0, 0, 0)
    assert (record.start_offsets, record.end_offsets) == ({"in": {"0": 10}}, {"in": {"0": 20}})
    alone = replace(main, summary=replace(main.summary, rows=None))
    assert recovered_observation({"main": alone}).published_rows == {"main": 0}
    assert recovered_observation({"main": alone}).refused_rows == 0
    assert main.summary.end_offsets == offsets(20)


def test_the_record_of_a_rejected_batch_begins_with_its_first_output() -> None:
    main = staged(1, 4, 10, 20, rows=7)
    other = replace(main, staged_at=main.staged_at + timedelta(seconds=9))
    for batches in ({"main": main, "other": other}, {"other": other, "main": main}):
        record = rejected_observation(continuous_stream().declaration, batches)
        assert (record.started_at, record.is_rejected, record.refused_rows) == (main.staged_at, True, 14)
