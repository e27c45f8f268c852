"""The damage matrix: no cell loses or doubles a row, and each ends by the one command or is refused with its reason."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.faults.ways_out.cells import Outcome, Way, outcome_of, totals
from tests.faults.ways_out.kinds import Subject
from tests.faults.ways_out.matrix import CELLS, OF_THE_FULL_RUN, SAMPLE
from tests.fixtures.drill import sampled
from tests.fixtures.workshop import Workshop

BY_NAME = {str(cell): cell for cell in CELLS}


@pytest.fixture(scope="module")
def matrix() -> Iterator[list[Outcome]]:
    """What came of the cells that were chosen; printed behind the last of them, with `-rP`."""
    outcomes: list[Outcome] = []
    yield outcomes
    found = totals(outcomes)
    print(*sorted(one.line for one in outcomes), sep="\n")  # noqa: T201
    print(f"{len(outcomes)} cells:", ", ".join(f"{found[name]} {name}" for name in found))  # noqa: T201
    assert (found["lost"], found["doubled"]) == (0, 0), "rows were lost or doubled, and no plan has counted them"


def test_each_cell_has_a_name_of_its_own() -> None:
    assert len(BY_NAME) == len(CELLS)
    assert set(BY_NAME) >= SAMPLE | OF_THE_FULL_RUN


@pytest.mark.parametrize("name", sampled(BY_NAME, SAMPLE, full=OF_THE_FULL_RUN))
def test_a_damaged_stream_ends_as_its_twin_or_is_refused(name: str, workshop: Workshop, matrix: list[Outcome]) -> None:
    cell = BY_NAME[name]

    outcome = outcome_of(cell, Subject(workshop=workshop, kind=cell.kind))

    matrix.append(outcome)
    assert (outcome.found, outcome.way) == (cell.found, cell.way), outcome.plan
    assert (outcome.lost, outcome.doubled) == (cell.lost, 0), outcome.plan
    assert outcome.is_equal is (cell.way is not Way.REFUSED and not cell.lost)
    assert cell.says in " ".join(outcome.plan)
