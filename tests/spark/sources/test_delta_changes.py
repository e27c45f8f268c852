"""A Delta table that changes under its reader: Delta's own source stops the stream, with the schemas or the ids."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from tests.fixtures.workshop import Workshop

from sluice.ledger.batches import BatchObservation
from sluice.ledger.source_schemas import FieldChange, source_schemas
from sluice.settings import FilesConnection

pytestmark = pytest.mark.full  # the same questions of Iceberg are in every run


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """A Delta table, and a stream that copies it."""

    workshop: Workshop
    folder: Path
    stream: str

    def append(self, sql: str, *, merges: bool = False) -> None:
        """Append rows as another writer does. merges: whether with new columns."""
        writer = self.workshop.spark.sql(sql).write.format("delta").mode("append")
        writer.option("mergeSchema", str(merges).lower()).save(self.folder.as_uri())

    def rows(self) -> list[int]:
        """The ids in the target."""
        return [row["id"] for row in self.workshop.rows("target")]


def lake_of(workshop: Workshop, place: Path, **how: Any) -> Lake:
    connection = FilesConnection(kind="files", root=place.as_uri())
    connections = {**workshop.settings.connections, "lake": connection}
    workshop = replace(workshop, settings=workshop.settings.model_copy(update={"connections": connections}))
    lake = Lake(workshop=workshop, folder=place / "t", stream=f"s{workshop.namespace}")
    lake.append("SELECT 1L id")
    workshop.declare_stream(
        lake.stream,
        sql="SELECT id FROM rows",
        inputs={"rows": {"stream": {"delta": {"connection": "lake", "path": "t"}}}},
        outputs={"main": {"iceberg": {"table": workshop.declare_table("target", {"id": "long"})}}},
        **how,
    )
    return lake


def test_a_new_column_stops_a_running_stream_and_the_next_start_reads_on(workshop: Workshop, tmp_path: Path) -> None:
    lake = lake_of(workshop, tmp_path, mode="continuous", trigger={"processing_time": "1 second"})

    def stop_when(batch: BatchObservation) -> bool:
        if batch.input_rows and batch.key.batch == 0:
            lake.append("SELECT 2L id, 'red' colour", merges=True)
        return batch.key.batch > 0

    with pytest.raises(StreamingQueryException, match=r"DELTA_SCHEMA_CHANGED.*\n(.*\n)*-- colour: string"):
        lake.workshop.run(lake.stream, stop_when=stop_when)
    lake.workshop.run(lake.stream, stop_when=lambda batch: batch.key.batch > 0)

    assert lake.rows() == [1, 2]
    (seen,) = source_schemas(workshop.ledger, lake.stream)
    assert seen.changes == (FieldChange(field="colour", now="string"),)


def test_a_table_that_was_created_again_is_not_taken_for_the_old_one(workshop: Workshop, tmp_path: Path) -> None:
    lake = lake_of(workshop, tmp_path)
    lake.workshop.run(lake.stream)
    shutil.rmtree(lake.folder)
    for number in (7, 8):
        lake.append(f"SELECT {number}L id")  # our own number

    with pytest.raises(StreamingQueryException, match="DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE"):
        lake.workshop.run(lake.stream)

    assert lake.rows() == [1]
