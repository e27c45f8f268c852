"""What goes on around a refresh: state, other runs, maintenance, giving up.

Every test run refreshes a stream that goes on (`test_refreshes.py`), and has the rest without Spark:
`ledger/test_refreshes.py`, `test_swapping.py`, `test_refresh_plan.py`, `test_row_brake.py`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from pyiceberg.expressions import EqualTo
from tests.fixtures.refreshes import (
    ROWS,
    at_step,
    declare_copy,
    refresh,
    refresh_run,
    right,
    run_wrong_copy,
    shadow_tables,
    take_it_back,
    wrong,
)
from tests.fixtures.upkeep import maintain
from tests.fixtures.workshop import Workshop

from sluice.errors import StaleTokenError, UnpublishableError, UsageError
from sluice.ledger.connection import database_time
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.generations import find_generation
from sluice.ledger.refreshes import RefreshState, newest_refresh
from sluice.ledger.run_values import DesiredState
from sluice.publication.crash_points import CrashPoint
from sluice.publication.mark_moves import take_over
from sluice.refresh.observe_refresh import refreshed_output
from sluice.refresh.undo_refresh import abandon
from sluice.supervision.stream_reset import plan_reset, reset_stream

NEW = {"id": 100, "word": "new"}
EXPIRED_AT_ONCE = {"compaction": None, "expiry": {"older_than": "1 millisecond", "retain_last": 1}}


@pytest.mark.full  # every run: a stream that merges goes on in the shadow's checkpoint
def test_a_stream_with_state_goes_on_from_the_state_of_the_shadow(workshop: Workshop) -> None:
    name = f"s{workshop.namespace}"
    workshop.declare_table("source", {"id": "long", "word": "string"})
    workshop.declare_table("target", {"word": "string", "n": "long"})
    workshop.declare_stream(
        name,
        sql="SELECT word, count(*) AS n FROM rows GROUP BY word",
        inputs={"rows": {"stream": {"iceberg": {"table": workshop.table_name("source")}}}},
        outputs={"main": {"iceberg": {"table": workshop.table_name("target"), "mode": "merge", "keys": ["word"]}}},
    )
    workshop.append("source", [{"id": 1, "word": "a"}, {"id": 2, "word": "b"}])
    workshop.run_supervised(name)
    corrected = "SELECT upper(word) AS word, count(*) AS n FROM rows GROUP BY upper(word)"
    (workshop.folder / f"{name}.sql").write_text(corrected)  # its old checkpoint cannot follow

    refresh(workshop, name)
    workshop.append("source", [{"id": 3, "word": "A"}])
    workshop.run_supervised(name)

    assert workshop.rows("target") == [{"word": "A", "n": 2}, {"word": "B", "n": 1}]


@pytest.mark.full
def test_expiry_keeps_what_is_needed_to_take_a_refresh_back(workshop: Workshop) -> None:
    name = run_wrong_copy(workshop)
    for table in ("source", "target"):
        workshop.declare_table(table, {"id": "long", "word": "string"}, maintenance=EXPIRED_AT_ONCE)
    refreshed = refresh(workshop, name)
    workshop.append("source", [NEW])
    workshop.run_supervised(name)
    workshop.append("source", [{"id": 101, "word": "newer"}])
    workshop.run_supervised(name)

    for table in ("source", "target"):
        maintain(workshop, workshop.table_name(table))

    tag = workshop.table("target").refs()[refreshed.tag]
    assert len(list(workshop.table("target").snapshots())) == 2, "the tagged one and the newest"
    head = workshop.table("target").snapshot_by_id(tag.snapshot_id)
    assert head is not None
    kept_until_ms = head.timestamp_ms + (tag.max_ref_age_ms or 0)
    expected_ms = (database_time(workshop.ledger) + refreshed.keeps).timestamp() * 1000
    assert abs(kept_until_ms - expected_ms) < 120_000, "counted from the refresh"
    take_it_back(workshop, name)
    workshop.run_supervised(name)
    assert workshop.rows("target") == [*wrong(ROWS), *right([NEW, {"id": 101, "word": "newer"}])]


@pytest.mark.full
def test_iceberg_may_expire_the_swap_after_it_was_taken_back(workshop: Workshop) -> None:
    name = run_wrong_copy(workshop)
    refresh(workshop, name)
    old = {task.file.file_path for task in workshop.table("target").scan().plan_files()}
    take_it_back(workshop, name)
    assert old.isdisjoint(task.file.file_path for task in workshop.table("target").scan().plan_files())

    time.sleep(0.01)  # the clock of the snapshots counts milliseconds
    jvm: Any = workshop.spark._jvm
    qualified = f"{workshop.settings.catalog.name}.{workshop.table_name('target')}"
    table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(workshop.spark._jsparkSession, qualified)
    table.refresh()
    table.expireSnapshots().expireOlderThan(int(time.time() * 1000)).retainLast(1).commit()

    assert workshop.rows("target") == wrong(ROWS)


@pytest.mark.full
def test_a_refresh_that_is_kept_no_more_is_not_taken_back(workshop: Workshop) -> None:
    name = run_wrong_copy(workshop)
    run = refresh_run(workshop, name)
    replace(run, keeps=timedelta(0)).work()
    with pytest.raises(UsageError, match=r"its earlier content was kept until .*: there is nothing to take back"):
        take_it_back(workshop, name)
    assert workshop.rows("target") == right(ROWS)


@pytest.mark.full
def test_a_refresh_is_given_up_at_any_time_before_its_commit(workshop: Workshop) -> None:
    name = run_wrong_copy(workshop)
    catalog, stream = workshop.catalog, workshop.stream(name)

    for step in (CrashPoint.BUILT, CrashPoint.SWAPPING):

        def give_up() -> None:
            raise OSError("it fails here")

        with pytest.raises(OSError, match="fails here"):
            refresh(workshop, name, reached=at_step(step, give_up))
        given_up = abandon(catalog, workshop.ledger, stream, asked_by="a test")
        assert (given_up.state, given_up.ended_at is None) == (RefreshState.ABANDONED, False)
        assert shadow_tables(workshop, name) == []
        with pytest.raises(UsageError, match=f"Refresh {given_up.number} of {name} is abandoned"):
            abandon(catalog, workshop.ledger, stream, asked_by="a test")
    assert workshop.rows("target") == wrong(ROWS)
    workshop.append("source", [NEW])
    workshop.run_supervised(name)
    assert workshop.rows("target") == [*wrong(ROWS), *right([NEW])]
    assert _generation(workshop, name) == 1


@pytest.mark.full  # every run has it without Spark (`ledger/test_refreshes.py`)
def test_a_refresh_that_was_given_up_while_it_was_built_ends_without_a_commit(workshop: Workshop) -> None:
    name = run_wrong_copy(workshop)
    catalog, stream = workshop.catalog, workshop.stream(name)

    def give_up() -> None:
        abandon(catalog, workshop.ledger, stream, asked_by="a test")

    with pytest.raises(UsageError, match="is abandoned: it was ended meanwhile"):
        refresh(workshop, name, reached=at_step(CrashPoint.CAUGHT_UP, give_up))
    assert workshop.rows("target") == wrong(ROWS)


@pytest.mark.full  # every run has it without Spark (`test_swapping.py`)
def test_a_swap_behind_a_newer_run_is_refused(workshop: Workshop) -> None:
    name = run_wrong_copy(workshop)
    catalog, output = workshop.catalog, refreshed_output(workshop.stream(name).declaration)

    with pytest.raises(StaleTokenError):
        refresh(
            workshop,
            name,
            reached=at_step(CrashPoint.SWAPPING, lambda: take_over(catalog, output, token=9_000_000_000_000)),
        )
    assert workshop.rows("target") == wrong(ROWS)


@pytest.mark.full  # every run has it without Spark (`ledger/test_refreshes.py`)
def test_a_stream_that_was_reset_meanwhile_is_not_swapped(workshop: Workshop) -> None:
    name = run_wrong_copy(workshop)

    def reset() -> None:
        set_desired_state(workshop.ledger, name, DesiredState.STOPPED)
        plan = plan_reset(workshop.ledger, workshop.stream(name), workshop.settings)
        reset_stream(workshop.ledger, workshop.stream(name), workshop.settings, planned=plan.digest, asked_by="a test")

    with pytest.raises(UsageError, match=rf"{name} is at generation 2, .* the stream was reset or continued meanwhile"):
        refresh(workshop, name, reached=at_step(CrashPoint.BUILT, reset))
    assert workshop.rows("target") == wrong(ROWS)


@pytest.mark.full
def test_batches_that_wait_to_be_published_come_first(workshop: Workshop) -> None:
    name = run_wrong_copy(workshop)
    workshop.append("source", [NEW])

    def crash(point: CrashPoint) -> None:
        if point is CrashPoint.STAGED:
            raise RuntimeError("crash")

    with pytest.raises(Exception, match="crash"):
        workshop.run(name, reached=crash)
    with pytest.raises(UnpublishableError, match=f"1 batches of {name} are staged and not visible yet"):
        refresh(workshop, name)
    workshop.run_supervised(name)
    refresh(workshop, name)
    assert workshop.rows("target") == right([*ROWS, NEW])


@pytest.mark.full  # every run: the rule (`test_row_brake.py`), and a backfill that asks it (`test_backfills.py`)
def test_a_refresh_that_would_lose_rows_waits_for_the_word_of_a_person(workshop: Workshop) -> None:
    name = run_wrong_copy(workshop)
    lost = ROWS[0]["id"]
    workshop.table("source").delete(EqualTo(term="id", value=lost))
    left = [row for row in ROWS if row["id"] != lost]
    numbers = f"holds {len(ROWS)} rows, and {len(left)} would take their place"

    with pytest.raises(UnpublishableError, match=numbers) as refused:
        refresh(workshop, name)

    assert "`--allow-fewer`" in (refused.value.next_step or "")
    assert workshop.rows("target") == wrong(ROWS)
    newest = newest_refresh(workshop.ledger, name)
    assert newest is not None
    assert newest.state is RefreshState.BUILDING

    refresh(workshop, name, allows_fewer=True)

    assert workshop.rows("target") == right(left)


@pytest.mark.full
def test_a_source_that_was_emptied_does_not_empty_the_table(workshop: Workshop) -> None:
    name = run_wrong_copy(workshop)
    workshop.table("source").delete()
    with pytest.raises(UnpublishableError, match="has no row, and the table has some"):
        refresh(workshop, name)
    assert workshop.rows("target") == wrong(ROWS)


@pytest.mark.full  # every run has it without Spark (`test_refresh_plan.py`)
def test_what_stands_against_a_refresh_is_said_before_it_begins(workshop: Workshop) -> None:
    name = run_wrong_copy(workshop)
    workshop.declare_table("copy", {"id": "long", "word": "string"})
    reader = f"r{workshop.namespace}"
    workshop.declare_stream(
        reader,
        sql="SELECT id, word FROM rows",
        inputs={"rows": {"stream": {"iceberg": {"table": workshop.table_name("target")}}}},
        outputs={"main": {"iceberg": {"table": workshop.table_name("copy")}}},
    )
    with pytest.raises(UnpublishableError, match=rf"{reader} \(input rows\) stops at the overwrite"):
        refresh(workshop, name)

    (workshop.folder / f"{reader}.stream.yaml").unlink()

    def correct_again() -> None:
        declare_copy(workshop, name, sql="SELECT id, lower(word) AS word FROM rows")
        raise OSError("it fails here")

    with pytest.raises(OSError, match="fails here"):
        refresh(workshop, name, reached=at_step(CrashPoint.BUILT, correct_again))
    with pytest.raises(UnpublishableError, match="was begun with another declaration"):
        refresh(workshop, name)


def _generation(workshop: Workshop, name: str) -> int | None:
    generation = find_generation(workshop.ledger, name)
    return None if generation is None else generation.generation
