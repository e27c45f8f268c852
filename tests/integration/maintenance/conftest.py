"""A stream that copies one table into another directly, declared for one test."""

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
from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.connection import Ledger, database_time, open_ledger
from sluice.ledger.generations import current_generation
from sluice.maintenance.maintained_tables import plan_table_maintenance
from sluice.maintenance.maintenance_plan import MaintenancePlan
from sluice.maintenance.position_pins import pin_positions
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
