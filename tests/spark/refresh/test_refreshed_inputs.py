"""A shadow ends where the stream has read: in the log of files, and behind the windows that the stream has closed.

Every test run has a shadow that ends in a table (`test_refreshes.py`) and in a topic (`test_refreshed_topics.py`), and
removes no rows while a refresh reads them (`integration/maintenance/test_row_retention.py`).
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.fixtures.refreshes import ROWS, refresh, run_wrong_copy, wrong
from tests.fixtures.workshop import Workshop

from sluice.errors import UnpublishableError
from sluice.publication.crash_points import CrashPoint
from sluice.settings import FilesConnection
from sluice.tables.table_observation import RemovedRows

NOON = datetime(2013, 1, 1, 12, tzinfo=UTC)
WINDOWS = """
    from pyspark.sql import functions as fn

    def transform(rows):
        hours = rows.withWatermark("at", "1 hour").groupBy(fn.window("at", "1 hour").alias("hour"))
        return hours.agg(fn.count("*").alias("n")).select(fn.col("hour.start").alias("start"), "n")
"""


@pytest.mark.full
def test_files_that_the_stream_has_not_read_come_after_the_refresh(workshop: Workshop, tmp_path: Path) -> None:
    folder, name = tmp_path / "in", f"s{workshop.namespace}"
    folder.mkdir()
    here = FilesConnection(kind="files", root=folder.as_uri())
    connections = {**workshop.settings.connections, "here": here}
    files = replace(workshop, settings=workshop.settings.model_copy(update={"connections": connections}))
    target = files.declare_table("target", {"id": "long", "word": "string"})
    source = {"connection": "here", "format": "text", "max_files_per_batch": 1}
    files.declare_stream(
        name,
        sql="SELECT CAST(value AS BIGINT) AS id, '?' AS word FROM lines",
        inputs={"lines": {"stream": {"files": source}}},
        outputs={"main": {"iceberg": {"table": target}}},
    )
    for number in (1, 2):
        (folder / f"{number}.txt").write_text(f"{number}\n")
    assert len(files.run_supervised(name)) == 2
    (files.folder / f"{name}.sql").write_text("SELECT CAST(value AS BIGINT) AS id, 'w' AS word FROM lines")
    (folder / "3.txt").write_text("3\n")

    refresh(files, name)

    assert files.rows("target") == [{"id": number, "word": "w"} for number in (1, 2)]
    files.run_supervised(name)
    (folder / "4.txt").write_text("4\n")
    files.run_supervised(name)
    assert files.rows("target") == [{"id": number, "word": "w"} for number in (1, 2, 3, 4)]


@pytest.mark.full
def test_files_whose_entries_spark_has_compacted_are_found(workshop: Workshop, tmp_path: Path) -> None:
    folder, name = tmp_path / "in", f"s{workshop.namespace}"
    folder.mkdir()
    here = FilesConnection(kind="files", root=folder.as_uri())
    connections = {**workshop.settings.connections, "here": here}
    files = replace(workshop, settings=workshop.settings.model_copy(update={"connections": connections}))
    target = files.declare_table("target", {"id": "long", "word": "string"})
    columns = [{"name": "id", "type": "long"}]
    source = {"connection": "here", "format": "parquet", "columns": columns, "max_files_per_batch": 1}
    files.declare_stream(
        name,
        sql="SELECT id, '?' AS word FROM lines",
        inputs={"lines": {"stream": {"files": source}}},
        outputs={"main": {"iceberg": {"table": target}}},
    )
    for number in range(4):
        pq.write_table(pa.table({"id": [number]}), folder / f"{number}.parquet")
    assert len(files.run_supervised(name)) == 4
    log = files.checkpoint(name) / "sources" / "0"
    entries = [line for number in range(4) for line in (log / str(number)).read_text().splitlines()[1:]]
    for file in (*log.glob("[0-9]*"), *log.glob(".[0-9]*")):
        file.unlink()
    (log / "9.compact").write_text("\n".join(["v1", *entries]))  # as Spark leaves it after ten batches
    (files.folder / f"{name}.sql").write_text("SELECT id, 'w' AS word FROM lines")

    refresh(files, name)

    assert files.rows("target") == [{"id": number, "word": "w"} for number in range(4)]


@pytest.mark.full
def test_the_windows_that_the_stream_has_closed_are_closed_in_the_shadow(workshop: Workshop) -> None:
    name = f"s{workshop.namespace}"
    source = workshop.declare_table("source", {"id": "long", "at": "timestamptz"})
    target = workshop.declare_table("target", {"start": "timestamptz", "n": "long"})
    workshop.declare_stream(
        name,
        python=WINDOWS,
        inputs={"rows": {"stream": {"iceberg": {"table": source}}}},
        outputs={"main": {"iceberg": {"table": target}}},
    )
    workshop.append("source", [{"id": n, "at": NOON + timedelta(hours=hours)} for n, hours in enumerate((0, 0.5, 3))])
    workshop.run_supervised(name)
    closed = [{"start": NOON, "n": 2}]
    assert workshop.rows("target") == closed
    workshop.append("source", [{"id": 9, "at": NOON + timedelta(hours=9)}])  # which would close another one

    refresh(workshop, name)

    assert workshop.rows("target") == closed
    workshop.run_supervised(name)
    assert workshop.rows("target") == [*closed, {"start": NOON + timedelta(hours=3), "n": 1}]


@pytest.mark.full
def test_a_removal_of_old_rows_since_the_refresh_began_keeps_the_content(workshop: Workshop) -> None:
    """It was planned before, and the shadow may have read none of what went."""
    name = run_wrong_copy(workshop)
    removed = RemovedRows(column="at", before=NOON)

    def remove(point: CrashPoint) -> None:
        if point is CrashPoint.BUILT:
            with workshop.table(workshop.table_name("source")).transaction() as change:
                change.set_properties(dict(removed.entries()))

    with pytest.raises(UnpublishableError, match="has changed since the refresh began"):
        refresh(workshop, name, reached=remove)
    assert workshop.rows("target") == wrong(ROWS)
