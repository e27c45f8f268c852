"""A row that a correction moves into an interval is not there twice, as long as its former interval holds it, too.

Every test run counts rows that move, and refuses a backfill whose row gets a time (`test_corrected_content.py`).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from tests.fixtures.backfills import (
    DAY_5,
    DAY_8,
    ask_for_day,
    backfill,
    backfill_run,
    declare_single_rows,
    delete_days,
    row,
    rows_of_days,
)
from tests.fixtures.workshop import Workshop
from tests.spark.backfill.test_right_rows import DAY_6, DAY_7

from sluice.errors import VerificationError
from sluice_spark.backfill.joint_run import JointRun

REFUSED = r"^1 rows of 2013-01-06 .* are in .*target already, in other intervals, .*: 2013-01-05 00:00 to"


def correct(workshop: Workshop, stream: str) -> None:
    """A row of the 5th gets a time of the 6th."""
    query = "SELECT id, word, if(id = 50, at + INTERVAL 1 DAY, at) AS at FROM records"
    (workshop.folder / f"{stream}.sql").write_text(query)


WAYS: list[dict[str, Any]] = [{"reads": {"records": "at"}, "margin": "1 day"}, {}]


@pytest.mark.full  # as below
@pytest.mark.parametrize("reads", WAYS, ids=["reads", "whole"])
def test_of_rows_that_are_equal_but_for_their_times_only_one_that_is_given_no_more_has_moved(
    workshop: Workshop, reads: dict[str, Any]
) -> None:
    same = [{**row(100, day=day), "word": "same"} for day in (4, 5, 6)]
    stream = declare_single_rows(workshop, [*rows_of_days(), *same], **reads)
    before = workshop.rows("target")
    delete_days(workshop, "target", DAY_6, DAY_7)

    assert backfill(workshop, stream, start=DAY_6, end=DAY_7).rows["published"] == 4

    assert workshop.rows("target") == before
    correct(workshop, stream)
    with pytest.raises(VerificationError, match=REFUSED):
        backfill(workshop, stream, start=DAY_6, end=DAY_7)


@pytest.mark.full  # every run counts such rows, and refuses one that gets a time (`test_corrected_content.py`)
@pytest.mark.parametrize("reads", WAYS, ids=["reads", "whole"])
def test_a_row_that_moves_into_an_interval_is_never_there_twice(workshop: Workshop, reads: dict[str, Any]) -> None:
    stream = declare_single_rows(workshop, rows_of_days(), **reads)
    before = workshop.rows("target")
    correct(workshop, stream)

    with pytest.raises(VerificationError, match=REFUSED) as twice:
        backfill(workshop, stream, start=DAY_6, end=DAY_7)
    assert "--from 2013-01-05T00:00 --to 2013-01-07T00:00`" in (twice.value.next_step or "")
    assert workshop.rows("target") == before

    ask_for_day(workshop, stream, 5)
    backfill(workshop, stream, start=DAY_6, end=DAY_7)
    backfill(workshop, stream, start=DAY_5, end=DAY_6, allows_fewer=True)
    after = {one["id"]: one["at"].day for one in workshop.rows("target")}
    assert (len(workshop.rows("target")), after[50]) == (len(before), 6)


@pytest.mark.full
def test_days_that_are_computed_together_are_left_alone_where_a_row_would_be_there_twice(workshop: Workshop) -> None:
    """A row of the 5th moves to the 6th; one of the 7th moves between days that are computed together."""
    stream = declare_single_rows(workshop, rows_of_days(), partitioned_by=[{"column": "at", "transform": "day"}])
    before = workshop.rows("target")
    moving = "if(id = 70, at - INTERVAL 1 DAY, at)"
    (workshop.folder / f"{stream}.sql").write_text(f"SELECT id, word, {moving} AS at FROM records")  # noqa: S608  # our own
    runs = [backfill_run(workshop, stream, start=start, end=end) for start, end in ((DAY_6, DAY_7), (DAY_7, DAY_8))]
    joint = JointRun(runs=tuple(replace(run, allows_fewer=True) for run in runs))
    assert len(joint.work()) == len(runs)
    assert Counter(one["id"] for one in workshop.rows("target")) == Counter(one["id"] for one in before)
    correct(workshop, stream)

    assert JointRun(runs=joint.runs).work() == {}

    assert Counter(one["id"] for one in workshop.rows("target")) == Counter(one["id"] for one in before)
