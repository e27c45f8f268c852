"""Outputs without a mark, beside a ledger or a checkpoint of another time than theirs."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from sqlalchemy import text
from tests.fixtures.continuations import expire, go_on, plan_of
from tests.fixtures.drill import first_of
from tests.fixtures.workshop import Workshop
from tests.spark.delivery.test_unmarked_outputs import declare_direct, feed, forget, found, repair_of, with_files
from tests.spark.runs.test_torn_staging import declare_outputs, repair
from tests.spark.sources.test_interrupted_continuations import dies
from tests.spark.sources.test_unpublished_ways_out import cut, ids

from sluice.errors import CheckpointError, DivergedError, RolledBackError
from sluice.ledger.batches import recent_batches
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.generations import find_generation
from sluice.ledger.run_values import DesiredState
from sluice.publication import direct_history
from sluice.publication.direct_history import EPOCH, QUERY_ID
from sluice.stored_keys import GENERATION, OUTPUT, RUN_ID, STREAM, TOKEN
from sluice.supervision.stream_reset import reset_stream
from sluice_spark.delivery import direct_delivery
from sluice_spark.run import run_checkpoint
from sluice_spark.run.run_start import RunStart


def reset(workshop: Workshop, stream: str) -> None:
    """Read the inputs again, in another generation."""
    set_desired_state(workshop.ledger, stream, DesiredState.STOPPED)
    reset_stream(workshop.ledger, workshop.stream(stream), workshop.settings, asked_by="a test")
    set_desired_state(workshop.ledger, stream, DesiredState.RUNNING)


@pytest.mark.full  # every run: `test_unmarked_outputs.py`
@pytest.mark.parametrize("kind", ["files", "delta", "console"])
def test_a_ledger_of_before_a_reset_is_written_back(workshop: Workshop, tmp_path: Path, kind: str) -> None:
    outputs: dict[str, Any] = {
        "files": {},
        "delta": {"delta": {"connection": "lake", "path": "lines"}},
        "console": {"console": {}},
    }
    files, stream = with_files(workshop, tmp_path / "lake", **outputs[kind])
    feed(files, stream, 1)
    reset(files, stream)
    feed(files, stream, 2, 3)
    forget(files, stream, "generation > 1")

    with pytest.raises(DivergedError, match="generation 2 has begun"):
        feed(files, stream, 4)
    repair(files, stream)
    feed(files, stream, 5)

    assert "agree" in repair_of(files, stream)
    if kind != "console":
        assert rows_of(files, tmp_path / "lake", kind) == [1, 1, 2, 3, 4, 5]


def rows_of(workshop: Workshop, lake: Path, kind: str) -> list[int]:
    """What an output holds."""
    if kind == "files":
        return found(lake)
    return sorted(row.id for row in workshop.spark.read.format("delta").load((lake / "lines").as_uri()).collect())


@pytest.mark.full  # every run: an older checkpoint (`test_unmarked_outputs.py`)
@pytest.mark.parametrize("kind", ["files", "direct"])
def test_a_stream_of_an_earlier_life_is_not_taken_for_this_one(workshop: Workshop, tmp_path: Path, kind: str) -> None:
    """Its outputs are there, and neither ledger nor checkpoint. The first batch is planned before the start."""
    if kind == "files":
        workshop, stream = with_files(workshop, tmp_path / "lake")
    else:
        stream = declare_direct(workshop)
    feed(workshop, stream, 1)
    checkpoint = workshop.checkpoint(stream)
    forget(workshop, stream, "true")
    shutil.rmtree(checkpoint)
    cut(workshop, 2, 3)

    for _ in range(2):
        with pytest.raises(DivergedError, match="has delivered none: it, or the ledger, is an older copy"):
            workshop.run(stream, is_recorded=True)
    reset(workshop, stream)
    workshop.run(stream, is_recorded=True)

    assert (found(tmp_path / "lake") if kind == "files" else ids(workshop, "target")) == [1, 1, 2, 3]


@pytest.mark.full
def test_a_continuation_that_an_older_ledger_does_not_know_is_not_done_again(
    workshop: Workshop, tmp_path: Path
) -> None:
    files, stream = with_files(workshop, tmp_path / "lake")
    feed(files, stream, 1)
    cut(files, 2, 3)
    go_on(files, stream)
    files.run(stream, is_recorded=True)
    second = files.checkpoint(stream)
    forget(files, stream, "generation > 1")
    cut(files, 4, 5)
    second.rename(second.with_name("moved"))
    go_on(files, stream)

    with pytest.raises(DivergedError, match=r"shows batch 2:1, and the checkpoint of .* ends with batch 0"):
        files.run(stream, is_recorded=True)
    assert found(tmp_path / "lake") == [1, 2, 3]


@pytest.mark.full  # every run has a first run that dies
@pytest.mark.parametrize("kind", ["staged", "direct"])
def test_the_lost_checkpoint_of_a_continuation_is_not_taken_for_a_new_one(workshop: Workshop, kind: str) -> None:
    if kind == "direct":
        stream, target = declare_direct(workshop), "target"
    else:
        for table in ("source", "first"):
            workshop.declare_table(table, {"id": "long"})
        stream, target = declare_outputs(workshop, "first"), "first"
    feed(workshop, stream, 1, 2)
    cut(workshop, 3, 4)
    go_on(workshop, stream)
    shutil.rmtree(workshop.checkpoint(stream))

    with pytest.raises(CheckpointError, match=r"is registered for query .* and has no metadata"):
        workshop.run(stream, is_recorded=True)
    assert "generation 2 has a query: the checkpoint is lost" in repair_of(workshop, stream)
    assert ids(workshop, target) == [1, 2]


def behind_a_left_driver(workshop: Workshop, stream: str) -> int:
    """Continue a stream whose old driver was suspended within its commit, and then commits; what was visible before."""
    feed(workshop, stream, 1, 2)
    newest = workshop.table("target").current_snapshot()
    assert newest is not None
    assert newest.summary is not None
    entries = newest.summary.additional_properties
    cut(workshop, 3, 4)
    go_on(workshop, stream)
    target = workshop.table("target")
    keys = {one: entries[one] for one in (STREAM, OUTPUT, GENERATION, RUN_ID, TOKEN, QUERY_ID)}
    rows = pa.Table.from_pylist([{"id": 3}], schema=target.schema().as_arrow())
    target.append(rows, snapshot_properties={**keys, EPOCH: "2"})
    return newest.snapshot_id


@pytest.mark.full  # every run has a first run that dies
def test_a_batch_of_a_left_driver_does_not_hide_that_of_a_continuation(workshop: Workshop) -> None:
    stream = declare_direct(workshop)
    before = behind_a_left_driver(workshop, stream)

    with pytest.raises(DivergedError, match=r"got batch 1:2 of .* their rows would be lost"):
        workshop.run(stream, is_recorded=True)
    workshop.table("target").manage_snapshots().rollback_to_snapshot(before).commit()
    workshop.run(stream, is_recorded=True)

    assert ids(workshop, "target") == [1, 2, 3, 4]


@pytest.mark.full
def test_a_batch_of_a_left_driver_that_comes_while_a_continuation_runs_is_noticed(workshop: Workshop) -> None:
    """Spark has committed the batch that the sink has skipped, when it is noticed."""
    stream = declare_direct(workshop)
    behind_a_left_driver(workshop, stream)
    with (
        patch.object(direct_delivery, "require_direct_start", lambda *_, **__: None),
        pytest.raises(DivergedError, match=r"got batch 1:2 of"),
    ):
        workshop.run(stream, is_recorded=True)

    with pytest.raises(DivergedError, match=r"got batch 1:2 of") as refused:
        workshop.run(stream, is_recorded=True)

    assert f"`sluice stream reset {stream} --dry-run`" in (refused.value.next_step or "")
    assert {one.key.generation for one in recent_batches(workshop.ledger, stream, 9)} == {1}


@pytest.mark.parametrize("at", first_of("record_query_id", "mark_as_begun"))
def test_a_first_run_that_dies_before_its_query_is_known_begins_again(workshop: Workshop, at: str) -> None:
    stream = declare_direct(workshop)
    cut(workshop, 1, 2)
    with patch.object(run_checkpoint, at, dies), pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True)

    workshop.run(stream, is_recorded=True)

    assert ids(workshop, "target") == [1, 2]


@pytest.mark.full
@pytest.mark.parametrize("is_written", [False, True])
def test_a_table_that_was_rolled_back_before_all_batches_and_expired_is_refused(
    workshop: Workshop, *, is_written: bool
) -> None:
    stream = declare_direct(workshop)
    workshop.append("target", [{"id": 50}])
    before = workshop.table("target").current_snapshot()
    assert before is not None
    feed(workshop, stream, 1, 2, 3)
    workshop.table("target").manage_snapshots().rollback_to_snapshot(before.snapshot_id).commit()
    if is_written:  # the tag of the stream keeps its newest snapshot listed
        workshop.append("target", [{"id": 51}])
    else:
        remove_tags(workshop)
    expire(workshop, workshop.table_name("target"))

    with pytest.raises(RolledBackError, match="was rolled back"):
        feed(workshop, stream, 4)


@pytest.mark.full  # every run has a first run that dies
def test_a_start_that_is_refused_has_not_begun(workshop: Workshop, tmp_path: Path) -> None:
    """What is planned counts as not delivered."""
    files, stream = with_files(workshop, tmp_path / "lake")
    feed(files, stream, 1)
    cut(files, 2, 3)
    go_on(files, stream)
    with patch.object(RunStart, "require_unbroken_input", dies), pytest.raises(OSError, match="dies here"):
        files.run(stream, is_recorded=True)

    opened = find_generation(files.ledger, stream)

    assert opened is not None
    assert (opened.generation, opened.continues_behind, opened.begun_at) == (2, 0, None)


@pytest.mark.full  # every run has a first run that dies
def test_a_batch_is_not_foreign_because_the_ledger_is_of_before_the_first_start(workshop: Workshop) -> None:
    stream = declare_direct(workshop)
    feed(workshop, stream, 1, 2)
    workshop.forget_last_commit(stream)
    forget(workshop, stream, "batch >= 0", tables=("batches",))
    with workshop.ledger.transaction() as connection:
        unset = "UPDATE generations SET begun_at = NULL, query_id = NULL WHERE stream = :stream"
        connection.execute(text(unset), {"stream": stream})

    feed(workshop, stream, 3)

    assert ids(workshop, "target") == [1, 2, 3]


def remove_tags(workshop: Workshop) -> None:
    """Leave main as the one reference of the target."""
    for name in [name for name in workshop.table("target").refs() if name != "main"]:
        workshop.table("target").manage_snapshots().remove_tag(name).commit()


@pytest.mark.full  # every run has a first run that dies
@pytest.mark.parametrize("way", ["continuation", "two continuations", "reset"])
def test_a_crash_in_the_first_batch_of_a_generation_is_no_riddle(
    workshop: Workshop, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a continuation the sink's snapshots were expired before; behind a reset those of the other generation are
    listed, so that nothing of this one is hidden."""
    monkeypatch.setattr(direct_history, "CLOCKS_APART", timedelta(0))
    stream = declare_direct(workshop)
    feed(workshop, stream, 1, 2)
    if way == "reset":
        expire(workshop, workshop.table_name("target"))
        reset(workshop, stream)
    else:
        remove_tags(workshop)
        workshop.append("target", [{"id": 50}])
        expire(workshop, workshop.table_name("target"))
        cut(workshop, 3, 4)
        go_on(workshop, stream)
    code = workshop.folder / f"{stream}.sql"
    right = code.read_text()
    code.write_text("SELECT * FROM r WHERE raise_error('the executor dies') IS NULL")
    with pytest.raises(Exception, match="the executor dies"):
        workshop.run(stream, is_recorded=True)
    code.write_text(right)
    if way == "two continuations":
        cut(workshop, 5, 6)
        assert "may be missing" not in " ".join(plan_of(workshop, stream, leaves_out=True).sentences())
        return

    workshop.run(stream, is_recorded=True)

    assert ids(workshop, "target") == ([1, 1, 2, 2] if way == "reset" else [1, 2, 3, 4, 50])
