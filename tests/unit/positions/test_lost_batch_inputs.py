"""Batches that would be run again without what they have read: a repair is refused then."""

from __future__ import annotations

import pytest
from tests.unit.positions.test_repair_decision import entry, files, position, repair, without

from sluice.operations import Refusal
from sluice.positions.repair_decision import decide_repair


def test_a_batch_is_not_run_again_without_the_files_that_the_next_one_has_put_away() -> None:
    damaged = without(files(planned=5, committed=5, state=6), "state/0/0/6.delta")
    assert repair(position(damaged, visible=5, state=True, puts_files_away=True)).runs_again == 5
    begun = damaged | {"offsets/6": entry(6)}
    assert repair(position(begun, visible=5, state=True)).runs_again == 5

    refused = decide_repair(position(begun, visible=5, state=True, puts_files_away=True))

    assert isinstance(refused, Refusal)
    assert "batch 5 has to be run again, and the files that it has read are put away" in refused.sentence


@pytest.mark.parametrize(("made_for", "is_gone"), [(4, False), (5, False), (6, True)])
def test_a_batch_is_not_run_again_without_the_copy_of_a_table_that_it_has_read(made_for: int, is_gone: bool) -> None:
    damaged = without(files(planned=6, committed=5, state=6), "state/0/0/6.delta")
    copies = {f"static/words/{made_for}-1795850032804-1/part-0.parquet": "rows"}

    decided = decide_repair(position(damaged | copies, visible=5, state=True))

    assert isinstance(decided, Refusal) == is_gone
