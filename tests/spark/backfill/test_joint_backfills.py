"""The intervals of many runs are computed as one batch, and each becomes visible in a commit of its own."""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from tests.fixtures.backfills import (
    COUNT_DAYS,
    DAYS,
    ask_for_day,
    day_of_january,
    declare_read_stream,
    delete_days,
    expected,
    ids_by_duckdb,
    name_of_run,
    row,
    staging_tables,
)
from tests.fixtures.crash_points import IN_A_BACKFILL
from tests.fixtures.drill import sampled
from tests.fixtures.stack import Stack
from tests.fixtures.work import applications_of, await_killed, serve, start, states_of, waited_for
from tests.fixtures.workshop import Workshop

from sluice.errors import VerificationError
from sluice.ledger.backfill_attempts import BackfillAttemptObservation, BackfillState, recent_attempts
from sluice.ledger.locks import LockedInterval, interval_lock
from sluice.ledger.work_items import observe_item
from sluice.ledger.work_values import WorkItem, WorkState
from sluice.publication.crash_points import CrashPoint, unnoticed
from sluice.work.requests import ReplaceInterval
from sluice_spark.work.item_work import ReachedOfItem

AT_ONCE = 6  # half of them are computed together
IN_THE_FULL_RUN = (CrashPoint.PUBLISHED,)
"""Every run kills an application (`test_work_crashes.py`), and fails after a commit (`test_backfill_crashes.py`)."""

OF_EACH_INTERVAL = (CrashPoint.CHECKED, CrashPoint.PUBLISHED, CrashPoint.RECORDED)
IDS = sorted(row["id"] for row in expected())
DONE, PUBLISHED = WorkState.DONE, BackfillState.PUBLISHED


@pytest.fixture
def stream(workshop: Workshop) -> str:
    """A stream into a table with a partition for each day, three of which were deleted."""
    return stream_with(workshop, at_once=AT_ONCE)


def stream_with(workshop: Workshop, *, at_once: int) -> str:
    """The same, with so many intervals at once."""
    name = declare_read_stream(workshop, partitioned_by="day", at_once=at_once)
    delete_days(workshop, "target")
    return name


def ask_for_days(workshop: Workshop, stream: str, *days: int) -> list[str]:
    """Ask for days as their runs do, where forged rows may go."""
    return [ask_for_day(workshop, stream, day, allows_fewer=True) for day in days]


def replaced(workshop: Workshop, stream: str, *days: int, reached: ReachedOfItem = unnoticed) -> list[str]:
    """Ask for days and have them done; the items."""
    items = ask_for_days(workshop, stream, *days)
    serve(workshop, items, reached=reached)
    return items


def counted_in(steps: Counter[CrashPoint]) -> ReachedOfItem:
    """Counts the steps of backfills."""
    return lambda step, _: steps.update([step] if step in IN_A_BACKFILL else [])


def at_step(step: CrashPoint, act: Callable[[], object]) -> ReachedOfItem:
    """Do something when a step is reached for the first time."""
    done: list[CrashPoint] = []

    def reached(here: CrashPoint, item: WorkItem) -> None:
        del item
        if here is step and not done:
            done.append(here)
            act()

    return reached


def result_of(workshop: Workshop, item: str) -> Any:
    """What an item has returned."""
    return observe_item(workshop.ledger, item).result


def attempts(workshop: Workshop, stream: str) -> dict[int, list[BackfillAttemptObservation]]:
    """The attempts of each day of January, oldest first."""
    found: dict[int, list[BackfillAttemptObservation]] = {}
    for one in reversed(recent_attempts(workshop.ledger, stream, limit=20)):
        found.setdefault(one.key.interval_start.day, []).append(one)
    return found


def states(workshop: Workshop, stream: str) -> dict[int, list[BackfillState]]:
    """How the attempts of each day ended."""
    return {day: [one.state for one in of_day] for day, of_day in attempts(workshop, stream).items()}


@pytest.mark.full
def test_touching_days_are_computed_once_and_published_one_by_one(workshop: Workshop, stream: str) -> None:
    steps = Counter[CrashPoint]()

    items = replaced(workshop, stream, 7, 6, 5, reached=counted_in(steps))

    assert states_of(workshop, items) == [DONE, DONE, DONE]
    assert steps == {step: 3 if step in OF_EACH_INTERVAL else 1 for step in IN_A_BACKFILL}
    assert workshop.rows("target") == expected()
    key = rf"{stream}/backfill/20130107T0000-20130108T0000/[0-9a-f]{{32}}/1"
    assert re.fullmatch(key, str(result_of(workshop, items[0])["key"]))
    found = attempts(workshop, stream)
    assert {day: one.launched_by for day, (one,) in found.items()} == {day: name_of_run(day) for day in (5, 6, 7)}
    assert [one.state for (one,) in found.values()] == [PUBLISHED] * 3
    assert len({one.snapshot_id for (one,) in found.values()}) == 3
    assert all(
        (one.rows["read"], one.rows["published"], one.rows["outside"], one.rows["quarantined"]) == (26, 3, 21, 2)
        for (one,) in found.values()
    )
    assert len(workshop.rows(f"quarantine.{stream}")) == 2
    assert staging_tables(workshop, stream) == []


def test_only_days_that_differ_are_published(workshop: Workshop) -> None:
    stream = declare_read_stream(workshop, partitioned_by="day", at_once=AT_ONCE)
    delete_days(workshop, "target", start="2013-01-06")
    workshop.append("target", [row(7, day=6, word="forged")])

    assert states_of(workshop, replaced(workshop, stream, 5, 6, 7)) == [DONE, DONE, DONE]

    assert workshop.rows("target") == expected()
    ended = {day: of_day[-1] for day, of_day in attempts(workshop, stream).items()}
    assert {day: one.state for day, one in ended.items()} == {5: BackfillState.UNCHANGED, 6: PUBLISHED, 7: PUBLISHED}
    assert {day: one.rows["replaced"] for day, one in ended.items()} == {5: 3, 6: 1, 7: 0}


@pytest.mark.drill  # every test run asks for random days
def test_days_that_do_not_touch_are_computed_apart(workshop: Workshop, stream: str) -> None:
    steps = Counter[CrashPoint]()

    items = replaced(workshop, stream, 5, 7, reached=counted_in(steps))

    assert states_of(workshop, items) == [DONE, DONE]
    assert steps[CrashPoint.COMPUTED] == 2
    assert [one["id"] for one in workshop.rows("target")] == [number for number in IDS if not 60 <= number < 70]


@pytest.mark.parametrize("seed", sampled([1, 2], [], full=[1]))  # every run: `test_any_history.py`
def test_whatever_days_are_wrong_and_asked_for_the_table_holds_what_its_source_gives(
    seed: int, workshop: Workshop
) -> None:
    """Days are missing or hold rows that no source has; some that are asked for are right."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    stream = stream_with(workshop, at_once=chance.choice([4, 6, 16]))
    forged = chance.sample(range(1, DAYS + 1), 3)
    workshop.append("target", [row(day, day=day, word="forged") for day in forged])
    days = chance.sample(range(1, DAYS + 1), DAYS)
    asked = [day for day in days if day in {5, 6, 7, *forged} or chance.random() < 0.5]

    items = replaced(workshop, stream, *asked)

    assert states_of(workshop, items) == [DONE] * len(asked)
    assert workshop.rows("target") == expected()
    changed = {day for day, ended in states(workshop, stream).items() if ended[-1] is PUBLISHED}
    assert changed == {5, 6, 7, *forged}
    assert staging_tables(workshop, stream) == []


@pytest.mark.full
def test_a_day_that_changes_meanwhile_is_computed_again_alone(workshop: Workshop, stream: str) -> None:
    items = ask_for_days(workshop, stream, 5, 6, 7)

    def forge() -> None:
        workshop.append("target", [row(7, day=6, word="forged")])

    serve(workshop, items, reached=at_step(CrashPoint.CHECKED, forge))

    assert states_of(workshop, items) == [DONE, DONE, DONE]
    assert workshop.rows("target") == expected()
    assert states(workshop, stream) == {
        5: [PUBLISHED],
        6: [BackfillState.CHANGED_MEANWHILE, PUBLISHED],
        7: [PUBLISHED],
    }


@pytest.mark.full
def test_what_fails_after_a_day_has_changed_does_not_end_its_attempt_again(workshop: Workshop, stream: str) -> None:
    items = ask_for_days(workshop, stream, 5, 6, 7)
    checked = Counter[CrashPoint]()

    def forge_and_fail(step: CrashPoint, item: WorkItem) -> None:
        """Day 6 changes before the commit of day 5, and the commit of day 7 fails."""
        del item
        checked.update([step])
        if step is CrashPoint.CHECKED and checked[step] == 1:
            workshop.append("target", [row(7, day=6, word="forged")])
        elif step is CrashPoint.CHECKED and checked[step] == 3:  # day 5 looks twice: the table has moved
            raise VerificationError("The commit of day 7 fails.")

    serve(workshop, items, reached=forge_and_fail)

    assert states_of(workshop, items) == [DONE, DONE, DONE]
    assert workshop.rows("target") == expected()
    assert states(workshop, stream) == {
        5: [PUBLISHED],
        6: [BackfillState.CHANGED_MEANWHILE, PUBLISHED],
        7: [BackfillState.FAILED, PUBLISHED],
    }


@pytest.mark.full  # every run has it for one interval (`test_backfills.py`)
def test_a_batch_of_the_stream_meanwhile_is_neither_lost_nor_doubled(workshop: Workshop, stream: str) -> None:
    items = ask_for_days(workshop, stream, 5, 6, 7)

    def go_on() -> None:
        workshop.append("source", [row(700, day=6), row(701, day=1)])
        workshop.run(stream)

    serve(workshop, items, reached=at_step(CrashPoint.STAGED, go_on))

    assert states_of(workshop, items) == [DONE, DONE, DONE]
    assert sorted(one["id"] for one in workshop.rows("target")) == sorted([700, 701, *IDS])
    assert states(workshop, stream) == {day: [PUBLISHED] for day in (5, 6, 7)}


@pytest.mark.parametrize(
    "error",
    sampled(errors := [VerificationError("It does not add up."), ValueError("a mistake of a user")], (), full=errors),
    ids=lambda error: type(error).__name__,
)
def test_days_that_fail_together_are_computed_alone(error: Exception, workshop: Workshop, stream: str) -> None:
    def fail() -> None:
        raise error

    items = ask_for_days(workshop, stream, 5, 6, 7)

    serve(workshop, items, reached=at_step(CrashPoint.STAGED, fail))

    assert states_of(workshop, items) == [DONE, DONE, DONE]
    assert workshop.rows("target") == expected()
    assert states(workshop, stream) == {day: [BackfillState.FAILED, PUBLISHED] for day in (5, 6, 7)}
    assert staging_tables(workshop, stream) == []


@pytest.mark.full  # every run: a day that cannot be done with others is done alone (`test_work_intervals.py`)
def test_a_file_with_rows_of_two_days_makes_each_day_alone(workshop: Workshop, stream: str) -> None:
    """Such files are older than the partitions."""
    with workshop.table("target").update_spec() as spec:
        spec.remove_field("at_day")
    workshop.append("target", [row(7, day=5, word="forged"), row(8, day=6, word="forged")])
    with workshop.table("target").update_spec() as spec:
        spec.add_field("at", "day", "at_day")

    items = replaced(workshop, stream, 5, 6)

    assert states_of(workshop, items) == [DONE, DONE]
    assert [one["id"] for one in workshop.rows("target")] == [number for number in IDS if number < 70 or number >= 80]
    assert not any(BackfillState.FAILED in ended for ended in states(workshop, stream).values())


@pytest.mark.full  # every run: in one interval (`test_backfills.py`), and another day that fails alone
def test_a_day_that_would_have_fewer_rows_fails_alone(workshop: Workshop, stream: str) -> None:
    workshop.append("target", [row(number, day=6, word="forged") for number in range(4)])

    serve(workshop, items := [ask_for_day(workshop, stream, day) for day in (5, 6, 7)])

    assert states_of(workshop, items) == [DONE, WorkState.FAILED, DONE]
    assert "holds 4 rows, and 3 would take their place" in (observe_item(workshop.ledger, items[1]).failure or "")
    assert len([one for one in workshop.rows("target") if one["word"] == "forged"]) == 4


@pytest.mark.full  # every run: in one interval (`test_backfills.py`)
def test_a_day_that_another_run_works_on_fails_alone(workshop: Workshop, stream: str) -> None:
    items = ask_for_days(workshop, stream, 5, 6, 7)
    sixth = day_of_january(6)

    with interval_lock(workshop.ledger, LockedInterval(stream=stream, start=sixth.start, end=sixth.end)):
        serve(workshop, items)

    assert states_of(workshop, items) == [DONE, WorkState.FAILED, DONE]
    assert "is being backfilled by another run" in (observe_item(workshop.ledger, items[1]).failure or "")
    assert [one["id"] for one in workshop.rows("target")] == [number for number in IDS if not 60 <= number < 70]


@pytest.mark.full
def test_two_runs_that_want_the_same_day_take_turns(workshop: Workshop, stream: str) -> None:
    items = [
        ask_for_day(workshop, stream, 5),
        ask_for_day(workshop, stream, 5, asked_by="another run"),
        ask_for_day(workshop, stream, 6),
    ]

    serve(workshop, items)

    assert states_of(workshop, items) == [DONE, DONE, DONE]
    assert sorted(states(workshop, stream)[5]) == [PUBLISHED, BackfillState.UNCHANGED]


@pytest.mark.drill  # `test_backfills.py` has it for one interval
def test_rows_that_do_not_add_up_are_never_published(workshop: Workshop, stream: str) -> None:
    text = (workshop.folder / f"{stream}.py").read_text()
    (workshop.folder / f"{stream}.py").write_text(text.replace("word <> 'bad'", "word <> 'bad' and id <> 51"))
    items = ask_for_days(workshop, stream, 5, 6)
    head = workshop.table("target").metadata.current_snapshot_id

    serve(workshop, items)

    assert "26 rows were read; 2 published" in (observe_item(workshop.ledger, items[0]).failure or "")
    assert states_of(workshop, items) == [WorkState.FAILED] * 2
    assert workshop.table("target").metadata.current_snapshot_id == head
    assert states(workshop, stream) == {day: [BackfillState.FAILED] * 2 for day in (5, 6)}


@pytest.mark.drill  # `test_backfills.py` has it for one interval
def test_newly_rejected_rows_are_quarantined_once(workshop: Workshop, stream: str) -> None:
    text = (workshop.folder / f"{stream}.py").read_text()
    (workshop.folder / f"{stream}.py").write_text(
        text.replace("word <> 'bad'", "word <> 'bad' and id <> 51").replace("word = 'bad'", "word = 'bad' or id = 51")
    )

    items = replaced(workshop, stream, 5, 6)

    assert states_of(workshop, items) == [DONE, DONE]
    assert [one["payload"] for one in workshop.rows(f"quarantine.{stream}")].count("word") == 1
    assert [one["id"] for one in workshop.rows("target")] == [one for one in IDS if one != 51 and not 70 <= one < 80]


@pytest.mark.full  # every run resolves what it replays (`test_replays.py`)
def test_what_was_rejected_is_resolved_with_the_last_of_the_days(workshop: Workshop) -> None:
    stream = declare_read_stream(workshop, partitioned_by="day", at_once=16)  # eight are computed together
    path = workshop.folder / f"{stream}.py"
    path.write_text(path.read_text().replace("word <> 'bad'", "true").replace("word = 'bad'", "false"))
    replaced(workshop, stream, *range(1, 9))

    assert [row["resolution"] for row in workshop.rows(f"quarantine.{stream}")] == ["corrected"] * 2
    assert sum(one.rows["resolved"] for one in recent_attempts(workshop.ledger, stream, limit=20)) == 2


@pytest.mark.drill  # `test_backfill_sources.py` has it for one interval
def test_streams_that_follow_come_after_the_days_of_each_run(workshop: Workshop, stream: str) -> None:
    reader = f"r{workshop.namespace}"
    days = workshop.declare_table("days", {"at": "timestamptz", "rows": "long"})
    reading = {"table": workshop.table_name("target"), "on_overwrite": "skip", "on_delete": "skip"}
    workshop.declare_stream(
        reader,
        python=COUNT_DAYS,
        inputs={"records": {"stream": {"iceberg": reading}, "watermark": {"column": "at", "delay": "6 hours"}}},
        outputs={"days": {"iceberg": {"table": days, "mode": "merge", "keys": ["at"]}}},
        backfill={"column": "at", "reads": {"records": "at"}, "follows": ["records"]},
    )
    workshop.run(reader)
    workshop.append("source", [row(700, day=8)])
    workshop.run(stream)
    workshop.run(reader)
    steps = Counter[CrashPoint]()

    items = replaced(workshop, stream, 5, 6, reached=counted_in(steps))

    assert states_of(workshop, items) == [DONE, DONE]
    assert steps[CrashPoint.COMPUTED] == 3, "once for both days, and once for each follower"
    (follower,) = result_of(workshop, items[0])["followers"]
    assert re.fullmatch(rf"{reader}/backfill/20130105T0000-20130106T0000/[0-9a-f]{{32}}/1", follower["key"])
    counted = {one["at"].day: one["rows"] for one in workshop.rows("days")}
    assert {day: counted[day] for day in (5, 6)} == {5: 3, 6: 3}
    assert states(workshop, reader) == {5: [PUBLISHED], 6: [PUBLISHED]}


@pytest.mark.parametrize("step", sampled(IN_A_BACKFILL, (), full=IN_THE_FULL_RUN), ids=str)
def test_when_the_application_is_killed_the_next_completes_every_day(
    step: CrashPoint, workshop: Workshop, stream: str, services: Stack
) -> None:
    """It is killed at the second of three days where each day has the step."""
    items = ask_for_days(workshop, stream, 5, 6, 7)
    fifth = day_of_january(5)
    request = ReplaceInterval(stream=stream, start=fifth.start.isoformat(), end=fifth.end.isoformat())
    dies_at = (step, 2 if step in OF_EACH_INTERVAL else 1)
    with waited_for(workshop, items), applications_of(workshop, services.environment(), dies_at=dies_at) as launcher:
        await_killed(workshop, start(workshop, items[0], request, launcher))
    visible = {5} if step is CrashPoint.CHECKED else {5, 6} if step in OF_EACH_INTERVAL else set()
    hidden = {day * 10 + number for day in {5, 6, 7} - visible for number in range(3)}
    assert ids_by_duckdb(workshop) == [number for number in IDS if number not in hidden]

    with waited_for(workshop, items):
        serve(workshop, items)

    assert states_of(workshop, items) == [DONE, DONE, DONE]
    assert ids_by_duckdb(workshop) == IDS
    assert staging_tables(workshop, stream) == []
    last = {day: of_day[-1].state for day, of_day in attempts(workshop, stream).items()}
    assert last == {day: BackfillState.UNCHANGED if day in visible else PUBLISHED for day in (5, 6, 7)}
