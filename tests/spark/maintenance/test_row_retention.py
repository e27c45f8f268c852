"""Old rows leave tables beside streams that read and write them: no row is lost on the way, doubled or brought back."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.fixtures import upkeep
from tests.fixtures.backfills import ids_by_duckdb, search_gaps
from tests.fixtures.workshop import Workshop
from tests.spark.maintenance.test_maintenance import BY_SPARK, expire_like_anybody, ids, run_stream, step, unneeded

from sluice.backfill.intervals import Interval
from sluice.backfill.observe_backfill import observe_backfill, plan_with_followers
from sluice.backfill.read_bounds import TableBound
from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.maintenance_runs import MaintenanceObservation, MaintenanceStep, StepOutcome
from sluice.maintenance import row_retention
from sluice.refresh.observe_refresh import observe_refresh
from sluice.sources.iceberg_positions import history_of
from sluice.tables.stored_files import StoredFolder

TODAY = datetime.now(UTC).replace(hour=12, minute=0, second=0, microsecond=0)
DAY = timedelta(days=1)
KEPT: Mapping[str, Any] = {"retention": {"column": "at", "older_than": "90 days"}, "compaction": None}
NO_EXPIRY: Mapping[str, Any] = {"expiry": None}
maintain = partial(upkeep.maintain, agrees=True)
"""Maintain a table with the consent of a person."""
EXPIRE_ALL: Mapping[str, Any] = {"expiry": {"older_than": "1 millisecond", "retain_last": 1}}

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Parquet writer option:UserWarning"),
]
"""pyspark fetches the rows of `collect` through a socket that it leaves to the garbage collector. pyiceberg, which
appends rows here, writes no bloom filters."""


@pytest.fixture(autouse=True)
def without_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that arrive now are old enough."""
    monkeypatch.setattr(row_retention, "ARRIVAL_GRACE", timedelta(days=-1))


def declare(workshop: Workshop, table: str, maintenance: Mapping[str, Any], **parts: Any) -> str:
    """Declare a table that is partitioned by day; its name."""
    return workshop.declare_table(
        table,
        {"id": "long", "at": "timestamptz"},
        partitioning=[{"column": "at", "transform": "day"}],
        maintenance=dict(maintenance),
        **parts,
    )


def copying(workshop: Workshop, source: str, target: str, **parts: Any) -> str:
    """A stream that copies a table into another one; its name."""
    stream = f"s{workshop.namespace}"
    workshop.declare_stream(
        stream,
        sql="SELECT id, at FROM records",
        inputs={"records": {"stream": {"iceberg": {"table": source, "on_delete": "skip", "on_overwrite": "skip"}}}},
        outputs={"copies": {"iceberg": {"table": target, **parts.pop("output", {})}}},
        **parts,
    )
    return stream


def append(workshop: Workshop, table: str, ages: Mapping[int, int]) -> None:
    """Append a row for each id, as many days old."""
    workshop.append(table, [{"id": number, "at": TODAY - days * DAY} for number, days in ages.items()])


def removed(run: MaintenanceObservation) -> tuple[StepOutcome, int]:
    """What became of old rows in a run, and how many went."""
    done = step(run, MaintenanceStep.REMOVE_OLD_ROWS)
    return done.outcome, done.result.get("removed_rows_count", 0)


def stored_ids(workshop: Workshop, table: str) -> list[int]:
    """The ids in all Parquet files below a table's folder, whatever refers to them."""
    opened = workshop.table(table)
    folder = StoredFolder.at(opened.io, opened.location())
    places = [file.place for file in folder.below() if file.name.endswith(".parquet")]
    read = [pq.read_table(f"{folder.root}/{place}", filesystem=folder.files, columns=["id"]) for place in places]
    return sorted(row["id"] for rows in read for row in rows.to_pylist())


def test_a_reader_passes_the_removal_and_misses_and_repeats_nothing(workshop: Workshop) -> None:
    source, target = declare(workshop, "source", {**KEPT, **NO_EXPIRY}), declare(workshop, "target", NO_EXPIRY)
    stream = copying(workshop, source, target)
    append(workshop, source, {1: 120, 2: 100, 3: 1})
    run_stream(workshop, stream)
    append(workshop, source, {4: 110, 5: 1})

    assert removed(maintain(workshop, source, open_session=unneeded)) == (StepOutcome.DONE, 2)
    assert ids(workshop, source) == [3, 4, 5]

    late = workshop.run(stream, is_recorded=True)
    assert [batch.skipped_input for batch in late.batches] == [{}] * len(late.batches)
    assert ids(workshop, target) == [1, 2, 3, 4, 5]
    assert removed(maintain(workshop, source, open_session=unneeded)) == (StepOutcome.DONE, 1)
    append(workshop, source, {6: 2})
    last = workshop.run(stream, is_recorded=True)
    assert all(batch.skipped_input == {} for batch in last.batches)
    assert ids(workshop, target) == [1, 2, 3, 4, 5, 6]
    assert ids(workshop, source) == [3, 5, 6]


@pytest.mark.full  # every run has the rule (`unit/maintenance/test_row_retention.py`)
def test_an_idle_reader_lets_the_last_rows_go_too(workshop: Workshop) -> None:
    source, target = declare(workshop, "source", {**KEPT, **NO_EXPIRY}), declare(workshop, "target", NO_EXPIRY)
    stream = copying(workshop, source, target)
    append(workshop, source, {1: 120, 2: 95})
    run_stream(workshop, stream)

    assert removed(maintain(workshop, source, open_session=unneeded)) == (StepOutcome.DONE, 2)
    workshop.run(stream, is_recorded=True)
    append(workshop, source, {3: 1})
    workshop.run(stream, is_recorded=True)
    assert (ids(workshop, source), ids(workshop, target)) == ([3], [1, 2, 3])


@pytest.mark.full  # every run: a paused reader and expiry (`test_maintenance.py`)
def test_the_files_go_with_the_snapshots_and_not_before_a_slow_reader(workshop: Workshop) -> None:
    source, target = declare(workshop, "source", {**KEPT, **EXPIRE_ALL}), declare(workshop, "target", NO_EXPIRY)
    stream = copying(workshop, source, target)
    append(workshop, source, {1: 120})
    run_stream(workshop, stream)
    append(workshop, source, {2: 110, 3: 1})

    first = maintain(workshop, source)
    assert removed(first) == (StepOutcome.DONE, 1)
    assert stored_ids(workshop, source) == [1, 2, 3], "the reader stands at the first snapshot"
    run_stream(workshop, stream)
    assert ids(workshop, target) == [1, 2, 3]

    assert removed(maintain(workshop, source)) == (StepOutcome.DONE, 1)
    append(workshop, source, {4: 1})
    run_stream(workshop, stream)
    maintain(workshop, source)
    assert stored_ids(workshop, source) == [3, 4]
    run_stream(workshop, stream)
    assert ids(workshop, target) == [1, 2, 3, 4]


@pytest.mark.full  # every run has the rule (`unit/maintenance/test_row_retention.py`)
def test_what_spark_has_rewritten_waits_for_the_reader_of_its_newest_rows(workshop: Workshop) -> None:
    """A rewritten file has rows of several snapshots, and some of them are not read."""
    policy = {**KEPT, **NO_EXPIRY, "compaction": {"target_file_bytes": "64MiB", "min_input_files": 5}}
    source = declare(workshop, "source", {**policy, "retention": None}, properties=BY_SPARK)
    target = declare(workshop, "target", NO_EXPIRY)
    stream = copying(workshop, source, target)
    append(workshop, source, {1: 120})
    run_stream(workshop, stream)
    for number in range(2, 8):
        append(workshop, source, {number: 120})
    rewritten = step(maintain(workshop, source), MaintenanceStep.REWRITE_DATA_FILES)
    assert (rewritten.outcome, rewritten.result["added_data_files_count"]) == (StepOutcome.DONE, 1)
    declare(workshop, "source", policy, properties=BY_SPARK)

    assert removed(maintain(workshop, source, open_session=unneeded)) == (StepOutcome.SKIPPED, 0)
    run_stream(workshop, stream)
    assert ids(workshop, target) == list(range(1, 8))
    assert removed(maintain(workshop, source, open_session=unneeded)) == (StepOutcome.DONE, 7)
    run_stream(workshop, stream)
    assert (ids(workshop, source), ids(workshop, target)) == ([], list(range(1, 8)))


@pytest.mark.full  # every run: a batch that meets its mark (`test_delivery.py`)
@pytest.mark.parametrize("expires", [False, True])
def test_the_mark_of_a_writer_stays_and_a_batch_is_not_repeated(workshop: Workshop, expires: bool) -> None:
    source, target = declare(workshop, "source", NO_EXPIRY), declare(workshop, "target", {**KEPT, **NO_EXPIRY})
    stream = copying(workshop, source, target)
    append(workshop, source, {1: 120, 2: 1})
    run_stream(workshop, stream)
    append(workshop, source, {3: 100})
    run_stream(workshop, stream)
    workshop.forget_last_commit(stream)

    assert removed(maintain(workshop, target, open_session=unneeded)) == (StepOutcome.DONE, 2)
    if expires:
        expire_like_anybody(workshop, target)
    run_stream(workshop, stream)
    assert ids(workshop, target) == [2], "the batch is known by its mark"
    append(workshop, source, {4: 0})
    run_stream(workshop, stream)
    assert ids(workshop, target) == [2, 4]


@pytest.mark.full  # every run: a writer that appends
@pytest.mark.parametrize("mode", ["copy-on-write", "merge-on-read"])
def test_a_merged_table_brings_nothing_back(workshop: Workshop, mode: str) -> None:
    source = declare(workshop, "source", NO_EXPIRY)
    target = declare(workshop, "target", {**KEPT, **NO_EXPIRY}, properties={"write.merge.mode": mode})
    output = {"mode": "merge", "keys": ["id"], "ordering_column": "at"}
    stream = copying(workshop, source, target, output=output)
    append(workshop, source, {1: 120, 2: 120, 3: 120, 4: 1})
    run_stream(workshop, stream)
    append(workshop, source, {1: 2})
    run_stream(workshop, stream)

    assert removed(maintain(workshop, target, open_session=unneeded))[0] is StepOutcome.DONE
    assert ids(workshop, target) == [1, 4]
    append(workshop, source, {2: 0, 4: 0})
    run_stream(workshop, stream)
    assert ids(workshop, target) == ids_by_duckdb(workshop) == [1, 2, 4]
    assert {row["at"].date() for row in workshop.rows(target)} == {(TODAY - days * DAY).date() for days in (0, 2)}


@pytest.mark.full  # every run: `test_source_bounds.py`, `test_interval_gaps.py`, `test_refresh_plan.py`
def test_a_backfill_a_refresh_and_a_search_for_gaps_know_what_is_gone(workshop: Workshop) -> None:
    source, target = declare(workshop, "source", {**KEPT, **NO_EXPIRY}), declare(workshop, "target", NO_EXPIRY)
    stream = copying(workshop, source, target, backfill={"column": "at", "reads": {"records": "at"}})
    append(workshop, source, {1: 120, 2: 60, 3: 2})
    workshop.run(stream, is_recorded=True)
    assert search_gaps(workshop, stream).gaps == ()

    assert removed(maintain(workshop, source, open_session=unneeded)) == (StepOutcome.DONE, 1)

    def seen_of(day: datetime) -> TableBound:
        start = day.replace(hour=0)
        declarations = load_declarations(workshop.folder)
        seen, _ = observe_backfill(
            workshop.catalog,
            workshop.ledger,
            declarations,
            declarations.stream(stream),
            Interval(start=start, end=start + DAY),
            settings=workshop.settings,
        )
        (bound,) = seen.sources
        assert isinstance(bound, TableBound)
        return bound

    gone = seen_of(TODAY - 120 * DAY)
    assert gone.is_gone
    assert f"of {source}, rows whose at is before" in gone.problem
    assert seen_of(TODAY - 60 * DAY).problem == ""
    report = search_gaps(workshop, stream)
    assert (report.gaps, report.compared) == ((), 2), "the target still has the old row, which is not compared"
    (read,) = observe_refresh(
        workshop.catalog,
        workshop.ledger,
        load_declarations(workshop.folder),
        workshop.stream(stream),
        workshop.settings,
    ).inputs
    assert read.problem.startswith(f"of {source}, rows whose at is before")


@pytest.mark.full  # every run has the rule (`test_interval_gaps.py`)
def test_a_search_for_gaps_does_not_ask_for_what_the_target_has_removed(workshop: Workshop) -> None:
    source, target = declare(workshop, "source", NO_EXPIRY), declare(workshop, "target", {**KEPT, **NO_EXPIRY})
    stream = copying(workshop, source, target, backfill={"column": "at", "reads": {"records": "at"}})
    append(workshop, source, {1: 120, 2: 60, 3: 2})
    workshop.run(stream, is_recorded=True)
    assert removed(maintain(workshop, target, open_session=unneeded)) == (StepOutcome.DONE, 1)
    assert search_gaps(workshop, stream).gaps == ()
    assert next(history_of(workshop.table(target))).operation == "delete"


@pytest.mark.full  # every run has the rule (`test_shortened_lookups.py`)
def test_what_is_looked_up_and_gone_is_a_loss_that_a_backfill_does_not_repeat(workshop: Workshop) -> None:
    """The rows in the target were joined with what the other table had then."""
    source, target = declare(workshop, "source", NO_EXPIRY), declare(workshop, "target", NO_EXPIRY)
    places = declare(workshop, "places", {**KEPT, **NO_EXPIRY})
    stream = f"s{workshop.namespace}"
    workshop.declare_stream(
        stream,
        sql="SELECT r.id, r.at FROM records r JOIN places p ON r.id = p.id",
        inputs={
            "records": {"stream": {"iceberg": {"table": source}}},
            "places": {"static": {"iceberg": {"table": places}}},
        },
        outputs={"copies": {"iceberg": {"table": target}}},
        backfill={"column": "at", "reads": {"records": "at"}},
    )
    for table in (places, source):
        append(workshop, table, {1: 120, 2: 60, 3: 2})
    workshop.run(stream, is_recorded=True)
    assert search_gaps(workshop, stream).compared == 3
    assert removed(maintain(workshop, places, open_session=unneeded)) == (StepOutcome.DONE, 1)

    declarations = load_declarations(workshop.folder)
    plans = [
        plan_with_followers(
            workshop.catalog,
            workshop.ledger,
            declarations,
            declarations.stream(stream),
            Interval(start=(TODAY - days * DAY).replace(hour=0), end=(TODAY - (days - 1) * DAY).replace(hour=0)),
            settings=workshop.settings,
        )
        for days in (120, 60)
    ]
    assert [[str(one.reason) for one in plan.refusals] for plan in plans] == [["source_gone"], []]
    assert any(f"of {places} (input places), rows whose at is before" in one for one in plans[1].sentences())
    report = search_gaps(workshop, stream)
    assert (report.gaps, report.compared) == ((), 2), "what would lack its match is not compared"
    seen = observe_refresh(workshop.catalog, workshop.ledger, declarations, workshop.stream(stream), workshop.settings)
    assert [one.table for one in seen.lookups] == [places]
