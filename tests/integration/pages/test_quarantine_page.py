"""The page of a quarantine reads a real table: its newest rows, from few files, and within the time of a person."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from tests.fixtures.deployment import deployment_environment
from tests.unit.pages.test_quarantine_page import NOON, declared

from sluice.declarations.loaded_declarations import quarantine_declaration
from sluice.errors import LakehouseError
from sluice.pages.quarantine_page import SHOWN_SAMPLES, QuarantinePage, QuarantineReading
from sluice.pages.table_looks import MOST_LOOKS, BoundedLooks
from sluice.settings import Settings, load_settings
from sluice.tables.declared_tables import create_or_evolve_table
from sluice.tables.newest_rows import MOST_FILES, MOST_MANIFESTS

STREAM = declared("email")
NAME = STREAM.quarantine_table
NOTHING: Any = None


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """pyiceberg's own catalog in a file."""
    opened = SqlCatalog("files", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    yield opened
    opened.close()


@pytest.fixture
def table(catalog: Catalog) -> Table:
    """The quarantine, created as `sluice table create` does."""
    create_or_evolve_table(catalog, quarantine_declaration(STREAM))
    return catalog.load_table(NAME)


def look(catalog: Catalog) -> QuarantinePage:
    """The page of the quarantine."""
    return QuarantineReading(settings=NOTHING, open=lambda _: catalog).load(STREAM, {})


def quarantine(table: Table, *batches: int, rows: int = 1, at: datetime | None = None) -> None:
    """Append batches in one commit, each of some rows and a minute after the one before."""
    table.append(rows_of(table, *batches, rows=rows, at=at))


def rows_of(table: Table, *batches: int, rows: int = 1, at: datetime | None = None) -> pa.Table:
    """The rows of some batches."""
    found = [
        {
            "stream": STREAM.stream,
            "generation": 1,
            "batch": batch,
            "reason": f"row {number} of batch {batch}",
            "position": None,
            "payload": f'{{"id": {number}, "email": "ann@x.org"}}',
            "refused_at": at or NOON + timedelta(minutes=batch),
        }
        for batch in batches
        for number in range(rows)
    ]
    return pa.Table.from_pylist(found, schema=table.schema().as_arrow())


def data_file_of(table: Table) -> Path:
    """The only data file of a table."""
    (task,) = table.scan().plan_files()
    return Path(task.file.file_path.removeprefix("file://"))


def batches_in(page: QuarantinePage) -> list[str]:
    """The batches that a page shows."""
    return [sample.batch for sample in page.samples]


def test_the_newest_records_are_shown_masked_whatever_the_order_of_commits(catalog: Catalog, table: Table) -> None:
    for batch in (3, 1, 2):
        quarantine(table, batch)

    page = look(catalog)

    assert batches_in(page) == ["1:3", "1:2", "1:1"]
    assert {sample.value for sample in page.samples} == {'{"id": 0, "email": "••• (text)"}'}
    assert [sample.refused_at for sample in page.samples] == [NOON + timedelta(minutes=batch) for batch in (3, 2, 1)]
    assert (page.has_table, page.is_cut, page.masked_columns) == (True, False, ("email",))


def test_a_table_that_is_missing_or_empty_is_no_error(catalog: Catalog) -> None:
    assert look(catalog).has_table is False
    create_or_evolve_table(catalog, quarantine_declaration(STREAM))

    page = look(catalog)

    assert (page.has_table, page.samples, page.is_cut) == (True, (), False)


def test_of_a_file_of_many_times_the_newest_rows_are_found(catalog: Catalog, table: Table) -> None:
    quarantine(table, *(batch * 3 % 1_001 for batch in range(1, 1_001)))  # compaction leaves no order of time

    assert batches_in(look(catalog)) == [f"1:{batch}" for batch in range(1_000, 1_000 - SHOWN_SAMPLES, -1)]


def test_of_a_large_batch_only_as_many_rows_are_taken_as_are_shown(catalog: Catalog, table: Table) -> None:
    quarantine(table, 1, rows=50_000)
    file = data_file_of(table)
    pq.write_table(pq.read_table(file), file, row_group_size=1_000)
    second = pq.ParquetFile(file).metadata.row_group(1).column(0)
    with file.open("r+b") as opened:  # who reads on gets an error
        opened.seek(min(second.data_page_offset, second.dictionary_page_offset or second.data_page_offset))
        opened.write(b"\0" * 10_000)
    quarantine(table, 2)

    page = look(catalog)

    assert batches_in(page) == ["1:2", *["1:1"] * (SHOWN_SAMPLES - 1)]
    assert page.is_cut is False


def test_months_are_read_from_the_newest_on(catalog: Catalog, table: Table) -> None:
    quarantine(table, 1, rows=SHOWN_SAMPLES - 1, at=NOON)
    quarantine(table, 2, rows=5, at=NOON - timedelta(days=90))
    quarantine(table, 3, at=NOON + timedelta(days=40))

    assert batches_in(look(catalog)) == ["1:3", *["1:1"] * (SHOWN_SAMPLES - 1)]


def test_files_and_manifests_are_read_up_to_a_bound(
    catalog: Catalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    for batch in (0, 4, 1, 3, 2):
        quarantine(table, batch)
    monkeypatch.setattr("sluice.tables.newest_rows.MOST_FILES", 2)

    page = look(catalog)

    assert (batches_in(page), page.is_cut) == (["1:4", "1:3"], True)
    monkeypatch.setattr("sluice.tables.newest_rows.MOST_FILES", MOST_FILES)
    monkeypatch.setattr("sluice.tables.newest_rows.MOST_MANIFESTS", 3)
    page = look(catalog)
    assert (batches_in(page), page.is_cut) == (["1:3", "1:2", "1:1"], True), "those that were added last"
    monkeypatch.setattr("sluice.tables.newest_rows.MOST_MANIFESTS", MOST_MANIFESTS)
    monkeypatch.setattr("sluice.tables.newest_rows.MOST_MANIFEST_BYTES", 1)
    assert batches_in(look(catalog)) == ["1:2"], "one manifest is always read"


def test_a_file_that_cannot_be_read_is_named_by_its_table(catalog: Catalog, table: Table, tmp_path: Path) -> None:
    quarantine(table, 1)
    file = data_file_of(table)
    whole = pq.read_table(file)
    file.write_bytes(b"PAR1 no parquet PAR1")
    with pytest.raises(LakehouseError, match=rf"A data file of {NAME} cannot be read"):
        look(catalog)
    file.unlink()
    with pytest.raises(LakehouseError, match=rf"Cannot read the newest rows of {NAME}"):
        look(catalog)
    pq.write_table(whole, file)
    assert batches_in(look(catalog)) == ["1:1"]


@pytest.fixture
def silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """Settings whose catalog takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []
        is_over = Event()

        def take() -> None:
            while not is_over.is_set():
                taken.append(server.accept()[0])

        taking = Thread(target=take, daemon=True)
        taking.start()
        environment = deployment_environment(tmp_path, pipelines=tmp_path)
        environment["SLUICE_CATALOG__URI"] = f"http://127.0.0.1:{server.getsockname()[1]}"
        environment["SLUICE_CATALOG__OAUTH2_SERVER_URI"] = f"{environment['SLUICE_CATALOG__URI']}/v1/oauth/tokens"
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield load_settings()
        is_over.set()
        socket.create_connection(server.getsockname()).close()
        taking.join()
        for connection in taken:
            connection.close()


def test_a_catalog_that_does_not_answer_keeps_nobody_waiting(silent: Settings) -> None:
    reading = QuarantineReading(settings=silent, looks=BoundedLooks(at="quarantines", seconds=0.5))
    begun = time.monotonic()
    for _ in range(MOST_LOOKS):
        with pytest.raises(LakehouseError, match=r"have not answered within 0\.5 seconds"):
            reading.load(STREAM, {})

    with pytest.raises(LakehouseError, match=f"{MOST_LOOKS} other looks at quarantines have not ended yet"):
        reading.load(STREAM, {})

    assert time.monotonic() - begun < 30


def test_a_look_that_ended_makes_room_for_the_next(catalog: Catalog, table: Table) -> None:
    quarantine(table, 1)
    reading = QuarantineReading(settings=NOTHING, open=lambda _: catalog)

    assert [len(reading.load(STREAM, {}).samples) for _ in range(2 * MOST_LOOKS)] == [1] * 2 * MOST_LOOKS
