"""All tables in one process: what needs no Spark is done there, and only the others are left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
import yaml
from pydantic import SecretStr
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from sqlalchemy import text
from tests.fixtures.ports import free_port
from tests.fixtures.sample_declarations import write_continuous_stream, write_table
from tests.fixtures.stack import Stack
from tests.integration.maintenance.conftest import Place

import sluice.tables.whole_files
from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import quarantine_declaration
from sluice.errors import LakehouseError, LedgerError, LedgerUnreachableError, UnhealthyError
from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.connection import Ledger, database_time, open_ledger
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.locks import maintenance_lock
from sluice.ledger.maintenance_runs import (
    MaintenanceObservation,
    MaintenanceStep,
    StepOutcome,
    effort_since,
    recent_maintenance,
    record_maintenance,
)
from sluice.maintenance.due_tables import due_tables, plan_tables
from sluice.maintenance.run_maintenance import TableMaintenance, open_maintenance, require_no_problems
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import create_or_evolve_table
from sluice.tables.whole_files import KeptManifests

PATIENT = {"compaction": {"min_input_files": 5}, "expiry": {"older_than": "1 day", "retain_last": 1}}
OLD_AT_ONCE = {"older_than": "1 millisecond", "retain_last": 1}
BY_SPARK: dict[str, Any] = {"properties": {"write.parquet.bloom-filter-enabled.column.id": "true"}}
"""What only Spark writes again."""

pytestmark = pytest.mark.filterwarnings("ignore:Parquet writer option:UserWarning")
"""pyiceberg, which appends the rows here, writes no bloom filters."""

BY = "airflow: table_maintenance, a run"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Declared tables of one test."""

    namespace: str
    folder: Path
    settings: Settings
    catalog: Catalog
    ledger: Ledger

    def declare(self, name: str, *, files: int, is_created: bool = True, **parts: Any) -> str:
        """Declare a table, create it, and append so many files; its full name."""
        table = f"{self.namespace}.{name}"
        declared = {"table": table, "description": "d", "owner": "me", "columns": [{"name": "id", "type": "long"}]}
        written = {**declared, "maintenance": PATIENT, **parts}
        (self.folder / f"{table}.table.yaml").write_text(yaml.safe_dump(written))
        if is_created:
            create_or_evolve_table(self.catalog, load_declarations(self.folder).table(table).declaration)
            append(self.catalog.load_table(table), files)
        return table

    def left_among(self, *tables: str) -> tuple[str, ...]:
        """Those of the tables that need a task of their own."""
        return due_tables(self.settings, load_declarations(self.folder), tables, launched_by=BY)

    def runs(self, table: str) -> tuple[MaintenanceObservation, ...]:
        """The recorded runs."""
        return recent_maintenance(self.ledger, table, limit=10)


def append(table: Table, files: int) -> None:
    """Append files of one row."""
    for number in range(files):
        table.append(pa.table({"id": pa.array([number], pa.int64())}))


def delete_manifest_list(table: Table) -> None:
    """Delete what the newest snapshot is read from; from now on this process is one that has not read it."""
    newest = table.current_snapshot()
    assert newest is not None
    table.io.delete(newest.manifest_list)
    sluice.tables.whole_files._content_of.cache_clear()


@pytest.fixture
def tables(services_environment: Stack, tmp_path: Path) -> Iterator[Tables]:
    """No table yet, and none that a test has made unreadable afterwards."""
    settings = services_environment.settings()
    namespace, catalog = f"n{uuid4().hex[:12]}", open_catalog(settings)
    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        yield Tables(namespace=namespace, folder=tmp_path, settings=settings, catalog=catalog, ledger=ledger)
    if catalog.namespace_exists(namespace):
        for table in catalog.list_tables(namespace):
            catalog.drop_table(table)


def test_who_looks_at_a_table_and_changes_it_reads_a_manifest_once(tables: Tables) -> None:
    name = tables.declare("kept", files=1)
    opened = open_maintenance(tables.settings, tables.ledger, load_declarations(tables.folder), launched_by=BY)
    assert isinstance(opened.catalog.load_table(name).io, KeptManifests)


@pytest.mark.full  # every run: `test_maintenance_plan.py`
def test_only_what_needs_spark_is_left(tables: Tables) -> None:
    in_order = [tables.declare(f"in_order_{number}", files=2) for number in range(4)]
    due = [tables.declare(f"due_{number}", files=6, **BY_SPARK) for number in range(2)]

    left = tables.left_among(due[1], *in_order, due[0])

    assert left == (due[1], due[0])
    for table in in_order:
        (run,) = tables.runs(table)
        assert {step.outcome for step in run.operations} == {StepOutcome.SKIPPED}
        assert (run.launched_by, run.before.files, run.after) == (BY, 2, run.before)
    assert [tables.runs(table) for table in due] == [(), ()]


def test_small_files_are_put_together_without_spark_and_then_nothing_is_due(tables: Tables) -> None:
    """The manifests that would be too many are counted again after the files."""
    few: dict[str, Any] = {"maintenance": {**PATIENT, "manifest_rewrite": {"min_manifests": 4}}}
    names = [tables.declare("many", files=9, **few), tables.declare("few", files=5)]
    in_order = tables.declare("in_order", files=1)
    before = plan_tables(tables.settings, load_declarations(tables.folder), [in_order, *reversed(names)])
    assert [one.plan.seen.table for one in before.ranked] == [*reversed(names)]  # manifests are dear
    assert [step.step for step in before.ranked[1].plan.due] == ["rewrite_data_files", "rewrite_manifests"]
    assert before.as_json()["tables"][-1] == {**before.as_json()["tables"][-1], "table": in_order, "place": None}

    assert tables.left_among(in_order, *names) == ()

    for name, files in zip(names, (9, 5), strict=True):
        (run,) = tables.runs(name)
        assert (run.before.files, run.after.files, run.after.rows, run.success) == (files, 1, files, True)
        seen = tables.catalog.load_table(name).current_snapshot()
        assert seen is not None
        assert seen.summary is not None
        assert seen.summary.operation.value == "replace"
    assert plan_tables(tables.settings, load_declarations(tables.folder), names).ranked == ()


def test_a_table_without_a_commit_is_looked_at_without_its_manifests(tables: Tables) -> None:
    """They are deleted, so that whoever reads them fails. What time or another policy changes is decided again."""
    name = tables.declare("idle", files=3)
    assert tables.left_among(name) == ()
    delete_manifest_list(tables.catalog.load_table(name))

    assert tables.left_among(name) == ()

    again, first = tables.runs(name)
    assert (again.before, again.after, again.file_sizes) == (first.after, first.after, first.file_sizes)
    assert [(one.reason, one.explanation, one.basis) for one in again.operations] == [
        (one.reason, one.explanation, one.basis) for one in first.operations
    ]
    tables.declare("idle", files=0, is_created=False, maintenance={**PATIENT, "expiry": OLD_AT_ONCE})
    assert tables.left_among(name) == (name,)
    assert len(tables.runs(name)) == 2, "the expiry is due, and Spark does it"
    tables.declare("idle", files=0, is_created=False, maintenance={**PATIENT, "compaction": {"min_input_files": 2}})
    assert tables.left_among(name) == (name,)
    with pytest.raises(LakehouseError):
        open_maintenance(
            tables.settings, tables.ledger, load_declarations(tables.folder), launched_by=BY
        ).maintain_unless_due(name)


def of_orphans(steps: Iterable[Any]) -> Any:
    """The step that looks for what dead writers left."""
    return next(one for one in steps if one.step is MaintenanceStep.REMOVE_ORPHANS)


@pytest.mark.full  # every run: `test_orphan_step.py`
def test_what_dead_writers_left_is_looked_for_here_once_in_a_while(tables: Tables) -> None:
    name = tables.declare("searched", files=1, maintenance={**PATIENT, "orphan_removal": {}})
    assert tables.left_among(name) == ()
    (first,) = tables.runs(name)
    orphans = of_orphans(first.operations)
    assert orphans.reason == "young_table"
    long_ago = first.ended_at - timedelta(days=7)
    done = replace(orphans, outcome=StepOutcome.DONE)
    record_maintenance(tables.ledger, replace(first, ended_at=long_ago, operations=(done,)))
    (planned,) = plan_tables(tables.settings, load_declarations(tables.folder), [name]).ranked
    assert [step.step for step in planned.plan.due] == [MaintenanceStep.REMOVE_ORPHANS]

    assert tables.left_among(name) == ()

    looked = of_orphans(tables.runs(name)[0].operations)
    assert (looked.outcome, looked.result["files"], looked.result["deletes"]) == (StepOutcome.DONE, 0, [])
    after = plan_tables(tables.settings, load_declarations(tables.folder), [name])
    assert after.ranked == ()
    assert of_orphans(after.idle[0].steps).reason == "looked_recently"


@pytest.mark.full  # every run: `test_counted_files.py`
def test_a_commit_has_the_files_counted_again(tables: Tables) -> None:
    name = tables.declare("grows", files=3)
    assert tables.left_among(name) == ()
    append(tables.catalog.load_table(name), 2)

    assert tables.left_among(name) == ()

    assert [(run.before.files, run.after.files) for run in tables.runs(name)] == [(5, 1), (3, 3)]


@pytest.mark.full  # every run: `test_table_ranking.py`
def test_beyond_the_budget_of_the_day_a_table_is_not_maintained(tables: Tables) -> None:
    first, second = tables.declare("first", files=9), tables.declare("second", files=5)
    declarations, a_day = load_declarations(tables.folder), timedelta(days=1)
    cost = plan_tables(tables.settings, declarations, [first]).ranked[0].plan.cost_bytes
    others = effort_since(tables.ledger, database_time(tables.ledger) - a_day)[1]
    settings = tables.settings.model_copy(update={"maintenance_bytes_a_day": others + cost})

    for _ in range(2):
        assert due_tables(settings, declarations, [first, second], launched_by=BY) == ()

    assert effort_since(tables.ledger, database_time(tables.ledger) - a_day)[1] == others + cost
    assert tables.runs(first)[-1].after.files == 1
    assert tables.runs(second) == ()
    (waiting,) = plan_tables(settings, declarations, [first, second]).ranked
    assert waiting.put_off.endswith(f"bytes of the day's budget of {others + cost:,}")


def test_a_table_that_cannot_be_maintained_keeps_no_other_one_from_it(tables: Tables) -> None:
    absent = tables.declare("absent", files=0, is_created=False)
    damaged, in_order = tables.declare("damaged", files=1), tables.declare("in_order", files=1)
    with tables.catalog.load_table(damaged).transaction() as change:
        change.set_properties({"sluice.mark.some_stream.rows": "no mark"})

    assert tables.left_among(absent, damaged, in_order) == (absent, damaged)

    assert len(tables.runs(in_order)) == 1
    assert tables.runs(damaged) == ()


def test_a_table_that_is_being_maintained_is_left(tables: Tables) -> None:
    table = tables.declare("rows", files=1)
    with maintenance_lock(tables.ledger, table):
        assert tables.left_among(table) == (table,)
    assert tables.runs(table) == ()


def test_a_ledger_that_is_away_is_an_error_of_the_whole_run(tables: Tables) -> None:
    table = tables.declare("rows", files=1)
    away = SecretStr(f"postgresql+psycopg://sluice:sluice@127.0.0.1:{free_port()}/sluice")
    settings = tables.settings.model_copy(update={"ledger_url": away})
    with pytest.raises(LedgerUnreachableError):
        due_tables(settings, load_declarations(tables.folder), [table], launched_by=BY)


def maintenance_of(place: Place) -> TableMaintenance:
    """The maintenance of the tables of a place."""
    return open_maintenance(place.settings, place.ledger, load_declarations(place.folder), launched_by=BY)


def be_patient(place: Place) -> str:
    """Let the table that is read expire after a day only; its name."""
    name = f"{place.namespace}.rows"
    file = place.folder / f"{name}.table.yaml"
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "maintenance": PATIENT}))
    return name


@pytest.mark.full  # every run: `test_maintenance_steps.py`
def test_pins_are_moved_without_spark_and_saved_before(place: Place) -> None:
    name = be_patient(place)
    first = place.append("rows", 3)[0]
    place.start(offsets=[first])
    assert [step.step for step in place.plan("rows").steps if step.action == "run"] == [MaintenanceStep.PIN_SNAPSHOTS]

    assert due_tables(place.settings, load_declarations(place.folder), [name], launched_by=BY) == ()

    assert f"sluice_pin__{place.stream}__rows__position" in place.table("rows").refs()
    (run,) = recent_maintenance(place.ledger, name, limit=10)
    assert [(done.step, done.attempts) for done in run.operations if done.outcome is StepOutcome.DONE] == [
        (MaintenanceStep.PIN_SNAPSHOTS, 1)
    ]
    (event,) = recent_events(place.ledger, EventSubject.TABLE, name, limit=10)
    assert (event.action, event.reason, event.actor.name) == ("pin_snapshots", "pins_moved", BY)
    assert event.recorded_at <= run.ended_at


@pytest.mark.full  # every run: `test_maintenance_task.py`
def test_a_refused_step_is_red_without_spark(place: Place) -> None:
    name = f"{place.namespace}.rows"
    place.append("rows", 3)
    offsets = place.start() / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("v1\n")  # it has begun, and neither its checkpoint nor the ledger says where

    assert due_tables(place.settings, load_declarations(place.folder), [name], launched_by=BY) == (name,)

    run = maintenance_of(place).maintain_without_spark(name)
    assert run is not None
    with pytest.raises(UnhealthyError, match="expire_snapshots refused, reader_unknown"):
        require_no_problems(place.ledger, run)


@pytest.mark.full  # every run: `test_maintenance_plan.py`
def test_what_needs_spark_is_left_as_it_is(tables: Tables) -> None:
    table = tables.declare("rows", files=6, **BY_SPARK)
    before = tables.catalog.load_table(table).metadata_location
    maintenance = open_maintenance(
        tables.settings, tables.ledger, load_declarations(tables.folder), launched_by="a test"
    )
    assert maintenance.maintain_without_spark(table) is None
    assert tables.catalog.load_table(table).metadata_location == before
    assert tables.runs(table) == ()
    assert recent_events(tables.ledger, EventSubject.TABLE, table, limit=10) == ()
    with maintenance_lock(tables.ledger, table), pytest.raises(LedgerError, match="under maintenance already"):
        maintenance.maintain_without_spark(table)


def test_rows_of_a_quarantine_that_are_kept_no_longer_are_removed_and_the_event_is_there_before(tables: Tables) -> None:
    for name in ("bronze", "silver"):
        write_table(tables.folder, f"{tables.namespace}.{name}")
    retention = "quarantine: true\nquarantine_retention: {open: 30 days}\n"
    names = {"reads": f"{tables.namespace}.bronze", "writes": f"{tables.namespace}.silver"}
    stream = f"s{tables.namespace}"
    file = write_continuous_stream(tables.folder, stream, more=retention, **names)
    (tables.folder / "rows.py").write_text("def rows(**inputs):\n    pass\n")
    file.write_text(file.read_text().replace("sql: rows.sql", "python: rows.py:rows"))
    declarations = load_declarations(tables.folder)
    assert declarations.problems == ()
    declared = declarations.stream(stream).declaration
    create_or_evolve_table(tables.catalog, quarantine_declaration(declared))
    table = tables.catalog.load_table(declared.quarantine_table)
    now = database_time(tables.ledger)
    for batch, days in ((1, 31), (2, 1)):  # the second one was held for a month
        key = PublicationKey(stream=stream, generation=1, batch=batch)
        seen = BatchObservation(key=key, run_id="r", started_at=now, duration_ms=1, input_rows=1, published_rows={})
        record_batch(tables.ledger, seen)
        with tables.ledger.transaction() as connection:
            connection.execute(
                text("UPDATE sluice.batches SET recorded_at = :at WHERE stream = :stream AND batch = :batch"),
                {"at": now - timedelta(days=days), "stream": stream, "batch": batch},
            )
    row = {"stream": stream, "generation": 1, "reason": "why"}
    rows = [
        {**row, "batch": batch, "payload": f"{batch} {age}", "refused_at": now - timedelta(days=age)}
        for batch, age in ((1, 29), (1, 31), (2, 31))
    ]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))

    for _ in range(2):
        assert tables.left_among(declared.quarantine_table) == ()

    left = tables.catalog.load_table(declared.quarantine_table).scan().to_arrow()
    assert set(left["payload"].to_pylist()) == {"1 29", "2 31"}
    events = recent_events(tables.ledger, EventSubject.TABLE, declared.quarantine_table, limit=9)
    assert [(one.reason, one.evidence) for one in events if one.reason == "quarantine_retention"] == [
        ("quarantine_retention", {"rows": 1, "open": "30 d"})
    ]
    assert tables.runs(declared.quarantine_table)[-1].before.rows == 2
