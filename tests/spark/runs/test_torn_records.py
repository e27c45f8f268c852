"""What is recorded of batches, and what a refresh becomes, when a torn staging table is repaired."""

from __future__ import annotations

import shutil

import pytest
from sqlalchemy import delete
from tests.fixtures.drill import first_of
from tests.fixtures.faulty_drivers import declare_lost
from tests.fixtures.refreshes import refresh, take_it_back
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop
from tests.spark.delivery.test_held_batches import BAD, GOOD, choose, declare, ids
from tests.spark.runs.test_torn_staging import declare_outputs, repair, run_with_two, tear

from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.errors import SluiceError
from sluice.ledger.batches import Batch, recent_batches
from sluice.ledger.generations import find_generation
from sluice.operations import OperationVerb
from sluice.publication.crash_points import CrashPoint
from sluice.publication.staged_batch import staging_name
from sluice.stored_keys import STAGING_TARGET


def uncommit(workshop: Workshop, stream: str, batch: int) -> None:
    """The driver died before Spark wrote the commit of a batch."""
    generation = find_generation(workshop.ledger, stream)
    assert generation is not None
    files = open_checkpoint_files(generation.checkpoint, workshop.settings.object_store)
    assert files.read_text(f"commits/{batch}") is not None
    for path in (f"commits/.{batch}.crc", f"commits/{batch}"):
        files.remove(path)


@pytest.mark.full
@pytest.mark.parametrize("is_torn", [False, True])
def test_a_batch_that_runs_again_is_recorded_as_spark_reports_it(workshop: Workshop, *, is_torn: bool) -> None:
    """A start leaves the record of a batch that Spark runs again to Spark; a repair writes one first."""
    for table in ("source", "first"):
        workshop.declare_table(table, {"id": "long"})
    stream = f"s{workshop.namespace}"
    workshop.declare_stream(
        stream,
        sql="SELECT explode(array(id, id + 1)) AS id FROM r",
        inputs={"r": {"stream": {"iceberg": {"table": workshop.table_name("source")}}}},
        outputs={"first": {"iceberg": {"table": workshop.table_name("first")}}},
    )
    workshop.append("source", [{"id": 1}, {"id": 200}, {"id": 300}])  # three rows become six
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.PUBLISHED))
    declare_lost(workshop, stream)
    uncommit(workshop, stream, 0)
    if is_torn:
        tear(workshop, stream, "first")
        repair(workshop, stream)
    workshop.run(stream, is_recorded=True)

    (found,) = recent_batches(workshop.ledger, stream, 9)
    assert (found.input_rows, found.published_rows, "first" in found.snapshot_ids) == (3, {"first": 6}, True)


@pytest.mark.full
@pytest.mark.parametrize("is_torn", [False, True])
def test_a_recovered_record_has_its_snapshots(workshop: Workshop, *, is_torn: bool) -> None:
    """With `publish_every` Spark has committed the batch, and does not run it again."""
    for table in ("source", "first"):
        workshop.declare_table(table, {"id": "long"})
    stream = f"s{workshop.namespace}"
    source = {"table": workshop.table_name("source"), "max_rows_per_batch": 1}
    workshop.declare_stream(
        stream,
        sql="SELECT * FROM r",
        inputs={"r": {"stream": {"iceberg": source}}},
        outputs={"first": {"iceberg": {"table": workshop.table_name("first"), "publish_every": "1 hour"}}},
    )
    for number in (1, 2):
        workshop.append("source", [{"id": number}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.PUBLISHED))
    declare_lost(workshop, stream)
    if is_torn:
        tear(workshop, stream, "first")
        repair(workshop, stream)
    workshop.append("source", [{"id": 3}])
    workshop.run(stream, is_recorded=True)

    found = {one.key.batch: one for one in recent_batches(workshop.ledger, stream, 9)}
    assert "first" in found[1].snapshot_ids, "the group of batches has the key of its last one"


@pytest.mark.full  # every run: one that no table shows (`test_torn_staging.py`)
@pytest.mark.parametrize("is_torn", [True, False])
def test_a_rejection_that_the_ledger_forgot_is_not_recorded_as_published(workshop: Workshop, *, is_torn: bool) -> None:
    """A start writes it back as rejected, from the same tables."""
    stream = declare(workshop)
    for row in (GOOD, BAD, {"id": 3, "price": 7}):
        workshop.append("source", [row])
    workshop.run(stream, is_recorded=True)
    choose(workshop, stream, OperationVerb.REJECT_BATCH)
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.PUBLISHED))
    declare_lost(workshop, stream)
    assert ids(workshop) == [1, 3]
    with workshop.ledger.transaction() as connection:
        connection.execute(delete(Batch).where(Batch.stream == stream, Batch.batch == 1))
    if is_torn:
        tear(workshop, stream, "main", "quarantine")
        repair(workshop, stream)
    workshop.append("source", [{"id": 4, "price": 7}])
    workshop.run(stream, is_recorded=True)

    assert ids(workshop) == [1, 3, 4]
    found = {one.key.batch: one for one in recent_batches(workshop.ledger, stream, 9)}
    assert 1 not in found or found[1].is_rejected, found[1].published_rows


@pytest.mark.full
@pytest.mark.parametrize("is_torn", [False, True])
def test_a_torn_former_output_is_in_the_record_of_what_it_shows(workshop: Workshop, *, is_torn: bool) -> None:
    stream = run_with_two(workshop)
    workshop.append("source", [{"id": 2}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.PUBLISHED))
    declare_lost(workshop, stream)
    declare_outputs(workshop, "first")
    if is_torn:
        tear(workshop, stream, "second")
        repair(workshop, stream)
    workshop.run(stream, is_recorded=True)
    found = {one.key.batch: one.published_rows for one in recent_batches(workshop.ledger, stream, 9)}
    assert found[1] == {"first": 1, "second": 1}


@pytest.mark.full
@pytest.mark.parametrize("point", [CrashPoint.SWAPPING, CrashPoint.COMMITTED])
def test_a_refresh_that_died_behind_its_commit_does_not_lock_a_torn_stream(
    workshop: Workshop, point: CrashPoint
) -> None:
    for table in ("source", "first"):
        workshop.declare_table(table, {"id": "long"})
    stream = declare_outputs(workshop, "first")
    workshop.append("source", [{"id": 1}])
    workshop.run(stream, is_recorded=True)
    with pytest.raises(OSError, match="dies here"):
        refresh(workshop, stream, reached=dying_at(point))
    tear(workshop, stream, "first")
    said: dict[str, str] = {}
    for name, way in (
        ("repair", lambda: repair(workshop, stream)),
        ("refresh", lambda: refresh(workshop, stream)),
        ("repair again", lambda: repair(workshop, stream)),
    ):
        try:
            way()
        except SluiceError as error:
            said[name] = f"{error.message} {error.next_step}"
    workshop.append("source", [{"id": 2}])
    try:
        workshop.run(stream, is_recorded=True)
    except SluiceError as error:
        said["run"] = f"{error.message} {error.next_step}"
    assert "run" not in said, "\n".join(f"{name}: {one[-250:]}" for name, one in said.items())
    assert [row["id"] for row in workshop.rows("first")] == [1, 2]


@pytest.mark.full
def test_a_way_back_that_died_behind_its_commit_does_not_lock_a_torn_stream(workshop: Workshop) -> None:
    for table in ("source", "first"):
        workshop.declare_table(table, {"id": "long"})
    stream = declare_outputs(workshop, "first")
    workshop.append("source", [{"id": 1}])
    workshop.run(stream, is_recorded=True)
    refresh(workshop, stream)
    with pytest.raises(OSError, match="dies here"):
        take_it_back(workshop, stream, reached=dying_at(CrashPoint.COMMITTED))
    tear(workshop, stream, "first")
    said: dict[str, str] = {}
    for name, way in (
        ("repair", lambda: repair(workshop, stream)),
        ("take back", lambda: take_it_back(workshop, stream)),
        ("repair again", lambda: repair(workshop, stream)),
    ):
        try:
            way()
        except SluiceError as error:
            said[name] = f"{error.message} {error.next_step}"
    workshop.append("source", [{"id": 2}])
    try:
        workshop.run(stream, is_recorded=True)
    except SluiceError as error:
        said["run"] = f"{error.message} {error.next_step}"
    assert "run" not in said, "\n".join(f"{name}: {one[-250:]}" for name, one in said.items())
    assert [row["id"] for row in workshop.rows("first")] == [1, 2]


@pytest.mark.parametrize("is_torn", first_of(True, False))
def test_what_a_repair_commits_is_recorded(workshop: Workshop, *, is_torn: bool) -> None:
    """The checkpoint is gone as well: what the repair writes into it, Spark does not run again."""
    for table in ("source", "first"):
        workshop.declare_table(table, {"id": "long"})
    stream = declare_outputs(workshop, "first")
    workshop.append("source", [{"id": 1}])
    workshop.run(stream, is_recorded=True)
    workshop.append("source", [{"id": 2}])
    with pytest.raises(OSError, match="dies here"):
        workshop.run(stream, is_recorded=True, reached=dying_at(CrashPoint.PUBLISHED))
    declare_lost(workshop, stream)
    assert [one.key.batch for one in recent_batches(workshop.ledger, stream, 9)] == [0]
    shutil.rmtree(workshop.checkpoint(stream))
    if is_torn:
        tear(workshop, stream, "first")
    repair(workshop, stream)
    workshop.append("source", [{"id": 3}])
    workshop.run(stream, is_recorded=True)

    found = {one.key.batch: one.published_rows for one in recent_batches(workshop.ledger, stream, 9)}
    assert found == {0: {"first": 1}, 1: {"first": 1}, 2: {"first": 1}}


@pytest.mark.full  # every run: what a repair commits is recorded
def test_a_torn_former_output_that_names_no_table_keeps_no_repair_from_its_end(workshop: Workshop) -> None:
    stream = run_with_two(workshop)
    declare_outputs(workshop, "first")
    with workshop.catalog.load_table(staging_name(stream, "second")).transaction() as changed:
        changed.remove_properties(STAGING_TARGET)
    tear(workshop, stream, "second")

    repair(workshop, stream)
    workshop.append("source", [{"id": 2}])
    workshop.run(stream, is_recorded=True)

    assert [row["id"] for row in workshop.rows("first")] == [1, 2]
