"""The damage matrix: no cell loses or doubles a row, and each ends by the one command or is refused with its reason."""

from __future__ import annotations

import pytest
from tests.faults.ways_out.cells import Way, outcome_of
from tests.faults.ways_out.kinds import Subject
from tests.faults.ways_out.matrix import CELLS, OF_THE_FULL_RUN, SAMPLE
from tests.fixtures.drill import sampled
from tests.fixtures.workshop import Workshop

BY_NAME = {str(cell): cell for cell in CELLS}


def test_each_cell_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(CELLS)
    assert set(BY_NAME) >= SAMPLE | OF_THE_FULL_RUN


@pytest.mark.parametrize("name", sampled(BY_NAME, SAMPLE, full=OF_THE_FULL_RUN))
def test_a_damaged_stream_ends_as_its_twin_or_is_refused(name: str, workshop: Workshop) -> None:
    cell = BY_NAME[name]

    outcome = outcome_of(cell, Subject(workshop=workshop, kind=cell.kind))

    print(outcome.line)  # noqa: T201  # the matrix prints itself with `-rP`
    assert (outcome.found, outcome.way) == (cell.found, cell.way), outcome.plan
    assert (outcome.lost, outcome.doubled) == (cell.lost, 0), outcome.plan
    assert outcome.is_equal is (cell.way is not Way.REFUSED and not cell.lost)
