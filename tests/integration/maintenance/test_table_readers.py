"""How far readers have come, told from a real ledger and the files of their checkpoints."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.batches import BatchObservation, PublicationKey, record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.generations import current_generation
from sluice.maintenance.pin_plan import Knowledge, ReaderObservation
from sluice.maintenance.table_readers import observe_readers
from sluice.settings import ObjectStoreSettings
from sluice.sources.iceberg_positions import BEGINNING

TABLE, OTHER = "bronze.rows", "bronze.others"
LISTED = (11, 12, 13)


def offset(snapshot_id: int) -> dict[str, Any]:
    """An offset of Iceberg's source."""
    return {"version": 1, "snapshot_id": snapshot_id, "position": 1, "scan_all_files": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """A folder of declarations and checkpoints, and a ledger, of one test."""

    folder: Path
    ledger: Ledger

    def declare(self, *tables: str, quarantine: bool = False) -> None:
        """Declare the stream `silver` that reads tables, its inputs named after them."""
        pipelines = self.folder / "pipelines"
        pipelines.mkdir()
        for table in (TABLE, OTHER, "silver.rows"):
            declared = {"table": table, "description": "", "owner": "me", "columns": [{"name": "id", "type": "long"}]}
            (pipelines / f"{table}.table.yaml").write_text(yaml.safe_dump(declared))
        inputs = {table.partition(".")[2]: {"stream": {"iceberg": {"table": table}}} for table in tables}
        stream = {
            "stream": "silver",
            "description": "",
            "owner": "me",
            "mode": "incremental",
            "schedule": {"cron": "@hourly"},
            "inputs": inputs,
            "transformation": {"python": "silver.py:transform"},
            "outputs": {"kept": {"iceberg": {"table": "silver.rows"}}},
            "quarantine": quarantine,
        }
        (pipelines / "silver.stream.yaml").write_text(yaml.safe_dump(stream))
        (pipelines / "silver.py").write_text("def transform(**inputs): ...\n")

    def start(self, *, offsets: Sequence[int] = ()) -> None:
        """Open the stream's generation, with the first offsets of its sources in the checkpoint."""
        generation = current_generation(self.ledger, "silver", checkpoints_root=(self.folder / "ck").as_uri())
        root = Path(generation.checkpoint.removeprefix("file://"))
        for number, snapshot_id in enumerate(offsets):
            file = root / "sources" / str(number) / "offsets" / "0"
            file.parent.mkdir(parents=True)
            file.write_text(json.dumps(offset(snapshot_id)))

    def commit(self, batch: int) -> None:
        """Commit a batch in the checkpoint."""
        file = self.folder / "ck" / "silver" / "1" / "commits" / str(batch)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("v1")

    def record(
        self,
        starts: Mapping[str, Any],
        *,
        ends: Mapping[str, Any] | None = None,
        generation: int = 1,
        batch: int = 7,
    ) -> None:
        """Record a batch that began at these offsets."""
        record_batch(
            self.ledger,
            BatchObservation(
                key=PublicationKey(stream="silver", generation=generation, batch=batch),
                run_id="a-run",
                started_at=datetime(2026, 11, 20, tzinfo=UTC),
                duration_ms=1,
                input_rows=1,
                published_rows={"kept": 1},
                start_offsets=starts,
                end_offsets=ends or {},
            ),
        )

    def look(self, table: str = TABLE) -> ReaderObservation:
        """Look at the one reader of a table."""
        declarations = load_declarations(self.folder / "pipelines")
        (seen,) = observe_readers(
            self.ledger, declarations, table, listed=LISTED, object_store=ObjectStoreSettings(endpoint=None)
        )
        return seen


@pytest.fixture
def room(tmp_path: Path, ledger: Ledger) -> Room:
    """An empty folder and a fresh ledger."""
    return Room(folder=tmp_path, ledger=ledger)


def test_a_stream_that_was_never_started(room: Room) -> None:
    room.declare(TABLE)

    assert room.look().knowledge is Knowledge.NOT_STARTED


def test_a_stream_whose_checkpoint_is_still_empty(room: Room) -> None:
    room.declare(TABLE)
    room.start()

    assert room.look().knowledge is Knowledge.NOT_STARTED


def test_a_reader_without_a_batch_stands_at_its_first_offset(room: Room) -> None:
    room.declare(TABLE)
    room.start(offsets=[11])

    assert (room.look().knowledge, room.look().position) == (Knowledge.KNOWN, 11)


def test_a_reader_goes_on_from_the_start_of_its_newest_batch(room: Room) -> None:
    room.declare(TABLE)
    room.start(offsets=[11])
    room.record({"rows": offset(11)}, batch=7)
    room.record({"rows": offset(12)}, batch=8)

    assert room.look().position == 12


def test_a_first_batch_has_no_start_and_the_first_offset_stands_for_it(room: Room) -> None:
    room.declare(TABLE)
    room.start(offsets=[11])
    room.record({"rows": None}, batch=0)

    assert room.look().position == 11


def test_a_reader_that_found_the_table_empty(room: Room) -> None:
    room.declare(TABLE)
    room.start(offsets=[BEGINNING])

    assert (room.look().knowledge, room.look().position) == (Knowledge.KNOWN, BEGINNING)


def test_batches_of_an_older_generation_say_nothing(room: Room) -> None:
    room.declare(TABLE)
    room.start(offsets=[13])
    room.record({"rows": offset(11)}, generation=0)

    assert room.look().position == 13


def test_a_reader_with_batches_and_without_any_offset_is_unknown(room: Room) -> None:
    room.declare(TABLE)
    room.start()
    room.record({"rows": None})

    seen = room.look()

    assert seen.knowledge is Knowledge.UNKNOWN
    assert "neither the ledger nor the checkpoint" in seen.problem


def test_a_checkpoint_that_cannot_be_reached_makes_its_reader_unknown(room: Room) -> None:
    room.declare(TABLE)
    room.start()
    (room.folder / "ck" / "silver").mkdir(parents=True)
    (room.folder / "ck" / "silver" / "1").write_text("a file where a folder belongs")

    seen = room.look()

    assert seen.knowledge is Knowledge.UNKNOWN
    assert "cannot be listed" in seen.problem


@pytest.mark.parametrize(
    ("offsets", "knowledge", "position"),
    [
        ([901, 12], Knowledge.KNOWN, 12),
        ([11, 901], Knowledge.KNOWN, 11),
        ([BEGINNING, BEGINNING], Knowledge.KNOWN, BEGINNING),
        ([901, 902], Knowledge.UNKNOWN, None),
        ([BEGINNING, 901], Knowledge.UNKNOWN, None),
    ],
    ids=["the second is ours", "the first is ours", "both empty", "ours is gone", "it is unknown"],
)
def test_of_two_tables_the_one_that_lists_the_snapshot_is_meant(
    room: Room, offsets: Sequence[int], knowledge: Knowledge, position: int | None
) -> None:
    room.declare(TABLE, OTHER)
    room.start(offsets=offsets)

    assert (room.look().knowledge, room.look().position) == (knowledge, position)


def test_a_checkpoint_that_only_spark_can_read_makes_its_reader_unknown(room: Room) -> None:
    room.declare(TABLE)
    current_generation(room.ledger, "silver", checkpoints_root="hdfs://namenode/checkpoints")

    seen = room.look()

    assert seen.knowledge is Knowledge.UNKNOWN
    assert "has the scheme hdfs" in seen.problem


def test_a_reader_goes_on_from_the_end_of_a_batch_that_its_checkpoint_has_committed(room: Room) -> None:
    room.declare(TABLE)
    room.start(offsets=[11])
    room.record({"rows": offset(12)}, ends={"rows": offset(13)}, batch=8)
    assert room.look().position == 12

    room.commit(8)

    assert room.look().position == 13
