"""Which table has its turn first, and which waits for another day."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.maintenance.test_maintenance_plan import MIB, NO_PINS, NOON, POLICY, partition, table

from sluice.maintenance.due_tables import Effort, rank_tables
from sluice.maintenance.maintenance_plan import MaintenancePlan, plan_maintenance


def planned(name: str, *, files: int, size: int = MIB, readers: int = 0) -> MaintenancePlan:
    """The plan of a table with so many small files."""
    seen = replace(table(partition(files, small_bytes=size), ages=(1,)), table=name)
    return replace(plan_maintenance(policy=POLICY, seen=seen, pins=NO_PINS, now=NOON), readers=readers)


IDLE, FEW, MANY = planned("idle", files=2), planned("few", files=6, size=20 * MIB), planned("many", files=400)


def test_the_most_gain_for_its_cost_comes_first_and_what_is_in_order_is_no_candidate() -> None:
    ranked = rank_tables([IDLE, FEW, MANY], budget=Effort(), spent=Effort())
    assert [(one.place, one.plan.seen.table, one.put_off) for one in ranked] == [(1, "many", ""), (2, "few", "")]
    assert ranked[0].sentence() == (
        "1. many: rewrite_data_files: 400 small files (1048576 bytes) in 1 of 1 partitions (about 4 s and 1.0 MiB)"
    )


def test_a_table_that_many_streams_read_comes_earlier() -> None:
    read = planned("read", files=6, size=20 * MIB, readers=200)
    assert [one.plan.seen.table for one in rank_tables([MANY, read], budget=Effort(), spent=Effort())] == [
        "read",
        "many",
    ]


def waits(seconds: int, limit: int) -> str:
    """Why a table waits that would take the day's seconds beyond their limit."""
    return f"put off, because it would make {seconds} s of the day's budget of {limit} s"


NOTHING = Effort(seconds=0, bytes=0)


@pytest.mark.parametrize(
    ("budget", "spent", "put_off"),
    [
        (Effort(seconds=10), NOTHING, ["", ""]),
        (Effort(seconds=5), NOTHING, ["", waits(6, 5)]),
        (Effort(seconds=1), NOTHING, ["", waits(6, 1)]),
        (
            Effort(bytes=10 * MIB),
            Effort(seconds=3, bytes=8 * MIB),
            ["", "put off, because it would make 30,408,704 bytes of the day's budget of 10,485,760"],
        ),
        (Effort(seconds=9), Effort(seconds=8, bytes=1), [waits(12, 9), waits(10, 9)]),
        (Effort(seconds=2), Effort(seconds=0.5, bytes=1), ["", waits(7, 2)]),
    ],
    ids=[
        "enough",
        "for one",
        "the first of a day has its turn",
        "bytes",
        "spent before",
        "one that is dearer than the budget does not wait for ever",
    ],
)
def test_the_budget_of_a_day(budget: Effort, spent: Effort, put_off: list[str]) -> None:
    assert [one.put_off for one in rank_tables([FEW, MANY], budget=budget, spent=spent)] == put_off
