"""What lies unread in a real Delta table, by its log and the offsets that Delta's own source writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from tests.fixtures.streaming import drained, open_declared

from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.settings import FilesConnection, Settings
from sluice.sources.source_heads import unread_commits


@pytest.mark.full
def test_files_that_no_batch_has_read(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    lake = FilesConnection(kind="files", root=(tmp_path / "lake").as_uri())
    settings = settings.model_copy(update={"connections": {"lake": lake}})
    table = f"{lake.root}/numbers"
    spark.range(3).repartition(3).write.format("delta").save(table)
    source = {"delta": {"connection": "lake", "path": "numbers", "max_files_per_batch": 1}}
    checkpoint = tmp_path / "checkpoint"

    def drain() -> None:
        drained(spark, open_declared(spark, settings, stream=source), tmp_path, checkpoint=checkpoint.name)

    def offsets() -> list[Any]:
        """The offset at the end of each batch, as the ledger keeps it."""
        files = sorted((file for file in (checkpoint / "offsets").glob("[0-9]*")), key=lambda file: int(file.name))
        return [json.loads(file.read_text().splitlines()[-1]) for file in files]

    def unread(offset: Any) -> int | None:
        lag = unread_commits(offset, table=open_checkpoint_files(table, settings.object_store), since=None)
        assert lag is not None
        return lag.files

    assert unread(None) == 3
    drain()
    assert [unread(offset) for offset in offsets()] == [1, 1, 0], "of the first snapshot it is known that some are left"

    for first in (3, 5):
        spark.range(first, first + 2).coalesce(1).write.format("delta").mode("append").save(table)
    at_rest = offsets()[-1]
    assert (unread(at_rest), unread(None)) == (2, 5)
    drain()
    assert [unread(offset) for offset in offsets()[3:]] == [1, 0]

    spark.sql(f"OPTIMIZE delta.`{table}`")
    assert unread(offsets()[-1]) == 0, "a compaction brings no row"
    assert unread(None) == 1
    spark.sql(f"DELETE FROM delta.`{table}`")  # noqa: S608  # ours
    assert unread(offsets()[-1]) == 1, "its reader has to fail at it"
