"""A stream pins where it is, in a real catalog and with a real ledger; maintenance obeys the pins. No Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
import yaml
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from tests.fixtures.stack import Stack

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.batches import record_batch
from sluice.ledger.connection import Ledger, database_time, open_ledger
from sluice.ledger.generations import current_generation
from sluice.ledger.records.run import RunState
from sluice.ledger.records.stream_batch import BatchObservation, PublicationKey
from sluice.ledger.runs import admit_run, record_end
from sluice.maintenance.maintained_tables import plan_table_maintenance
from sluice.maintenance.maintenance_plan import MaintenancePlan
from sluice.maintenance.position_pins import pin_positions
from sluice.maintenance.retention_plan import KEPT_FOR_READERS, MIN_SNAPSHOTS
from sluice.publication.direct_history import EPOCH, QUERY_ID, DirectWriter
from sluice.settings import Settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import create_or_evolve_table

EXPIRE_ALL = {"compaction": None, "expiry": {"older_than": "1 millisecond", "retain_last": 1}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A stream that copies one table into another directly, with the catalog and the ledger."""

    namespace: str
    folder: Path
    settings: Settings
    catalog: Catalog
    ledger: Ledger

    @property
    def stream(self) -> str:
        """The stream's name."""
        return f"s{self.namespace}"

    def table(self, name: str) -> Table:
        """A table, freshly loaded."""
        return self.catalog.load_table(f"{self.namespace}.{name}")

    def append(self, name: str, count: int, **properties: str) -> list[int]:
        """Append so many snapshots of one row; the ids of all snapshots of main, oldest first."""
        for number in range(count):
            self.table(name).append(pa.table({"id": pa.array([number], pa.int64())}), snapshot_properties=properties)
        return [entry.snapshot_id for entry in self.table(name).history()]

    def pin(self) -> list[str]:
        """Pin as the stream's driver does; the tags that were set."""
        declaration = load_declarations(self.folder).stream(self.stream).declaration
        pins = pin_positions(self.catalog, self.ledger, declaration, object_store=self.settings.object_store)
        return [pin.tag for pin in pins]

    def plan(self, name: str) -> MaintenancePlan:
        """The plan of a table's maintenance."""
        declarations = load_declarations(self.folder)
        return plan_table_maintenance(
            self.ledger,
            declarations,
            self.settings,
            declaration=declarations.table(f"{self.namespace}.{name}").declaration,
            table=self.table(name),
            now=database_time(self.ledger),
        )

    def start(self, *, offsets: Sequence[int] = ()) -> Path:
        """Open the stream's generation, with the first offsets of its source; the folder of the checkpoint."""
        checkpoints = (self.folder / "ck").as_uri()
        generation = current_generation(self.ledger, self.stream, checkpoints_root=checkpoints)
        root = Path(generation.checkpoint.removeprefix("file://"))
        for snapshot_id in offsets:
            (root / "sources" / "0" / "offsets").mkdir(parents=True)
            (root / "sources" / "0" / "offsets" / "0").write_text(json.dumps(offset(snapshot_id)))
        return root

    def record(self, start: int) -> None:
        """Record a batch that began at a snapshot."""
        record_batch(
            self.ledger,
            BatchObservation(
                key=PublicationKey(stream=self.stream, generation=1, batch=7),
                run_id="a-run",
                started_at=datetime(2026, 11, 20, tzinfo=UTC),
                duration_ms=1,
                input_rows=1,
                published_rows={"copies": 1},
                start_offsets={"rows": offset(start)},
            ),
        )


def offset(snapshot_id: int) -> dict[str, Any]:
    """An offset of Iceberg's source."""
    return {"version": 1, "snapshot_id": snapshot_id, "position": 1, "scan_all_files": False}


@pytest.fixture
def place(services_environment: Stack, tmp_path: Path) -> Iterator[Place]:
    """The declared stream with its two tables."""
    namespace = f"n{uuid4().hex[:12]}"
    described = {"description": "d", "owner": "me"}
    for table in ("rows", "copies"):
        name = f"{namespace}.{table}"
        declared = {"table": name, "columns": [{"name": "id", "type": "long"}], "maintenance": EXPIRE_ALL, **described}
        (tmp_path / f"{name}.table.yaml").write_text(yaml.safe_dump(declared))
    stream = {
        "stream": f"s{namespace}",
        "mode": "continuous",
        "trigger": {"processing_time": "1 second"},
        "inputs": {"rows": {"stream": {"iceberg": {"table": f"{namespace}.rows"}}}},
        "transformation": {"sql": "copy.sql"},
        "outputs": {"copies": {"iceberg": {"table": f"{namespace}.copies", "delivery": "direct"}}},
    }
    (tmp_path / f"s{namespace}.stream.yaml").write_text(yaml.safe_dump({**stream, **described}))
    (tmp_path / "copy.sql").write_text("SELECT id FROM rows")
    settings = services_environment.settings()
    catalog = open_catalog(settings)
    for loaded in load_declarations(tmp_path).tables.values():
        create_or_evolve_table(catalog, loaded.declaration)
    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        yield Place(namespace=namespace, folder=tmp_path, settings=settings, catalog=catalog, ledger=ledger)


def test_a_stream_that_has_read_nothing_pins_the_oldest_snapshot(place: Place) -> None:
    first, *_ = place.append("rows", 3)

    assert place.pin() == [f"sluice_pin__{place.stream}__rows__position"]

    assert place.table("rows").refs()[f"sluice_pin__{place.stream}__rows__position"].snapshot_id == first
    assert place.pin() == []  # it is in place


def test_the_pin_moves_with_the_stream(place: Place) -> None:
    first, second, *_ = place.append("rows", 4)
    place.start(offsets=[first])
    place.pin()
    place.record(second)

    assert place.pin() == [f"sluice_pin__{place.stream}__rows__position"]

    assert place.table("rows").refs()[f"sluice_pin__{place.stream}__rows__position"].snapshot_id == second


def test_an_empty_table_has_nothing_to_pin(place: Place) -> None:
    assert place.pin() == []


def test_the_table_asks_every_expiry_to_keep_what_a_slow_reader_needs(place: Place) -> None:
    first, *_ = place.append("rows", 20)
    place.start(offsets=[first])

    place.pin()

    properties = place.table("rows").properties
    assert properties[MIN_SNAPSHOTS] == "64"
    assert json.loads(properties[KEPT_FOR_READERS]) == {MIN_SNAPSHOTS: 64}
    declaration = load_declarations(place.folder).table(f"{place.namespace}.rows").declaration
    assert create_or_evolve_table(place.catalog, declaration) == ()  # `sluice table create` leaves it


def test_maintenance_lowers_what_was_set_for_a_reader_that_has_caught_up(place: Place) -> None:
    *_, newest = place.append("rows", 20)
    place.start(offsets=[place.append("rows", 0)[0]])
    place.pin()
    place.record(newest)

    plan = place.plan("rows")

    assert plan.pins.properties[MIN_SNAPSHOTS] == "2"


def test_a_reader_that_holds_back_old_snapshots_is_reported_with_its_cost(place: Place) -> None:
    first, *_ = place.append("rows", 6)
    place.start(offsets=[first])

    notes = place.plan("rows").notes

    assert len(notes) == 1
    assert notes[0].startswith(f"stream {place.stream} (rows) holds back 5 old snapshots and 0.0 MiB of replaced files")


def test_the_newest_snapshot_of_a_crashed_direct_stream_is_kept(place: Place) -> None:
    """Without it the stream refuses to start: its sink could not recognise the batch that it repeats."""
    writer = DirectWriter(stream=place.stream, output="copies", generation=1, run_id="r", token=1)
    *_, own = place.append("copies", 2, **writer.properties(), **{QUERY_ID: "query", EPOCH: "4"})
    *_, newest = place.append("copies", 4)
    root = place.start()
    for log, batch in (("offsets", 4), ("commits", 3)):
        (root / log).mkdir(parents=True)
        (root / log / str(batch)).write_text("v1\n")

    plan = place.plan("copies")

    assert [(pin.tag, pin.snapshot_id) for pin in plan.pins.to_set] == [
        (f"sluice_pin__{place.stream}__copies__written", own)
    ]
    assert plan.pins.keep_since is not None
    assert newest != own
    (root / "commits" / "4").write_text("v1\n")
    assert place.plan("copies").pins.pins == ()  # it ended between two batches


def test_the_pins_of_a_stream_that_is_gone_are_removed_once_it_has_no_live_run(place: Place) -> None:
    place.append("rows", 3)
    place.pin()
    run = admit_run(place.ledger, stream=place.stream, mode="continuous", declaration_digest="d", launched_by="a test")
    (place.folder / f"{place.stream}.stream.yaml").unlink()

    assert place.plan("rows").pins.to_remove == ()
    record_end(place.ledger, run.run_id, state=RunState.FINISHED, exit_code=0, reason="stopped")
    assert place.plan("rows").pins.to_remove == (f"sluice_pin__{place.stream}__rows__position",)
