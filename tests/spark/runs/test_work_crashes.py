"""An application is killed at a step of an item: nothing is lost or visible twice, and the next one does the item."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pytest
from pyiceberg.table.snapshots import Operation
from tests.fixtures.backfills import (
    ask_for_day,
    day_of_january,
    declare_read_stream,
    delete_days,
    expected,
    ids_by_duckdb,
)
from tests.fixtures.crash_points import OF_AN_ITEM
from tests.fixtures.drill import sampled
from tests.fixtures.stack import Stack
from tests.fixtures.streams_of_tables import COLUMNS, reading, writing
from tests.fixtures.work import (
    applications_of,
    ask_for,
    await_end_of_application,
    await_killed,
    serve,
    start,
    states_of,
    waited_for,
)
from tests.fixtures.workshop import Workshop

from sluice.ledger.applications import MOST_ATTEMPTS
from sluice.ledger.work_items import find_items, observe_item
from sluice.ledger.work_values import WorkItem, WorkState
from sluice.publication.crash_points import CrashPoint
from sluice.work.requests import Increment, MaintainTable, ReplaceInterval, WorkRequest

VISIBLE_FROM = (CrashPoint.ITEM_DONE, CrashPoint.ITEM_RECORDED)
KILLED_AT = {("interval", CrashPoint.ITEM_CLAIMED)}
IN_THE_FULL_RUN = {("increment", CrashPoint.ITEM_DONE), ("maintenance", CrashPoint.ITEM_CHOSEN)}
"""A sample: from DONE on each costs a process with a JVM. `make drill` kills each kind at every step. Every test run
kills an increment, too, within its batch (`test_work_application.py`)."""

SUICIDE = """
    import os
    import signal
    import psutil

    def transform(records):
        for child in psutil.Process().children(recursive=True):
            child.kill()
        os.kill(os.getpid(), signal.SIGKILL)
        return records
"""
IDS = list(range(6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """An item of one kind.

    before, after: the ids of the rows in the table `target`, without and with the effect of the item.
    is_done_once: whether its effect is there once: what the ids do not show.
    """

    request: WorkRequest
    item: str
    before: list[int]
    after: list[int]
    is_done_once: Callable[[], bool]


def an_increment(workshop: Workshop) -> Asked:
    """A stream that copies rows."""
    request = Increment(stream=declare_copy(workshop, f"s{workshop.namespace}"))
    workshop.append("source", [{"id": number, "word": "word"} for number in IDS])
    item = ask_for(workshop, request)
    return Asked(request=request, item=item, before=[], after=IDS, is_done_once=lambda: True)


def an_interval(workshop: Workshop) -> Asked:
    """A day that is missing in a table."""
    stream = declare_read_stream(workshop)
    delete_days(workshop, "target", "2013-01-05", "2013-01-06")
    day, every = day_of_january(5), sorted(row["id"] for row in expected())
    request = ReplaceInterval(stream=stream, start=day.start.isoformat(), end=day.end.isoformat())
    before = [number for number in every if not 50 <= number < 60]
    item = ask_for_day(workshop, stream, 5)
    return Asked(request=request, item=item, before=before, after=every, is_done_once=lambda: True)


def a_maintenance(workshop: Workshop) -> Asked:
    """A table of six files, which become one."""
    policy = {"compaction": {"target_file_bytes": "64MiB", "min_input_files": 5}}
    table = workshop.declare_table("target", COLUMNS, maintenance=policy)
    for number in IDS:
        workshop.append("target", [{"id": number, "word": "word"}])
    request = MaintainTable(table=table)

    def is_compacted_once() -> bool:
        summaries = [snapshot.summary for snapshot in workshop.table(table).snapshots()]
        return sum(one is not None and one.operation is Operation.REPLACE for one in summaries) == 1

    item = ask_for(workshop, request)
    return Asked(request=request, item=item, before=IDS, after=IDS, is_done_once=is_compacted_once)


def declare_copy(workshop: Workshop, stream: str, *, python: str = "", name: str = "") -> str:
    """Declare a stream that copies a table; its name."""
    source, target = (workshop.declare_table(f"{name}{table}", COLUMNS) for table in ("source", "target"))
    sql = "" if python else "SELECT id, word FROM records"
    workshop.declare_stream(stream, sql=sql, python=python, inputs=reading(source), outputs=writing(target))
    return stream


def the_item(workshop: Workshop, item: str) -> WorkItem:
    """An item as applications see it."""
    return next(one for one, _ in find_items(workshop.ledger, limit=50) if one.item == item)


ASKED = {"increment": an_increment, "interval": an_interval, "maintenance": a_maintenance}


@pytest.mark.parametrize(
    "killed", sampled(list(product(ASKED, OF_AN_ITEM)), KILLED_AT, full=IN_THE_FULL_RUN), ids="-".join
)
def test_whenever_an_application_is_killed_the_next_completes_its_item(
    killed: tuple[str, CrashPoint], workshop: Workshop, services: Stack
) -> None:
    kind, step = killed
    asked = ASKED[kind](workshop)
    with waited_for(workshop, [asked.item]):
        with applications_of(workshop, services.environment(), dies_at=(step, 1)) as launcher:
            await_killed(workshop, start(workshop, asked.item, asked.request, launcher))

        assert ids_by_duckdb(workshop) == (asked.after if step in VISIBLE_FROM else asked.before)
        if step is CrashPoint.ITEM_RECORDED:
            assert states_of(workshop, [asked.item]) == [WorkState.DONE]
            return
        was_claimed, left = step is not CrashPoint.ITEM_CHOSEN, the_item(workshop, asked.item)
        assert (left.attempt, left.runs_alone) == (int(was_claimed), was_claimed)
        assert observe_item(workshop.ledger, asked.item).needs_application

        serve(workshop, [asked.item])

    assert states_of(workshop, [asked.item]) == [WorkState.DONE]
    assert the_item(workshop, asked.item).attempt == left.attempt + 1
    assert ids_by_duckdb(workshop) == asked.after
    assert asked.is_done_once()


@pytest.mark.full
def test_an_item_that_kills_its_process_takes_its_neighbours_along_once(workshop: Workshop, services: Stack) -> None:
    """Its transformation does. It is between two others, and all of them are claimed at the same moment."""
    names = ("first", "poison", "last")
    requests = [
        Increment(
            stream=declare_copy(
                workshop, f"{name}{workshop.namespace}", name=name, python=SUICIDE if name == "poison" else ""
            )
        )
        for name in names
    ]
    for name in names:
        workshop.append(f"{name}source", [{"id": number, "word": name} for number in IDS])
    items = [ask_for(workshop, request) for request in requests]
    with waited_for(workshop, items), applications_of(workshop, services.environment()) as launcher:
        await_end_of_application(workshop, start(workshop, items[0], requests[0], launcher))
        claimed = [the_item(workshop, item) for item in items]
        assert [item.attempt for item in claimed] == [1, 1, 1]
        left = [item for item in items if observe_item(workshop.ledger, item).state is WorkState.WAITING]
        assert items[1] in left
        assert all(item.runs_alone for item in claimed if item.item in left)

        await_end_of_application(workshop, start(workshop, left[0], requests[items.index(left[0])], launcher))
        seen = observe_item(workshop.ledger, items[1])
        assert (seen.state, seen.failure) == (
            WorkState.FAILED,
            f"it was claimed by {MOST_ATTEMPTS} Spark applications, and each ended while it worked on it",
        )
        left = [item for item in items if observe_item(workshop.ledger, item).state is WorkState.WAITING]
        if left:
            serve(workshop, left)

    assert states_of(workshop, items) == [WorkState.DONE, WorkState.FAILED, WorkState.DONE]
    for name in ("first", "last"):
        assert [row["id"] for row in workshop.rows(f"{name}target")] == IDS
    assert workshop.rows("poisontarget") == []
