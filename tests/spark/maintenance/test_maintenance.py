"""Tables are kept in order beside their streams: no row is lost, no reader left behind, nothing written twice."""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from pyiceberg.exceptions import CommitFailedException, ValidationException
from pyspark.sql import SparkSession
from tenacity import retry, retry_if_result, stop_after_delay, wait_fixed
from tests.fixtures.drill import first_of
from tests.fixtures.upkeep import maintain
from tests.fixtures.workshop import Workshop

from sluice.errors import LedgerError
from sluice.ledger.batches import record_batch
from sluice.ledger.connection import database_time
from sluice.ledger.locks import maintenance_lock
from sluice.ledger.maintenance_runs import (
    MaintenanceObservation,
    MaintenanceStep,
    StepObservation,
    StepOutcome,
    newest_maintenance,
)
from sluice.tables.inspection import observe_table
from sluice_spark.maintenance import changed_content

COMPACTION: Mapping[str, Any] = {"compaction": {"target_file_bytes": "64MiB", "min_input_files": 5}}
NO_COMPACTION: Mapping[str, Any] = {"compaction": None}
EXPIRE_ALL: Mapping[str, Any] = {"expiry": {"older_than": "1 millisecond", "retain_last": 1}}
NO_EXPIRY: Mapping[str, Any] = {"expiry": None}
BY_SPARK = {"write.parquet.bloom-filter-enabled.column.id": "true"}
"""What only Spark writes again, so that it compacts the table whatever its size."""
PATIENT = {"commit.retry.num-retries": "20"}
"""As a table that a stream writes is declared: a commit is tried again while others come first."""

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.filterwarnings("ignore:Parquet writer option:UserWarning"),
]
"""pyspark fetches the rows of `collect` through a socket that it leaves to the garbage collector. pyiceberg, which
appends rows here, writes no bloom filters."""


def declare(
    workshop: Workshop,
    table: str,
    *,
    properties: Mapping[str, str] | None = None,
    sort_order: Sequence[Mapping[str, str]] = (),
    **maintenance: Any,
) -> str:
    """Declare and create a table with a maintenance policy; its full name."""
    name = workshop.table_name(table)
    columns = [{"name": "id", "type": "long"}, {"name": "word", "type": "string"}]
    declared = {"table": name, "description": table, "owner": "me", "columns": columns, "maintenance": maintenance}
    declared |= {"properties": dict(properties or {}), "sort_order": list(sort_order)}
    (workshop.folder / f"{name}.table.yaml").write_text(yaml.safe_dump(declared))
    workshop.create_tables()
    return name


def append(workshop: Workshop, table: str, first: int, last: int) -> None:
    """Append a row, and with it a file and a snapshot, for every number from `first` up to `last`."""
    for number in range(first, last):
        workshop.append(table, [{"id": number, "word": f"word {number}"}])


def run_stream(workshop: Workshop, stream: str) -> None:
    """Run a stream over what is there, and record its batches as its driver does."""
    for batch in workshop.run(stream).batches:
        record_batch(workshop.ledger, batch)


def expire_like_anybody(workshop: Workshop, table: str) -> None:
    """Expire everything but the newest snapshot, as somebody does who knows of no reader."""
    now = database_time(workshop.ledger)
    statement = (
        "CALL lakehouse.system.expire_snapshots(table => {table}, older_than => TIMESTAMP {now}, retain_last => 1)"
    )
    workshop.spark.sql(statement, table=f"lakehouse.{table}", now=now.isoformat()).collect()


def step(run: MaintenanceObservation, wanted: MaintenanceStep) -> StepObservation:
    """One step of a run."""
    return next(done for done in run.operations if done.step is wanted)


def ids(workshop: Workshop, table: str) -> list[int]:
    """The ids in a table, read without Spark."""
    return [row["id"] for row in workshop.rows(table)]


def unneeded() -> SparkSession:
    """Instead of a session, where none may be opened."""
    raise AssertionError("a Spark session was opened")


@pytest.fixture
def copying(workshop: Workshop) -> tuple[Workshop, str, str, str]:
    """A stream that appends what it reads: the workshop, the stream, its source and its target."""
    stream = f"s{workshop.namespace}"
    source = declare(workshop, "source", **NO_COMPACTION, **EXPIRE_ALL)
    target = declare(workshop, "target", **NO_COMPACTION, **EXPIRE_ALL)
    workshop.declare_stream(
        stream,
        sql="SELECT id, word FROM records",
        inputs={"records": {"stream": {"iceberg": {"table": source}}}},
        outputs={"copies": {"iceberg": {"table": target}}},
    )
    return workshop, stream, source, target


def test_many_small_files_become_one_and_the_rows_stay(workshop: Workshop) -> None:
    table = declare(
        workshop, "rows", properties=BY_SPARK, **COMPACTION, manifest_rewrite={"min_manifests": 2}, **EXPIRE_ALL
    )
    append(workshop, table, 0, 12)
    before = workshop.rows(table)

    run = maintain(workshop, table)

    assert workshop.rows(table) == before
    assert (run.before.files, run.after.files) == (12, 1)
    assert (run.before.rows, run.after.rows) == (12, 12)
    assert (run.before.snapshots, run.after.snapshots) == (12, 2)  # what the two rewrites became
    assert run.after.manifests < run.before.manifests
    compaction = step(run, MaintenanceStep.REWRITE_DATA_FILES)
    assert compaction.outcome is StepOutcome.DONE
    assert compaction.result == {
        "rewritten_data_files_count": 12,
        "added_data_files_count": 1,
        "rewritten_bytes_count": run.before.bytes,
        "failed_data_files_count": 0,
        "removed_delete_files_count": 0,
        "rewrites_verified": 1,
        "rows_hashed": True,
        "planning_ms": compaction.result["planning_ms"],
    }
    assert step(run, MaintenanceStep.EXPIRE_SNAPSHOTS).result["deleted_data_files_count"] == 12
    recorded = newest_maintenance(workshop.ledger, table)
    assert recorded is not None
    assert recorded.operations == run.operations
    assert (recorded.success, recorded.launched_by) == (True, "a test")


@pytest.mark.full  # every run: a z-order (`test_z_order.py`)
def test_rows_of_several_files_are_sorted_over_all_of_them(workshop: Workshop) -> None:
    compaction = {"compaction": {**COMPACTION["compaction"], "strategy": "sort"}, **NO_EXPIRY}
    table = declare(workshop, "rows", properties=BY_SPARK, sort_order=[{"column": "id"}], **compaction)
    for number in reversed(range(6)):
        append(workshop, table, number, number + 1)

    run = maintain(workshop, table)

    assert step(run, MaintenanceStep.REWRITE_DATA_FILES).outcome is StepOutcome.DONE
    stored = workshop.table(table)
    (task,) = stored.scan().plan_files()
    assert task.file.sort_order_id == stored.sort_order().order_id
    with stored.io.new_input(task.file.file_path).open() as file:
        content = pa.BufferReader(file.read())
    assert pq.read_table(content).column("id").to_pylist() == list(range(6))


def test_what_is_in_order_needs_no_spark(workshop: Workshop) -> None:
    table = declare(workshop, "rows", **COMPACTION)
    append(workshop, table, 0, 2)

    run = maintain(workshop, table, open_session=unneeded)

    assert run.success
    assert {done.outcome for done in run.operations} == {StepOutcome.SKIPPED}


def test_a_table_without_a_snapshot_is_left_alone(workshop: Workshop) -> None:
    table = declare(workshop, "rows", **COMPACTION)

    run = maintain(workshop, table, open_session=unneeded)

    assert (run.success, run.before.snapshot, run.after.snapshot) == (True, None, None)


def test_a_paused_reader_goes_on_after_expiry(copying: tuple[Workshop, str, str, str]) -> None:
    workshop, stream, source, target = copying
    append(workshop, source, 0, 3)
    run_stream(workshop, stream)
    append(workshop, source, 3, 5)
    run_stream(workshop, stream)
    append(workshop, source, 5, 12)

    run = maintain(workshop, source)

    assert step(run, MaintenanceStep.EXPIRE_SNAPSHOTS).outcome is StepOutcome.DONE
    assert run.after.snapshots < run.before.snapshots
    assert f"sluice_pin__{stream}__records__position" in workshop.table(source).refs()
    run_stream(workshop, stream)
    append(workshop, source, 12, 14)
    run_stream(workshop, stream)
    assert ids(workshop, target) == list(range(14))


@pytest.mark.full  # every run pins without Spark (`test_position_pins.py`)
def test_the_reader_of_a_stream_that_was_never_maintained_is_pinned_by_the_stream_itself(
    copying: tuple[Workshop, str, str, str],
) -> None:
    workshop, stream, source, target = copying
    append(workshop, source, 0, 4)
    run_stream(workshop, stream)
    workshop.run_supervised(stream)  # nothing new; it pins where it is
    append(workshop, source, 4, 5)

    expire_like_anybody(workshop, source)

    assert f"sluice_pin__{stream}__records__position" in workshop.table(source).refs()
    assert len(workshop.table(source).snapshots()) == 2
    run_stream(workshop, stream)
    assert ids(workshop, target) == list(range(5))


@pytest.mark.full  # every run has the rule (`test_maintenance_plan.py`)
def test_expiry_waits_for_a_reader_that_has_not_started(copying: tuple[Workshop, str, str, str]) -> None:
    workshop, stream, source, target = copying
    append(workshop, source, 0, 6)

    run = maintain(workshop, source)

    expiry = step(run, MaintenanceStep.EXPIRE_SNAPSHOTS)
    assert (expiry.outcome, expiry.reason) == (StepOutcome.SKIPPED, "reader_not_started")
    assert run.success
    run_stream(workshop, stream)
    assert ids(workshop, target) == list(range(6))


@pytest.mark.full  # every run has the rule (`test_maintenance_plan.py`)
def test_expiry_is_refused_while_the_position_of_a_reader_is_unknown(copying: tuple[Workshop, str, str, str]) -> None:
    workshop, stream, source, _ = copying
    append(workshop, source, 0, 6)
    run_stream(workshop, stream)
    append(workshop, source, 6, 9)
    (workshop.checkpoint(stream) / "sources" / "0" / "offsets" / "0").unlink()
    workshop.forget_last_commit(stream)

    run = maintain(workshop, source)

    expiry = step(run, MaintenanceStep.EXPIRE_SNAPSHOTS)
    assert (expiry.outcome, expiry.reason) == (StepOutcome.REFUSED, "reader_unknown")
    assert stream in expiry.explanation
    assert not run.success
    assert run.after.snapshots == run.before.snapshots


@pytest.mark.full  # every run: a batch that meets its mark (`test_delivery.py`)
@pytest.mark.parametrize("expires", ["the platform", "a stranger"])
def test_a_batch_that_was_not_noted_is_known_by_its_mark(copying: tuple[Workshop, str, str, str], expires: str) -> None:
    """The stream is idle on a table that others write: expiry cuts the history short of its newest batch."""
    workshop, stream, source, target = copying
    append(workshop, source, 0, 2)
    run_stream(workshop, stream)
    append(workshop, target, 100, 106)
    workshop.forget_last_commit(stream)

    if expires == "the platform":
        run = maintain(workshop, target)
        assert step(run, MaintenanceStep.EXPIRE_SNAPSHOTS).outcome is StepOutcome.DONE
    else:
        expire_like_anybody(workshop, target)

    run_stream(workshop, stream)
    assert ids(workshop, target) == [0, 1, *range(100, 106)]


@contextmanager
def writer_beside(write: Callable[[int], None], *, pause_seconds: float = 0) -> Iterator[list[int]]:
    """Another writer that works until the block ends; the numbers it has written."""
    stop, written = threading.Event(), list[int]()

    def work() -> None:
        number = 1000
        while not stop.wait(pause_seconds):
            write(number)
            written.append(number)
            number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield written
    finally:
        stop.set()
        thread.join()


def await_more(written: list[int], *, files: int) -> None:
    """Wait until the writer has left so many more files: with fewer there is nothing to compact."""
    wanted = len(written) + files
    patiently = retry(retry=retry_if_result(operator.not_), wait=wait_fixed(0.05), stop=stop_after_delay(60))
    patiently(lambda: len(written) >= wanted)()


@pytest.mark.parametrize("properties", first_of(BY_SPARK, {}), ids=["by Spark", "here"])
def test_a_compaction_beside_a_running_writer_loses_nothing(workshop: Workshop, properties: dict[str, str]) -> None:
    table = declare(workshop, "rows", properties={**PATIENT, **properties}, **COMPACTION, **NO_EXPIRY)
    append(workshop, table, 0, 12)

    with writer_beside(lambda number: append(workshop, table, number, number + 1), pause_seconds=0.2) as written:
        runs = [maintain(workshop, table)]
        await_more(written, files=COMPACTION["compaction"]["min_input_files"])
        runs.append(maintain(workshop, table))

    assert [step(run, MaintenanceStep.REWRITE_DATA_FILES).outcome for run in runs] == [StepOutcome.DONE] * 2
    assert written
    assert ids(workshop, table) == [*range(12), *written]


@pytest.mark.full
def test_a_compaction_gives_way_to_a_writer_that_always_comes_first(workshop: Workshop) -> None:
    """The writer replaces one file after the other, so something that the compaction has read is always gone."""
    table = declare(workshop, "rows", properties=BY_SPARK, **COMPACTION, **NO_EXPIRY)
    append(workshop, table, 0, 30)

    def replace_one(number: int) -> None:
        row = {"id": number % 30, "word": f"written {number}"}
        opened = workshop.table(table)
        with suppress(CommitFailedException, ValidationException):  # here the compaction came first
            opened.overwrite(pa.Table.from_pylist([row], schema=opened.schema().as_arrow()), f"id = {number % 30}")

    with writer_beside(replace_one):
        run = maintain(workshop, table)

    compaction = step(run, MaintenanceStep.REWRITE_DATA_FILES)
    assert (compaction.outcome, compaction.reason, compaction.attempts) == (StepOutcome.YIELDED, "writers_won", 3)
    assert not run.success
    assert ids(workshop, table) == list(range(30))


def test_a_rewrite_that_changed_rows_would_be_noticed(workshop: Workshop) -> None:
    """From one snapshot to the next a row was added: as the result of a rewrite that would be a gain from nowhere."""
    table = declare(workshop, "rows")
    append(workshop, table, 0, 2)
    first, second = (snapshot.snapshot_id for snapshot in workshop.table(table).snapshots())
    name = f"`lakehouse`.`{workshop.namespace}`.`rows`"

    told = changed_content(workshop.spark, name, ((first, second),), is_hashed=True)

    assert told.startswith(f"snapshot {second} contains Content(rows=2,")
    assert changed_content(workshop.spark, name, ((second, second),), is_hashed=True) == ""


def test_rewrites_are_distinguished_from_what_others_commit(workshop: Workshop) -> None:
    table = declare(workshop, "rows", **COMPACTION, **NO_EXPIRY)
    append(workshop, table, 0, 6)
    head = workshop.table(table).metadata.current_snapshot_id
    maintain(workshop, table)
    append(workshop, table, 6, 7)

    now = database_time(workshop.ledger)
    seen = observe_table(workshop.table(table), name=table, small_file_bytes=1, now=now)

    assert seen.rewrites_since(head) == ((head, seen.snapshots[-2].snapshot_id),)


def test_a_table_has_one_maintenance_run_at_a_time(workshop: Workshop) -> None:
    table = declare(workshop, "rows")

    with (
        maintenance_lock(workshop.ledger, table),
        pytest.raises(LedgerError, match="is under maintenance already"),
    ):
        maintain(workshop, table)

    assert maintain(workshop, table).success
