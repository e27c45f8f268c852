"""Intervals of the past are computed again and replaced, beside a stream that goes on."""

from __future__ import annotations

import re

import pytest
from tests.fixtures.backfills import (
    COLUMNS,
    COUNT_DAYS,
    DAY_5,
    DAY_8,
    DAYS,
    at_step,
    backfill,
    declare_read_stream,
    delete_days,
    expected,
    ids_by_duckdb,
    marks,
    row,
    rows_of_days,
    staging_tables,
)
from tests.fixtures.crash_points import IN_A_BACKFILL
from tests.fixtures.drill import sampled
from tests.fixtures.replays import discard
from tests.fixtures.workshop import Workshop

from sluice.backfill.intervals import parse_interval
from sluice.demo.lakehouse_copy import SEEN, copy_lakehouse
from sluice.errors import DeliveryError, LedgerError, UnpublishableError, VerificationError
from sluice.ledger.backfill_attempts import BackfillState, recent_attempts
from sluice.ledger.locks import LockedInterval, PublicationLocks, interval_lock
from sluice.publication.crash_points import CrashPoint

DAY_2, DAY_3 = "2013-01-02", "2013-01-03"

CHANGED_AT = (CrashPoint.PLANNED, CrashPoint.CHECKED)
"""A sample of the steps at which somebody else commits meanwhile. `make drill` takes every one."""

BEFORE_PUBLISHED = IN_A_BACKFILL[: IN_A_BACKFILL.index(CrashPoint.PUBLISHED)]


@pytest.fixture
def stream(workshop: Workshop) -> str:
    """A stream that has read eight days in two batches, and rejected two rows."""
    return declare_read_stream(workshop)


@pytest.mark.full  # every run: the demo deletes one
def test_deleted_days_come_back_and_a_second_run_changes_nothing(workshop: Workshop, stream: str) -> None:
    before, quarantined = marks(workshop, "target"), workshop.rows(f"quarantine.{stream}")
    delete_days(workshop, "target")

    result = backfill(workshop, stream)

    assert result.state is BackfillState.PUBLISHED
    assert re.fullmatch(rf"{stream}/backfill/20130105T0000-20130108T0000/[0-9a-f]{{32}}/1", result.key)
    assert workshop.rows("target") == expected()
    assert dict(result.rows) == {
        "read": 26,
        "published": 9,
        "outside": 15,
        "without_time": 0,
        "moved": 0,
        "quarantined": 2,
        "duplicate": 0,
        "late": 0,
        "replaced": 0,
        "kept": 0,
        "rewritten": 0,
        "staged": 9,
        "resolved": 0,
    }
    table = workshop.table("target")
    summary = table.current_snapshot().summary  # type: ignore[union-attr]
    assert summary is not None
    assert (summary.operation.value, summary["sluice.publication-key"]) == ("overwrite", result.key)
    assert marks(workshop, "target") == before
    assert workshop.rows(f"quarantine.{stream}") == quarantined
    assert staging_tables(workshop, stream) == []

    again = backfill(workshop, stream)

    assert (again.state, again.snapshot_id) == (BackfillState.UNCHANGED, None)
    assert workshop.table("target").metadata.current_snapshot_id == table.metadata.current_snapshot_id
    states = [attempt.state for attempt in recent_attempts(workshop.ledger, stream, limit=10)]
    assert states == [BackfillState.UNCHANGED, BackfillState.PUBLISHED]


def test_corrupted_days_inside_files_are_replaced_and_the_others_stay(workshop: Workshop, stream: str) -> None:
    """The month is one partition, and each of its files holds days of the interval and others. A batch of the stream
    that comes right before the commit is neither lost nor doubled."""
    workshop.append("target", [row(7, day=6, word="forged"), row(8, day=2, word="forged")])
    before, head = workshop.rows("target"), workshop.table("target").metadata.current_snapshot_id
    with pytest.raises(UnpublishableError, match="holds 10 rows, and 9 would take their place") as refused:
        backfill(workshop, stream)
    assert "`--allow-fewer`" in (refused.value.next_step or "")
    assert (workshop.rows("target"), workshop.table("target").metadata.current_snapshot_id) == (before, head)
    assert staging_tables(workshop, stream) == []

    def read_more() -> None:
        workshop.append("source", [row(700, day=6), row(701, day=1)])
        workshop.run(stream)

    result = backfill(workshop, stream, allows_fewer=True, reached=at_step(CrashPoint.CHECKED, read_more))

    assert [one["id"] for one in workshop.rows("target") if one["word"] == "forged"] == [8]
    ids = [one["id"] for one in workshop.rows("target")]
    assert sorted(ids) == sorted([8, 700, 701, *(one["id"] for one in expected())])
    states = [attempt.state for attempt in recent_attempts(workshop.ledger, stream, limit=10)]
    assert states == [BackfillState.PUBLISHED, BackfillState.FAILED], "what the stream appends changes nothing"
    assert (result.rows["replaced"], result.rows["published"], result.rows["rewritten"]) == (10, 9, 14)
    assert result.rows["kept"] == 4


@pytest.mark.full  # every run resolves what it replays (`test_replays.py`)
def test_what_was_rejected_is_resolved_once_all_of_it_is_published(workshop: Workshop, stream: str) -> None:
    """Rows of the days 2 and 6 were rejected; which of them a record becomes is not known."""
    path = workshop.folder / f"{stream}.py"
    rejecting = path.read_text()
    path.write_text(rejecting.replace("word <> 'bad'", "true").replace("word = 'bad'", "false"))

    assert backfill(workshop, stream).rows["resolved"] == 0
    assert open_places(workshop, stream) == ['{"id":900}', '{"id":901}']

    def fail() -> None:
        raise OSError("it fails here")

    with pytest.raises(OSError, match="fails here"):
        backfill(workshop, stream, start=DAY_2, end=DAY_3, reached=at_step(CrashPoint.PUBLISHED, fail))
    assert (len(ids_by_duckdb(workshop)), len(open_places(workshop, stream))) == (26, 2)
    again = backfill(workshop, stream, start=DAY_2, end=DAY_3)
    assert (again.state, again.rows["resolved"]) == (BackfillState.UNCHANGED, 2)
    assert open_places(workshop, stream) == []
    assert {row["resolved_by"] for row in workshop.rows(f"quarantine.{stream}")} == {again.key}
    assert backfill(workshop, stream, start=DAY_2, end=DAY_3).rows["resolved"] == 0

    path.write_text(rejecting)
    assert backfill(workshop, stream, start=DAY_2, end=DAY_3, allows_fewer=True).rows["quarantined"] == 2
    assert open_places(workshop, stream) == ['{"id":900}', '{"id":901}'], "what is rejected again is open again"
    discard(workshop, '{"id":900}')
    backfill(workshop, stream, start=DAY_2, end=DAY_3)
    assert open_places(workshop, stream) == ['{"id":901}']


def open_places(workshop: Workshop, stream: str) -> list[str]:
    """The positions of the open rows of a quarantine, read by an engine that wrote none of them."""
    name = f"quarantine.{stream}"
    with copy_lakehouse(workshop.settings, tables=[name]) as database:
        query = f"SELECT position FROM {SEEN}.{name} WHERE resolved_at IS NULL ORDER BY position"  # noqa: S608  # our own name
        return [str(found[0]) for found in database.execute(query).fetchall()]


@pytest.mark.full  # every run has one beside corrupted days
@pytest.mark.parametrize("step", sampled(BEFORE_PUBLISHED, CHANGED_AT[1:], full=CHANGED_AT), ids=str)
def test_a_batch_of_the_stream_meanwhile_is_neither_lost_nor_doubled(
    step: CrashPoint, workshop: Workshop, stream: str
) -> None:
    delete_days(workshop, "target")

    def go_on() -> None:
        workshop.append("source", [row(700, day=6), row(701, day=1)])
        workshop.run(stream)

    result = backfill(workshop, stream, reached=at_step(step, go_on))

    ids = [one["id"] for one in workshop.rows("target")]
    assert sorted(ids) == sorted([700, 701, *(one["id"] for one in expected())])
    assert result.key.endswith("/1"), "what the stream appends does not make it compute again"
    assert backfill(workshop, stream).state is BackfillState.UNCHANGED


@pytest.mark.full
@pytest.mark.parametrize("step", sampled(BEFORE_PUBLISHED, CHANGED_AT[1:], full=CHANGED_AT), ids=str)
def test_a_foreign_row_in_the_interval_meanwhile_is_replaced_too(
    step: CrashPoint, workshop: Workshop, stream: str
) -> None:
    delete_days(workshop, "target")

    result = backfill(
        workshop,
        stream,
        reached=at_step(step, lambda: workshop.append("target", [row(7, day=6, word="forged")])),
    )

    assert workshop.rows("target") == expected()
    assert result.key.endswith("/2")
    states = [attempt.state for attempt in recent_attempts(workshop.ledger, stream, limit=10)]
    assert states == [BackfillState.PUBLISHED, BackfillState.CHANGED_MEANWHILE]


@pytest.mark.full
def test_a_foreign_row_beside_the_interval_does_not_matter(workshop: Workshop, stream: str) -> None:
    delete_days(workshop, "target")

    def forge() -> None:
        workshop.append("target", [row(7, day=2, word="beside")])

    result = backfill(workshop, stream, reached=at_step(CrashPoint.CHECKED, forge))

    assert result.key.endswith("/1")
    assert sorted(one["id"] for one in workshop.rows("target")) == sorted([7, *(one["id"] for one in expected())])


@pytest.mark.full
def test_a_compaction_meanwhile_is_survived(workshop: Workshop, stream: str) -> None:
    workshop.append("target", [row(7, day=6, word="forged")])
    name = f"{workshop.settings.catalog.name}.system.rewrite_data_files"

    def compact() -> None:
        workshop.spark.sql(
            f"CALL {name}(table => '{workshop.table_name('target')}', options => map('rewrite-all','true'))"
        )

    result = backfill(workshop, stream, reached=at_step(CrashPoint.STAGED, compact), allows_fewer=True)

    assert workshop.rows("target") == expected()
    assert result.key.endswith("/2")


@pytest.mark.full
def test_what_is_newly_rejected_is_quarantined_once(workshop: Workshop, stream: str) -> None:
    text = (workshop.folder / f"{stream}.py").read_text()
    (workshop.folder / f"{stream}.py").write_text(
        text.replace("word <> 'bad'", "word <> 'bad' and id <> 51").replace("word = 'bad'", "word = 'bad' or id = 51")
    )

    first = backfill(workshop, stream, allows_fewer=True)
    second = backfill(workshop, stream)

    assert [one["payload"] for one in workshop.rows(f"quarantine.{stream}")].count("word") == 1
    assert 51 not in [one["id"] for one in workshop.rows("target")]
    assert (first.state, second.state) == (BackfillState.PUBLISHED, BackfillState.UNCHANGED)
    assert (first.rows["quarantined"], first.rows["published"]) == (3, 8)


@pytest.mark.full
def test_a_rejected_row_stays_one_when_it_is_rejected_in_other_words(workshop: Workshop, stream: str) -> None:
    before = workshop.rows(f"quarantine.{stream}")
    text = (workshop.folder / f"{stream}.py").read_text()
    (workshop.folder / f"{stream}.py").write_text(text.replace("the word is bad", "this is no word"))

    result = backfill(workshop, stream)

    assert (result.rows["quarantined"], len(before)) == (2, 2)
    assert workshop.rows(f"quarantine.{stream}") == before


def test_nothing_is_published_that_another_run_works_on_or_that_does_not_add_up_or_is_of_another_stream(
    workshop: Workshop, stream: str
) -> None:
    text = (workshop.folder / f"{stream}.py").read_text()
    (workshop.folder / f"{stream}.py").write_text(text.replace("word <> 'bad'", "word <> 'bad' and id <> 51"))
    head = workshop.table("target").metadata.current_snapshot_id
    interval = parse_interval(DAY_5, DAY_8)
    with (
        interval_lock(workshop.ledger, LockedInterval(stream=stream, start=interval.start, end=interval.end)),
        pytest.raises(LedgerError, match="being backfilled by another run"),
    ):
        backfill(workshop, stream)

    with pytest.raises(VerificationError, match="26 rows were read; 8 published"):
        backfill(workshop, stream)

    (attempt,) = recent_attempts(workshop.ledger, stream, limit=10)
    assert attempt.state is BackfillState.FAILED
    assert staging_tables(workshop, stream) == []
    other = f"o{workshop.namespace}"
    workshop.declare_stream(
        other,
        sql="SELECT * FROM records",
        inputs={"records": {"stream": {"iceberg": {"table": workshop.declare_table("others", COLUMNS)}}}},
        outputs={"copies": {"iceberg": {"table": workshop.table_name("target")}}},
    )
    with pytest.raises(UnpublishableError, match=f"also holds rows of {other}, which a backfill of {stream} would"):
        backfill(workshop, stream)
    assert workshop.table("target").metadata.current_snapshot_id == head


@pytest.mark.full  # every run: `test_backfill_plan.py`
def test_a_reader_that_would_stop_refuses_the_backfill(workshop: Workshop, stream: str) -> None:
    copy = workshop.declare_table("copy", COLUMNS)
    reading = {"table": workshop.table_name("target")}
    outputs = {"copies": {"iceberg": {"table": copy}}}
    reader = f"r{workshop.namespace}"
    workshop.declare_stream(
        reader, sql="SELECT * FROM rows", inputs={"rows": {"stream": {"iceberg": reading}}}, outputs=outputs
    )

    with pytest.raises(UnpublishableError, match=f"{reader} \\(input rows\\) stops at the overwrite"):
        backfill(workshop, stream)

    skipping = {"rows": {"stream": {"iceberg": {**reading, "on_overwrite": "skip"}}}}
    workshop.declare_stream(reader, sql="SELECT * FROM rows", inputs=skipping, outputs=outputs)
    workshop.run(reader)
    delete_days(workshop, "target")
    backfill(workshop, stream)
    assert workshop.rows("target") == expected()


@pytest.mark.full
def test_the_windows_of_a_merged_table_are_replaced_when_they_are_closed(workshop: Workshop) -> None:
    name = f"s{workshop.namespace}"
    source = workshop.declare_table("source", COLUMNS)
    target = workshop.declare_table("target", {"at": "timestamptz", "rows": "long"})
    workshop.declare_stream(
        name,
        python=COUNT_DAYS,
        inputs={
            "records": {
                "stream": {"iceberg": {"table": source}},
                "watermark": {"column": "at", "delay": "6 hours"},
            }
        },
        outputs={"days": {"iceberg": {"table": target, "mode": "merge", "keys": ["at"]}}},
        backfill={"column": "at", "reads": {"records": "at"}},
    )
    for days in (range(1, DAYS), [DAYS]):  # the second run moves the watermark over the windows of the first
        workshop.append("source", [one for one in rows_of_days() if one["at"].day in days])
        workshop.run(name)
    counted = workshop.rows("target")
    assert [one["rows"] for one in counted] == [3] * DAYS

    with pytest.raises(UnpublishableError, match=r"The watermark of .* are complete at 2013-01-09"):
        backfill(workshop, name, start="2013-01-08", end="2013-01-09")
    before = marks(workshop, "target")
    delete_days(workshop, "target", end="2013-01-07")

    result = backfill(workshop, name, start=DAY_5, end="2013-01-07")

    assert workshop.rows("target") == counted
    assert (result.rows["read"], result.rows["published"]) == (6, 2)
    assert marks(workshop, "target") == before


def merged_stream_without_its_days(workshop: Workshop) -> tuple[str, str]:
    """The name of a stream that merged its rows, and its table, from which the days are deleted since."""
    name = f"s{workshop.namespace}"
    source = workshop.declare_table("source", COLUMNS)
    target = workshop.declare_table("target", COLUMNS)
    workshop.declare_stream(
        name,
        sql="SELECT * FROM records",
        inputs={"records": {"stream": {"iceberg": {"table": source}}}},
        outputs={"copies": {"iceberg": {"table": target, "mode": "merge", "keys": ["id", "at"]}}},
        backfill={"column": "at"},
    )
    workshop.append("source", rows_of_days())
    workshop.run(name)
    delete_days(workshop, "target")
    return name, target


@pytest.mark.full
def test_a_merge_of_the_stream_meanwhile_is_never_doubled(workshop: Workshop) -> None:
    """The stream inserts a key that was deleted from the table, and the backfill has staged the same key. It computes
    the interval again, and then a batch has both rows: which of them counts, only the stream knows."""
    name, _ = merged_stream_without_its_days(workshop)

    def go_on() -> None:
        workshop.append("source", [row(60, day=6, word="newer")])
        workshop.run(name)

    with pytest.raises(DeliveryError, match=r'two rows of a batch have the key {"id":60'):
        backfill(workshop, name, reached=at_step(CrashPoint.STAGED, go_on))

    deleted = {one["id"] for one in rows_of_days() if 50 <= one["id"] < 80}
    assert ids_by_duckdb(workshop) == sorted({one["id"] for one in rows_of_days()} - deleted | {60})
    states = [attempt.state for attempt in recent_attempts(workshop.ledger, name, limit=10)]
    assert states == [BackfillState.FAILED, BackfillState.CHANGED_MEANWHILE]


@pytest.mark.full
def test_merges_wait_while_a_changed_interval_is_computed_again(workshop: Workshop) -> None:
    """A stream that merges every few seconds would otherwise change the files of the interval before each commit."""
    name, target = merged_stream_without_its_days(workshop)
    is_free: list[bool] = []

    def forge_once(step: CrashPoint) -> None:
        if step is CrashPoint.COMPUTED:
            with PublicationLocks(ledger=workshop.ledger, longest_wait_seconds=0.2).acquire(target) as held:
                is_free.append(held)
            if len(is_free) == 1:
                workshop.append("target", [row(7, day=6, word="forged")])

    backfill(workshop, name, reached=forge_once)

    assert is_free == [True, False]
    assert workshop.rows("target") == rows_of_days()
