"""Old rows leave tables in a real catalog and object store, beside streams that read them. No Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from tests.fixtures.stack import Stack
from tests.integration.maintenance.test_maintenance_commands import ended

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.connection import Ledger, database_time, open_ledger
from sluice.ledger.events import Actor, Event, EventAction, EventSubject, recent_events
from sluice.ledger.generations import current_generation
from sluice.ledger.maintenance_runs import MaintenanceStep, recent_maintenance
from sluice.ledger.refreshes import abandon_refresh, begin_refresh
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import admit_run, record_end
from sluice.maintenance import row_retention
from sluice.maintenance.maintained_tables import plan_table_maintenance
from sluice.maintenance.maintenance_plan import MaintenancePlan
from sluice.maintenance.run_maintenance import open_maintenance, problems_after
from sluice.maintenance.step_decision import StepAction, StepDecision, StepReason
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import create_or_evolve_table

NOW = datetime.now(UTC)
OLD, YOUNG = NOW - timedelta(days=120), NOW - timedelta(days=1)
RETENTION = {"column": "at", "older_than": "90 days"}
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", tz="UTC"))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A table that keeps its rows for 90 days, and a stream that copies it."""

    namespace: str
    folder: Path
    settings: Settings
    catalog: Catalog
    ledger: Ledger

    @property
    def name(self) -> str:
        """The table's name."""
        return f"{self.namespace}.rows"

    @property
    def stream(self) -> str:
        """The stream's name."""
        return f"s{self.namespace}"

    def declare(self, *, on_delete: str | None = "skip") -> None:
        """Declare the stream. on_delete: unset for no stream."""
        file = self.folder / f"{self.stream}.stream.yaml"
        file.unlink(missing_ok=True)
        if on_delete is None:
            return
        declared = {
            "stream": self.stream,
            "description": "copies",
            "owner": "me",
            "mode": "incremental",
            "schedule": {"cron": "@hourly"},
            "inputs": {"rows": {"stream": {"iceberg": {"table": self.name, "on_delete": on_delete}}}},
            "transformation": {"sql": "copy.sql"},
            "outputs": {"copies": {"iceberg": {"table": f"{self.namespace}.copies"}}},
        }
        file.write_text(yaml.safe_dump(declared))
        (self.folder / "copy.sql").write_text("SELECT id, at FROM rows")

    def table(self) -> Table:
        """The table, freshly loaded."""
        return self.catalog.load_table(self.name)

    def append(self, *rows: tuple[int, datetime]) -> int:
        """Append rows; the new snapshot."""
        self.table().append(pa.Table.from_pylist([{"id": number, "at": at} for number, at in rows], SCHEMA))
        newest = self.table().current_snapshot()
        assert newest is not None
        return newest.snapshot_id

    def ids(self) -> list[int]:
        """The ids in the table."""
        return sorted(row["id"] for row in self.table().scan().to_arrow().to_pylist())

    def read(self, snapshot_id: int, *, files: int) -> None:
        """Record that the stream has read so many files of a snapshot, in a batch that its checkpoint has committed."""
        generation = current_generation(self.ledger, self.stream, checkpoints_root=self.settings.checkpoints)
        offset = {"version": 1, "snapshot_id": snapshot_id, "position": files, "scan_all_files": False}
        number = len(list((self.folder / "ck").rglob("commits/*")))
        commits = Path(generation.checkpoint.removeprefix("file://")) / "commits"
        commits.mkdir(parents=True, exist_ok=True)
        (commits / str(number)).write_text("v1\n{}")
        record_batch(
            self.ledger,
            BatchObservation(
                key=PublicationKey(stream=self.stream, generation=1, batch=number),
                run_id="a-run",
                started_at=NOW,
                duration_ms=1,
                input_rows=1,
                published_rows={"copies": 1},
                start_offsets={"rows": offset},
                end_offsets={"rows": offset},
            ),
        )

    def plan(self, *, ahead: timedelta = timedelta(0), agrees: bool = True) -> MaintenancePlan:
        """The plan of the table. ahead: of the ledger's clock. agrees: whether a person agrees to it."""
        declarations = load_declarations(self.folder)
        declaration = declarations.tables[self.name].declaration
        return plan_table_maintenance(
            self.ledger,
            declarations,
            self.settings,
            declaration=declaration,
            table=self.table(),
            now=database_time(self.ledger) + ahead,
            agreed=declaration.maintenance.retention if agrees else None,
        )

    def decision(self) -> StepDecision:
        """What is decided about old rows."""
        (found, *_) = self.plan().steps
        assert found.step is MaintenanceStep.REMOVE_OLD_ROWS
        return found


@pytest.fixture(autouse=True)
def without_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that arrive now are old enough."""
    monkeypatch.setattr(row_retention, "ARRIVAL_GRACE", timedelta(days=-1))


@pytest.fixture
def place(services_environment: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The table with its policy, and one for copies."""
    namespace = f"n{uuid4().hex[:12]}"
    for name in ("rows", "copies", "elsewhere"):
        declared: dict[str, Any] = {
            "table": f"{namespace}.{name}",
            "description": name,
            "owner": "me",
            "columns": [{"name": "id", "type": "long"}, {"name": "at", "type": "timestamptz"}],
            "partitioning": [{"column": "at", "transform": "day"}],
            "maintenance": {"expiry": None, "retention": RETENTION if name == "rows" else None},
        }
        (tmp_path / f"{namespace}.{name}.table.yaml").write_text(yaml.safe_dump(declared))
    monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path))
    monkeypatch.setenv("SLUICE_CHECKPOINTS", (tmp_path / "ck").as_uri())
    settings = services_environment.settings().model_copy(update={"checkpoints": (tmp_path / "ck").as_uri()})
    catalog = open_catalog(settings)
    for loaded in load_declarations(tmp_path).tables.values():
        create_or_evolve_table(catalog, loaded.declaration)
    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        yield Place(namespace=namespace, folder=tmp_path, settings=settings, catalog=catalog, ledger=ledger)


def answer(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> Any:
    """The JSON that a command prints."""
    capsys.readouterr()
    ended([*words, "--json"])
    return json.loads(capsys.readouterr().out)


def test_a_person_sees_what_goes_before_and_afterwards(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.append((1, OLD), (2, OLD), (3, YOUNG))
    place.append((4, OLD - timedelta(days=1)))
    before = place.table().metadata_location

    assert ended(["table", "maintain", place.name, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "Remove old rows would run: 2 files with 3 rows (" in said
    assert ended(["table", "plan", place.name]) == 0
    said = capsys.readouterr().out
    assert f"{place.name}: remove_old_rows refused: 2 files with 3 rows" in said
    assert f"{place.name}: retention.older_than: 90 days, table" in said
    assert place.table().metadata_location == before

    assert ended(["table", "maintain", place.name, "--yes"]) == 0
    assert f"{place.name}: remove_old_rows done: 2 files with 3 rows" in capsys.readouterr().out
    assert place.ids() == [3]
    (run,) = recent_maintenance(place.ledger, place.name, limit=5)
    result = run.operations[0].result
    assert (result["removed_data_files_count"], result["removed_rows_count"]) == (2, 3)
    assert (run.before.rows, run.after.rows) == (4, 1)
    event = next(
        one for one in recent_events(place.ledger, EventSubject.TABLE, place.name, limit=9) if one.reason == "old_rows"
    )
    assert (event.action, event.evidence["old_files"], event.evidence["old_rows"]) == ("remove_old_rows", 2, 3)
    assert answer(["table", "status", place.name], capsys)["plan"][0]["reason"] == "no_old_rows"


def test_no_run_by_itself_removes_rows_before_a_person_has_agreed(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """A typing mistake in an age removes nothing; the runs are red until a person looks."""
    place.append((1, OLD), (2, YOUNG), (3, YOUNG))

    def hourly() -> str | None:
        declarations = load_declarations(place.folder)
        maintenance = open_maintenance(place.settings, place.ledger, declarations, launched_by="the DAG")
        run = maintenance.maintain_without_spark(place.name)
        assert run is not None
        return next(iter(problems_after(place.ledger, run)), None)

    assert "no person has agreed yet" in (hourly() or "")
    assert place.ids() == [1, 2, 3]
    assert answer(["table", "maintain", place.name, "--dry-run"], capsys)["plans"][0]["at_stake"] == "rows"
    assert answer(["table", "maintain", place.name, "--dry-run"], capsys)["plans"][0]["rows"] == 1
    assert ended(["table", "maintain", place.name]) != 0, "there is no terminal to answer on"
    assert "give `--yes`" in capsys.readouterr().err
    assert place.ids() == [1, 2, 3]

    assert ended(["table", "maintain", place.name, "--yes"]) == 0
    assert place.ids() == [2, 3]
    place.append((4, OLD))
    assert hourly() is None
    assert place.ids() == [2, 3], "by the policy to which a person has agreed"

    file = place.folder / f"{place.name}.table.yaml"
    file.write_text(file.read_text().replace("90 days", "9 days"))
    place.append((5, NOW - timedelta(days=20)))
    assert "a person has agreed to 90 days, and 9 days are declared" in (hourly() or "")
    assert place.ids() == [2, 3, 5]


def test_rows_that_arrive_old_stay_for_a_day(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sender that gives seconds for milliseconds writes 1970, and a person has a day to see it."""
    monkeypatch.setattr(row_retention, "ARRIVAL_GRACE", timedelta(days=1))
    place.append((1, datetime(1970, 1, 21, tzinfo=UTC)))
    (found, *_) = place.plan().steps
    assert found.reason is StepReason.NO_OLD_ROWS
    assert "1 file that arrived less than a day ago" in found.explanation


def test_rows_become_old_in_a_table_that_nobody_writes(place: Place) -> None:
    """The counts of an earlier run hold for its files, and not for their age."""
    place.append((1, OLD))
    file = place.folder / f"{place.name}.table.yaml"
    declared = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump({**declared, "maintenance": {"expiry": None}}))
    assert ended(["table", "maintain", place.name, "--yes"]) == 0
    assert place.ids() == [1]
    file.write_text(yaml.safe_dump(declared))
    assert ended(["table", "maintain", place.name, "--yes"]) == 0
    assert place.ids() == []


def test_rows_that_a_stream_has_not_read_stay(place: Place) -> None:
    place.declare()
    first = place.append((1, OLD))
    assert (place.decision().action, place.decision().reason) == (StepAction.SKIP, StepReason.READER_NOT_STARTED)

    place.read(first, files=0)
    assert (place.decision().action, place.decision().reason) == (StepAction.SKIP, StepReason.READERS_BEHIND)
    place.read(first, files=1)
    second = place.append((2, OLD), (3, YOUNG))
    assert "1 file with 1 rows" in place.decision().explanation
    assert "1 file more wait" in place.decision().explanation

    assert ended(["table", "maintain", place.name, "--yes"]) == 0
    assert place.ids() == [2, 3]
    assert place.decision().reason is StepReason.READERS_BEHIND

    place.read(second, files=2)
    assert ended(["table", "maintain", place.name, "--yes"]) == 0
    assert place.ids() == [3]


def test_a_reader_that_would_stop_is_refused_by_the_step_too(place: Place) -> None:
    """Its declaration changes while the table's is loaded already."""
    place.declare()
    snapshot = place.append((1, OLD))
    place.read(snapshot, files=1)
    loaded = load_declarations(place.folder)
    place.declare(on_delete="fail")
    streams = dict(loaded.streams)
    broken = load_declarations(place.folder)
    assert place.name not in broken.tables, "validate refuses it"
    streams[place.stream] = broken.streams[place.stream]

    declarations = type(loaded)(
        folder=loaded.folder,
        streams=streams,
        tables=loaded.tables,
        problems=(),
        stream_names=loaded.stream_names,
        table_names=loaded.table_names,
    )
    (found, *_) = plan_table_maintenance(
        place.ledger,
        declarations,
        place.settings,
        declaration=loaded.tables[place.name].declaration,
        table=place.table(),
        now=database_time(place.ledger),
        agreed=loaded.tables[place.name].declaration.maintenance.retention,
    ).steps
    assert (found.action, found.reason) == (StepAction.REFUSE, StepReason.READER_STOPS)
    assert f"{place.stream} (input rows) would stop" in found.explanation


def test_a_stream_that_runs_without_a_declaration_is_refused(place: Place) -> None:
    """Its pin says that it reads the table, and nothing says whether it would stop."""
    snapshot = place.append((1, OLD))
    place.append((2, YOUNG))
    tag = f"sluice_pin__{place.stream}__rows__position"
    place.table().manage_snapshots().create_tag(snapshot, tag).commit()
    assert place.decision().action is StepAction.RUN, "nothing runs"
    admit_run(place.ledger, stream=place.stream, mode="continuous", declaration_digest="d", launched_by="a test")
    found = place.decision()
    assert (found.action, found.reason) == (StepAction.REFUSE, StepReason.READER_STOPS)
    assert f"{place.stream}, whose declaration is not known, would stop" in found.explanation


def test_a_stream_whose_file_cannot_be_read_may_read_the_table(place: Place) -> None:
    """It has never run, and so it has no pin; repaired, it begins with all rows of the table."""
    place.append((1, OLD))
    place.declare(on_delete="skip")
    (place.folder / f"{place.stream}.stream.yaml").write_text("stream: [")
    found = place.decision()
    assert (found.action, found.reason) == (StepAction.SKIP, StepReason.READERS_BEHIND)
    assert f"the declaration of {place.stream} cannot be read" in found.explanation


@pytest.mark.parametrize("was", ["the same input", "another input"])
def test_a_run_by_an_earlier_declaration_holds(place: Place, was: str) -> None:
    """It may have declared `on_delete: fail`, or read the table by another input than the file does now."""
    place.declare()
    first = place.append((1, OLD))
    place.append((2, YOUNG))
    if was == "the same input":
        place.read(first, files=1)
    else:
        file = place.folder / f"{place.stream}.stream.yaml"
        file.write_text(file.read_text().replace(place.name, f"{place.namespace}.elsewhere"))
        tag = f"sluice_pin__{place.stream}__before__position"
        place.table().manage_snapshots().create_tag(first, tag).commit()
    assert place.decision().action is StepAction.RUN
    loaded = load_declarations(place.folder).streams[place.stream]
    run = admit_run(
        place.ledger, stream=place.stream, mode="continuous", declaration_digest="earlier", launched_by="a test"
    )
    found = place.decision()
    assert (found.action, found.reason) == (StepAction.SKIP, StepReason.READERS_BEHIND)
    assert f"`sluice stream restart {place.stream}`" in found.explanation

    record_end(place.ledger, run.run_id, state=RunState.FINISHED, exit_code=0, reason="done")
    admit_run(
        place.ledger, stream=place.stream, mode="continuous", declaration_digest=loaded.digest, launched_by="a test"
    )
    assert place.decision().action is StepAction.RUN


def test_nothing_goes_while_a_refresh_reads_the_table(place: Place) -> None:
    """A shadow begins with all rows of the table, and reads as far as the stream has read them."""
    place.declare()
    place.read(place.append((1, OLD), (2, YOUNG)), files=2)
    assert place.decision().action is StepAction.RUN
    event = Event(
        subject=EventSubject.STREAM,
        name=place.stream,
        actor=Actor.person("a test"),
        action=EventAction.REFRESH,
        reason="requested",
    )
    refresh = begin_refresh(
        place.ledger, place.stream, digest="d", leaves=1, keeps=timedelta(days=1), asked_by="a test", event=event
    )
    found = place.decision()
    assert (found.action, found.reason) == (StepAction.SKIP, StepReason.READERS_BEHIND)
    assert f"refresh {refresh.number} of {place.stream} reads the table" in found.explanation

    abandon_refresh(place.ledger, refresh.number, event=event)
    assert place.decision().action is StepAction.RUN


def test_a_clock_that_is_ahead_removes_nothing(place: Place) -> None:
    place.append((1, YOUNG))
    (found, *_) = place.plan(ahead=timedelta(days=400)).steps
    assert found.reason is StepReason.NO_OLD_ROWS
