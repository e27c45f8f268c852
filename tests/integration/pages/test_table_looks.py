"""What the pages learn of a real table by one request to its catalog, and what they do when the catalog is silent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table
from pyiceberg.types import LongType, StringType

from sluice.errors import LakehouseError
from sluice.pages import table_looks
from sluice.pages.table_looks import KEPT_SECONDS, MOST_AGE_SECONDS, PROBLEM_KEPT_SECONDS, TableLooks, look_at

NAME = "silver.quakes"
NOTHING: Any = None
SCHEMA = pa.schema([("id", pa.string()), ("place", pa.struct([("name", pa.string())])), ("at", pa.date32())])


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """pyiceberg's own catalog in a file."""
    opened = SqlCatalog("files", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{tmp_path}")
    opened.create_namespace("silver")
    yield opened
    opened.close()


@pytest.fixture
def table(catalog: Catalog) -> Table:
    """A table without a row."""
    return catalog.create_table(NAME, SCHEMA)


def append(table: Table, *ids: str) -> None:
    """Commit rows."""
    rows = [{"id": one} for one in ids]
    table.append(pa.Table.from_pylist(rows, schema=table.schema().as_arrow()))


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class Opening:
    """Connects to a catalog, counts how often, and refuses while it is away."""

    def __init__(self, catalog: Catalog) -> None:
        self.catalog, self.times, self.is_away = catalog, 0, False

    def __call__(self, _: Any) -> Catalog:
        self.times += 1
        if self.is_away:
            raise LakehouseError("Cannot open the catalog: Connection refused.")
        return self.catalog


def test_rows_and_freshness_are_there_from_the_first_commit_on(table: Table) -> None:
    empty = look_at(table)
    assert (empty.exists, empty.rows, empty.snapshot_id, empty.fresh_at) == (True, 0, None, None)
    append(table, "a", "b")

    seen = look_at(table)

    newest = table.current_snapshot()
    assert newest is not None
    assert (seen.rows, seen.files, seen.snapshot_id, seen.operation) == (2, 1, newest.snapshot_id, "append")
    assert seen.fresh_at == seen.committed_at
    assert seen.fresh_at is not None
    assert seen.fresh_at.timestamp() * 1000 == newest.timestamp_ms


def test_a_commit_without_a_row_makes_no_table_fresher(table: Table) -> None:
    """So a stream opens its output, and publishes a batch of which no row was good."""
    append(table, "a")
    written = look_at(table)
    with table.transaction() as transaction, transaction.update_snapshot().fast_append():
        pass
    empty = look_at(table)
    table.delete("id = 'a'")
    deleted = look_at(table)

    assert empty.snapshot_id != written.snapshot_id
    assert (empty.fresh_at, empty.rows) == (written.fresh_at, 1)
    assert (deleted.fresh_at, deleted.rows) == (deleted.committed_at, 0)


def test_columns_have_their_types_and_those_that_a_change_added_are_named(table: Table) -> None:
    append(table, "a")
    with table.update_schema() as update:
        update.add_column(("place", "felt"), LongType(), doc="how many people felt it")
        update.add_column("source", StringType())
    append(table, "b")

    columns = {column.path: column for column in look_at(table).columns}

    assert {path: column.type for path, column in columns.items()} == {
        "id": "string", "place": "struct", "place.name": "string", "place.felt": "long", "at": "date",
        "source": "string",
    }  # fmt: skip
    assert columns["place.felt"].doc == "how many people felt it"
    assert [path for path, column in columns.items() if column.added_in is not None] == ["place.felt", "source"]
    newest = table.current_snapshot()
    assert newest is not None
    assert columns["source"].added_at is not None
    assert columns["source"].added_at.timestamp() * 1000 == newest.timestamp_ms
    assert columns["id"].added_at is None


def test_partitions_are_named_as_they_are_declared(table: Table) -> None:
    with table.update_spec() as update:
        update.add_field("at", "month", "at_month")
        update.add_field("id", "bucket[8]", "id_bucket")
        update.add_identity("id")

    assert look_at(table).partitions == ("month(at)", "bucket[8](id)", "id")


def test_a_look_is_kept_for_a_minute(catalog: Catalog, table: Table) -> None:
    clock, opening = Clock(), Opening(catalog)
    looks = TableLooks(settings=NOTHING, open=opening, clock=clock)
    assert looks.look(NAME).rows == 0
    append(table, "a")

    assert looks.look(NAME).rows == 0
    clock.seconds += KEPT_SECONDS
    assert looks.look(NAME).rows == 1
    assert opening.times == 2


def test_a_table_that_the_catalog_does_not_have_is_no_problem(catalog: Catalog) -> None:
    looks = TableLooks(settings=NOTHING, open=Opening(catalog))

    assert (looks.look("silver.no_such").exists, looks.look("silver.no_such").problem) == (False, "")


def test_many_tables_are_looked_at_by_one_connection(catalog: Catalog, table: Table) -> None:
    clock, opening = Clock(), Opening(catalog)
    looks = TableLooks(settings=NOTHING, open=opening, clock=clock)

    known = looks.known([NAME, "silver.no_such"])

    assert {name: look.exists for name, look in known.items()} == {NAME: True, "silver.no_such": False}
    assert looks.known([NAME, "silver.no_such"]) == known
    assert opening.times == 1


def test_a_catalog_that_is_away_is_a_problem_of_every_table_and_asked_once(catalog: Catalog, table: Table) -> None:
    clock, opening = Clock(), Opening(catalog)
    looks = TableLooks(settings=NOTHING, open=opening, clock=clock)
    opening.is_away = True

    known = looks.known([NAME, "silver.other"])

    assert {look.problem for look in known.values()} == {"Cannot open the catalog: Connection refused."}
    assert looks.look(NAME).problem == "Cannot open the catalog: Connection refused."
    assert opening.times == 1
    opening.is_away = False
    clock.seconds += PROBLEM_KEPT_SECONDS - 1
    assert not looks.look(NAME).exists
    clock.seconds += 1
    assert looks.look(NAME).exists


def test_the_page_of_all_tables_does_not_wait_for_a_catalog_that_hangs(
    catalog: Catalog, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_looks, "FIRST_WAIT_SECONDS", 0.05)
    clock, answers, opening = Clock(), Event(), Opening(catalog)

    def hang(settings: Any) -> Catalog:
        if clock.seconds:
            answers.wait()
        return opening(settings)

    looks = TableLooks(settings=NOTHING, open=hang, clock=clock)
    looks.look(NAME)
    clock.seconds = KEPT_SECONDS

    assert looks.known([NAME, "silver.other"]) == {NAME: looks._kept[NAME][1]}, "the older look is shown meanwhile"
    clock.seconds = MOST_AGE_SECONDS
    assert looks.known([NAME]) == {}, "too old to be shown"
    answers.set()
