"""Continuations of which a part was done, and what a ledger has forgotten that is asked for them.

Every test run has continuations that died without Spark (`test_gap_commands.py`), and a whole one with it
(`test_input_gaps.py`).
"""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest
from tests.fixtures.continuations import expire, go_on, plan_of
from tests.fixtures.drill import first_of
from tests.fixtures.faulty_drivers import declare_lost
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop
from tests.spark.delivery.test_unmarked_outputs import declare_direct, feed, forget, repair_of
from tests.spark.runs.test_torn_records import uncommit
from tests.spark.runs.test_torn_staging import declare_outputs, repair
from tests.spark.sources.test_continued_streams import Counting
from tests.spark.sources.test_unpublished_ways_out import cut, ids

from sluice.errors import CheckpointError, UsageError
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.generations import find_generation
from sluice.ledger.next_generation import open_next_generation
from sluice.ledger.run_values import DesiredState
from sluice.maintenance import gap_continuation
from sluice.publication.crash_points import CrashPoint
from sluice.supervision.stream_reset import reset_stream


def dies(*_: Any, **__: Any) -> None:
    """The command dies."""
    raise OSError("the command dies here")


def opens_and_dies(*args: Any, **options: Any) -> None:
    """The command dies behind the transaction that opens the generation."""
    open_next_generation(*args, **options)
    dies()


def start(workshop: Workshop) -> str:
    """A stream with a row; its name."""
    for table in ("source", "first"):
        workshop.declare_table(table, {"id": "long"})
    stream = declare_outputs(workshop, "first")
    workshop.append("source", [{"id": 1}])
    workshop.run(stream, is_recorded=True)
    return stream


@pytest.mark.full
def test_a_continuation_that_died_before_its_generation_can_be_made_in_the_other_way(workshop: Workshop) -> None:
    stream = start(workshop)
    cut(workshop, 2, 3)
    with patch.object(gap_continuation, "open_next_generation", dies), pytest.raises(OSError, match="dies here"):
        go_on(workshop, stream)
    go_on(workshop, stream, leaves_out=True)
    workshop.run(stream, is_recorded=True)
    assert ids(workshop, "first") == [1, 3]


@pytest.mark.full  # every run has it without Spark (`test_gap_commands.py`)
def test_a_folder_with_more_than_a_try_wrote_is_left_alone(workshop: Workshop) -> None:
    stream = start(workshop)
    cut(workshop, 2, 3)
    with patch.object(gap_continuation, "open_next_generation", dies), pytest.raises(OSError, match="dies here"):
        go_on(workshop, stream)
    (workshop.checkpoint(stream).with_name("2") / "commits" / "1").write_text("v1\n{}")
    with pytest.raises(CheckpointError, match="contains commits/1 already"):
        go_on(workshop, stream, leaves_out=True)


@pytest.mark.full  # every run: the second try (`test_gap_commands.py`)
@pytest.mark.parametrize("left_out", ["", "commits/1"])
def test_a_try_that_died_is_no_obstacle_when_the_stream_ran_on(workshop: Workshop, left_out: str) -> None:
    """The sink had a batch that was not committed, which may be left without a gap. left_out: the last file of the try,
    which it died before."""
    stream = declare_direct(workshop)
    feed(workshop, stream, 1, 2)
    workshop.forget_last_commit(stream)
    with patch.object(gap_continuation, "open_next_generation", dies), pytest.raises(OSError, match="dies here"):
        go_on(workshop, stream)
    if left_out:
        (workshop.checkpoint(stream).with_name("2") / left_out).unlink()
    set_desired_state(workshop.ledger, stream, DesiredState.RUNNING)
    feed(workshop, stream, 3, 4)
    cut(workshop, 5, 6)
    go_on(workshop, stream)
    workshop.run(stream, is_recorded=True)
    assert ids(workshop, "target") == [1, 2, 3, 4, 5, 6]


@pytest.mark.full  # every run has a try that died (`test_gap_commands.py`)
def test_a_stream_is_reset_behind_a_continuation_that_died_by_the_ways_that_are_named(workshop: Workshop) -> None:
    stream = start(workshop)
    cut(workshop, 2, 3)
    with patch.object(gap_continuation, "open_next_generation", dies), pytest.raises(OSError, match="dies here"):
        go_on(workshop, stream)
    set_desired_state(workshop.ledger, stream, DesiredState.STOPPED)
    with pytest.raises(CheckpointError, match="already") as refused:
        reset_stream(workshop.ledger, workshop.stream(stream), workshop.settings, asked_by="a test")
    assert f"`sluice stream continue {stream}` completes it" in (refused.value.next_step or "")
    go_on(workshop, stream)
    set_desired_state(workshop.ledger, stream, DesiredState.STOPPED)
    reset_stream(workshop.ledger, workshop.stream(stream), workshop.settings, asked_by="a test")


@pytest.mark.full
def test_another_meaning_of_the_state_is_refused_behind_a_continuation_that_died(workshop: Workshop) -> None:
    """What the checkpoint depends on is known as soon as the generation is."""
    counting = Counting(workshop)
    counting.append([(0, 0), (1, 1), (2, 25)])
    counting.run(counting.cut)
    counting.append([(3, 26)], [(4, 31)])
    expire(workshop, counting.source)
    with (
        patch.object(gap_continuation, "open_next_generation", opens_and_dies),
        pytest.raises(OSError, match="dies here"),
    ):
        go_on(workshop, counting.cut)
    set_desired_state(workshop.ledger, counting.cut, DesiredState.RUNNING)
    known = find_generation(workshop.ledger, counting.cut)
    assert known is not None
    assert known.fingerprint
    assert known.identities
    module = workshop.folder / f"{counting.cut}.py"
    module.write_text(module.read_text().replace('fn.count("*")', 'fn.count(fn.when(fn.col("id") >= 100, 1))'))
    with pytest.raises(CheckpointError, match="state"):
        workshop.run(counting.cut)


@pytest.mark.full
def test_a_ledger_of_before_a_continuation_is_written_back_before_another_one(workshop: Workshop) -> None:
    stream = start(workshop)
    cut(workshop, 2, 3)
    go_on(workshop, stream)
    workshop.run(stream, is_recorded=True)
    forget(workshop, stream, "generation > 1")
    cut(workshop, 4, 5)
    with pytest.raises(UsageError, match="shows generation 2") as refused:
        go_on(workshop, stream)
    assert f"`sluice stream repair {stream} --dry-run`" in (refused.value.next_step or "")
    repair(workshop, stream)
    go_on(workshop, stream)
    workshop.run(stream, is_recorded=True)
    assert ids(workshop, "first") == [1, 2, 3, 4, 5]


def die_with_state(workshop: Workshop, counting: Counting, at: CrashPoint) -> None:
    """The driver dies in batch 2, which is not committed in the checkpoint."""
    counting.append([(0, 0), (1, 1), (2, 25)])
    counting.run(counting.cut)
    counting.append([(3, 26), (4, 61)])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(counting.cut, is_recorded=True, reached=dying_at(at))
    declare_lost(workshop, counting.cut)
    checkpoint = workshop.checkpoint(counting.cut)
    for file in (checkpoint / "offsets").glob("*3*"):
        file.unlink()  # it may have planned one more
    if (checkpoint / "commits" / "2").exists():
        uncommit(workshop, counting.cut, 2)


@pytest.mark.full
def test_a_stream_with_state_is_named_the_way_that_leads_out(workshop: Workshop) -> None:
    """One of two tables shows the batch."""
    counting = Counting(workshop)
    die_with_state(workshop, counting, CrashPoint.FIRST_OUTPUT_PUBLISHED)
    counting.append([(5, 62)], [(6, 63)])
    expire(workshop, counting.source)
    with pytest.raises(UsageError, match="does not") as refused:
        plan_of(workshop, counting.cut)
    assert (refused.value.next_step or "").startswith(f"`sluice stream reset {counting.cut}`")


@pytest.mark.full
def test_a_ledger_that_was_written_back_still_knows_that_a_stream_keeps_state(workshop: Workshop) -> None:
    counting = Counting(workshop)
    die_with_state(workshop, counting, CrashPoint.PUBLISHED)
    forget(workshop, counting.cut, "true")
    repair(workshop, counting.cut)
    counting.append([(5, 27), (6, 62)], [(7, 63)])
    expire(workshop, counting.source)
    with pytest.raises(UsageError, match="keeps state"):
        go_on(workshop, counting.cut)


@pytest.mark.full  # every run has a try that died (`test_gap_commands.py`)
@pytest.mark.parametrize("path", first_of("metadata", "offsets/0", "commits/0"))
def test_a_file_that_cannot_be_read_is_repaired_before_a_continuation(workshop: Workshop, path: str) -> None:
    stream = start(workshop)
    cut(workshop, 2, 3)
    (workshop.checkpoint(stream) / path).write_text("")
    with pytest.raises(CheckpointError, match=rf"{path} of the checkpoint .* cannot be read") as refused:
        plan_of(workshop, stream)
    assert f"`sluice stream repair {stream} --dry-run`" in (refused.value.next_step or "")
    repair(workshop, stream)
    go_on(workshop, stream)
    workshop.run(stream, is_recorded=True)
    assert ids(workshop, "first") == [1, 2, 3]


@pytest.mark.full  # every run: what cannot be read without a reset (`test_repair_commands.py`)
def test_a_first_plan_behind_a_reset_that_cannot_be_read_is_refused(workshop: Workshop) -> None:
    """The driver ended in its batch, and the table shows batches of the generation before alone."""
    stream = declare_direct(workshop)
    feed(workshop, stream, 1)
    set_desired_state(workshop.ledger, stream, DesiredState.STOPPED)
    reset_stream(workshop.ledger, workshop.stream(stream), workshop.settings, asked_by="a test")
    set_desired_state(workshop.ledger, stream, DesiredState.RUNNING)
    (workshop.folder / f"{stream}.sql").write_text("SELECT * FROM r WHERE raise_error('the executor dies') IS NULL")
    with pytest.raises(Exception, match="the executor dies"):
        workshop.run(stream, is_recorded=True)
    (workshop.checkpoint(stream) / "offsets" / "0").write_text("")
    for leaves_out in (False, True):
        with pytest.raises(CheckpointError, match=r"The newest plan in offsets .* cannot be read") as refused:
            plan_of(workshop, stream, leaves_out=leaves_out)
        assert f"`sluice stream repair {stream} --dry-run`" in (refused.value.next_step or "")
    assert f"`sluice stream reset {stream} --dry-run`" in repair_of(workshop, stream)
