"""Backfills whose inputs change while they are computed: what is published is of the inputs of one plan."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from tests.fixtures.backfilled_files import declare_file_stream, write_lines
from tests.fixtures.backfills import ask_for_day, at_step, backfill, delete_days, ids_by_duckdb, row, rows_of_days
from tests.fixtures.drill import first_of, sampled
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.work import serve, states_of
from tests.fixtures.workshop import Workshop
from tests.spark.backfill.test_backfilled_topics import declare_topic_stream, make_topic, recreate, send, send_bytes

from sluice.backfill import observe_inputs
from sluice.errors import CheckpointError, SluiceError, UnpublishableError, VerificationError
from sluice.ledger.backfill_attempts import BackfillState, recent_attempts
from sluice.ledger.work_values import WorkItem, WorkState
from sluice.publication.crash_points import CrashPoint

IDS = [one["id"] for one in rows_of_days()]
WRITTEN_AGAIN = r"1 file was written again after being read: .*/in/a\.json\."


@pytest.fixture
def topic(workshop: Workshop) -> str:
    """A topic of the test's own."""
    return make_topic(workshop)


@pytest.mark.full  # every run: the two tests with one file below
@pytest.mark.parametrize("step", [CrashPoint.PLANNED, CrashPoint.STAGED])
def test_nothing_of_a_file_that_is_written_again_meanwhile_is_published(
    files: Workshop, folder: Path, step: CrashPoint
) -> None:
    """Also no line that is rejected."""
    rows, stream = rows_of_days(), declare_file_stream(files, {})
    write_lines(file := folder / "a.json", rows)
    files.run(stream)
    files.append("target", [row(7, day=5, word="forged")])
    again = partial(write_lines, file, [*rows[:12], row(100, day=5)], "{never read")

    with pytest.raises(UnpublishableError, match=WRITTEN_AGAIN):
        backfill(files, stream, allows_fewer=True, reached=at_step(step, again))

    assert ids_by_duckdb(files) == sorted([*IDS, 7])
    assert files.rows(f"quarantine.{stream}") == []
    attempts = recent_attempts(files.ledger, stream, limit=5)
    assert [one.state for one in attempts] == [BackfillState.FAILED, BackfillState.CHANGED_MEANWHILE]
    assert "1 file was written again after being read" in (attempts[-1].reason or "")


def test_a_reason_holds_no_value_of_what_was_read_meanwhile(files: Workshop, folder: Path) -> None:
    """Anybody may read it, and the error of a cast quotes the value. Nothing of the new file is published."""
    cast = "SELECT id, CAST(CAST(word AS INT) AS STRING) AS word, at FROM records"
    rows, stream = rows_of_days("1"), declare_file_stream(files, {}, sql=cast)
    write_lines(file := folder / "a.json", rows)
    files.run(stream)
    delete_days(files, "target")
    left = ids_by_duckdb(files)
    again = partial(write_lines, file, [*rows, row(100, day=5, word="secret-4711")])

    with pytest.raises(UnpublishableError, match=WRITTEN_AGAIN):
        backfill(files, stream, reached=at_step(CrashPoint.PLANNED, again))

    first = recent_attempts(files.ledger, stream, limit=5)[-1]
    assert first.state is BackfillState.CHANGED_MEANWHILE
    assert "secret-4711" not in (first.reason or "")
    assert ids_by_duckdb(files) == left


@pytest.mark.full
@pytest.mark.parametrize("malformed", [(), ("{never read",)], ids=["rows", "a line that is rejected"])
def test_nothing_of_days_that_are_computed_together_is_published_either(
    files: Workshop, folder: Path, malformed: tuple[str, ...]
) -> None:
    rows, stream = rows_of_days(), declare_file_stream(files, {}, partitioned_by="day", at_once=3)
    write_lines(file := folder / "a.json", rows)
    files.run(stream)
    delete_days(files, "target")
    left, done = ids_by_duckdb(files), list[CrashPoint]()

    def reached(step: CrashPoint, _item: WorkItem) -> None:
        if step is CrashPoint.PLANNED and not done:
            done.append(step)
            write_lines(file, [{**one, "word": "new"} for one in rows], *malformed)

    items = [ask_for_day(files, stream, day, allows_fewer=True) for day in (5, 6, 7)]
    serve(files, items, reached=reached)

    assert states_of(files, items) == [WorkState.FAILED] * 3
    assert ids_by_duckdb(files) == left
    assert files.rows(f"quarantine.{stream}") == []
    first = recent_attempts(files.ledger, stream, limit=20)[-1]
    assert "1 file was written again after being read" in (first.reason or "")


@pytest.mark.full  # every run has one before the commit
def test_a_file_that_is_written_again_right_after_the_commit_is_the_matter_of_a_later_backfill(
    files: Workshop, folder: Path
) -> None:
    rows, stream = rows_of_days(), declare_file_stream(files, {})
    write_lines(file := folder / "a.json", rows)
    files.run(stream)
    delete_days(files, "target")
    again = partial(write_lines, file, [*rows[:12], row(100, day=5)])

    assert backfill(files, stream, reached=at_step(CrashPoint.CHECKED, again)).state is BackfillState.PUBLISHED

    assert ids_by_duckdb(files) == IDS
    with pytest.raises(UnpublishableError, match=WRITTEN_AGAIN):
        backfill(files, stream)


@pytest.mark.parametrize("what", sampled(["written", "removed"], ["written"], full=["removed"]))
def test_an_interval_gets_what_the_files_hold_at_one_time(files: Workshop, folder: Path, what: str) -> None:
    """Also with `on_changed: ignore`, and at the very size that the file had: it is published once, and whole."""
    rows, stream = rows_of_days(), declare_file_stream(files, {}, on_changed="ignore")
    write_lines(file := folder / "a.json", rows)
    files.run(stream)
    delete_days(files, "target")
    before = len(files.table("target").snapshots())
    act = file.unlink if what == "removed" else partial(write_lines, file, [{**one, "word": "wort"} for one in rows])
    once = at_step(CrashPoint.STAGED, act)

    if what == "removed":
        with pytest.raises(UnpublishableError, match=r"1 are gone: .*/in/a\.json\."):
            backfill(files, stream, reached=once)
        assert len(files.table("target").snapshots()) == before
        return
    result = backfill(files, stream, reached=once)

    assert result.key.endswith("/2")
    assert len(files.table("target").snapshots()) == before + 1
    assert {one["word"] for one in files.rows("target") if 5 <= one["at"].day <= 7} == {"wort"}
    assert ids_by_duckdb(files) == IDS


@pytest.mark.full  # every run has what is said of a file
def test_a_look_that_fails_does_not_hide_why_the_computation_failed(
    files: Workshop, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = declare_file_stream(files, {})
    write_lines(folder / "a.json", rows_of_days())
    files.run(stream)
    delete_days(files, "target")

    def refuse(*_args: object, **_more: object) -> None:
        raise CheckpointError("The folder s3a://bucket/in cannot be listed: 503.")

    def fail() -> None:
        monkeypatch.setattr(observe_inputs, "present_files", refuse)
        raise VerificationError("The sums of the interval do not hold.")

    with pytest.raises(VerificationError, match="sums of the interval"):
        backfill(files, stream, reached=at_step(CrashPoint.STAGED, fail))

    (one,) = recent_attempts(files.ledger, stream, limit=5)
    assert "sums of the interval" in (one.reason or "")


@pytest.mark.full  # every run has a file that is written again meanwhile
def test_nothing_of_a_topic_that_is_created_again_meanwhile_is_published(workshop: Workshop, topic: str) -> None:
    """Its new records lie at the offsets of those that the plan named."""
    stream = declare_topic_stream(workshop, topic, reads={"records": "at"})
    send(workshop, topic, rows_of_days())
    workshop.run(stream)
    delete_days(workshop, "target")
    left = ids_by_duckdb(workshop)

    def again() -> None:
        recreate(workshop, topic)
        send_bytes(workshop, topic, b"{of the new topic", at=rows_of_days()[0]["at"])
        send(workshop, topic, rows_of_days())

    with pytest.raises(UnpublishableError, match="was deleted and created again"):
        backfill(workshop, stream, allows_fewer=True, reached=at_step(CrashPoint.PLANNED, again))

    assert ids_by_duckdb(workshop) == left
    assert workshop.rows(f"quarantine.{stream}") == []


@pytest.mark.full  # every run: `test_continued_streams.py`, without a backfill
@pytest.mark.parametrize("when", first_of("before", "meanwhile"))
def test_a_topic_that_the_stream_follows_is_not_read_for_the_old_one(workshop: Workshop, topic: str, when: str) -> None:
    """With `on_data_loss: count` it has the name and the generation of the old one."""
    stream = declare_topic_stream(workshop, topic, on_data_loss="count", reads={"records": "at"})
    send(workshop, topic, rows_of_days())
    workshop.run(stream)
    delete_days(workshop, "target")
    new = [{**one, "id": one["id"] + 1000, "word": "new"} for one in rows_of_days()]

    def words() -> list[tuple[int, str]]:
        return sorted((one["id"], one["word"]) for one in workshop.rows("target") if 5 <= one["at"].day <= 7)

    def follow() -> None:
        recreate(workshop, topic)
        send(workshop, topic, new)
        workshop.run(stream)

    if when == "meanwhile":
        with suppress(SluiceError):
            backfill(workshop, stream, reached=at_step(CrashPoint.PLANNED, follow))
    else:
        recreate(workshop, topic)
        send(workshop, topic, new)
        with pytest.raises(OSError, match="dies here"):
            workshop.run(stream, reached=dying_at(CrashPoint.STAGED))
        before = words()
        with pytest.raises(UnpublishableError, match="published nothing of the new one yet"):
            backfill(workshop, stream)
        assert words() == before
        workshop.run(stream)

    found = words()
    assert len(found) == len(set(found))
