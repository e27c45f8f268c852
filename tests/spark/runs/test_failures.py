"""Failures that are provoked anew in every test run: the driver tells each by the reason that the corpus has for it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.fixtures.drill import sampled
from tests.fixtures.failures import EXPECTED
from tests.fixtures.workshop import Workshop
from tests.spark.provocations import CHEAP
from tests.spark.provoking import Place

from sluice.failure_reasons import Failure
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import newest_run
from sluice_spark.run.job import failure_of_error


@pytest.mark.parametrize("provoke", sampled(CHEAP, CHEAP[2:], full=CHEAP), ids=lambda one: one.__name__)
def test_a_provoked_failure_is_reported_and_recorded(
    provoke: Callable[[Place], None], workshop: Workshop, tmp_path: Path
) -> None:
    place = Place(workshop=workshop, folder=tmp_path, stream=f"s{workshop.namespace}")
    with pytest.raises(Exception) as raised:  # noqa: PT011  # of whatever class: that is what is judged
        provoke(place)
    expected = Failure.of(EXPECTED[provoke.__name__])
    assert failure_of_error(raised.value) == expected
    run = newest_run(workshop.ledger, place.stream)
    assert run is None or (run.state, run.failure) == (RunState.FAILED, expected)
