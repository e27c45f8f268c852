"""Rows of a person are erased between the runs of streams: writers and readers lose nothing and get nothing twice.

Every test run has a reader that passes a removal of rows (`test_row_retention.py`), and erasures that wait for
readers without Spark (`integration/erasure`).
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from tests.fixtures.erasing import drop_all_tables
from tests.fixtures.workshop import Workshop
from tests.spark.maintenance.test_maintenance import ids
from tests.spark.maintenance.test_row_retention import stored_ids

from sluice.declarations.load_declarations import load_declarations
from sluice.erasure.erase_table import Erased, TableErasure
from sluice.erasure.observe_erasure import ErasureObserver
from sluice.erasure.row_test import condition_of
from sluice.erasure.searched_files import FileSearch
from sluice.errors import UnhealthyError
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.events import Actor
from sluice.ledger.run_values import DesiredState
from sluice.settings import Settings
from sluice.sources.source_heads import SourceHeads
from sluice.supervision.source_watch import has_nothing_to_do, observe_increment
from sluice.tables.catalog import open_catalog

pytestmark = [pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")]


@pytest.fixture(autouse=True, scope="module")
def no_tables_of_earlier_tests(settings: Settings) -> None:
    """Nothing but the tables of these tests is in the catalog."""
    drop_all_tables(open_catalog(settings))


def erase(workshop: Workshop, table: str, text: str) -> Erased:
    """Erase rows as the command does."""
    observer = ErasureObserver(
        settings=workshop.settings,
        ledger=workshop.ledger,
        declarations=load_declarations(workshop.folder),
        catalog=workshop.catalog,
    )
    condition = condition_of(text, workshop.table(table).schema(), table=table)
    actor = Actor.person("a test")
    return TableErasure(observer=observer, name=table, search=FileSearch(test=condition), actor=actor).erase()


def streams(workshop: Workshop) -> tuple[str, str, str]:
    """A stream that fills a table from an inbox, and one that copies that; the names of the three tables."""
    names = ("inbox", "middle", "copies")
    tables = [
        workshop.declare_table(name, {"id": "long", "name": "string"}, maintenance={"expiry": None}) for name in names
    ]
    copying(workshop, f"w{workshop.namespace}", *tables[:2])
    copying(workshop, f"r{workshop.namespace}", *tables[1:])
    return tables[0], tables[1], tables[2]


def copying(workshop: Workshop, stream: str, source: str, target: str, **output: Any) -> None:
    """Declare a stream that copies a table into another one, and is stopped."""
    workshop.declare_stream(
        stream,
        sql="SELECT id, name FROM records",
        inputs={"records": {"stream": {"iceberg": {"table": source, "on_overwrite": "skip"}}}},
        outputs={"rows": {"iceberg": {"table": target, **output}}},
    )
    set_desired_state(workshop.ledger, stream, DesiredState.STOPPED, requested_by="a test")


def put(workshop: Workshop, table: str, *rows: int) -> None:
    """Append rows; even ones are of Ann."""
    workshop.append(table, [{"id": one, "name": "Bob" if one % 2 else "Ann"} for one in rows])


@pytest.mark.full  # every run: a removal of old rows (`test_row_retention.py`)
def test_streams_go_past_an_erasure_without_loss_or_double(workshop: Workshop) -> None:
    inbox, middle, copies = streams(workshop)
    writer, reader = f"w{workshop.namespace}", f"r{workshop.namespace}"
    put(workshop, inbox, 1, 2, 3)
    workshop.run(writer, is_recorded=True)
    put(workshop, inbox, 4, 5)
    workshop.run(writer, is_recorded=True)
    workshop.run(reader, is_recorded=True)
    assert (ids(workshop, middle), ids(workshop, copies)) == ([1, 2, 3, 4, 5], [1, 2, 3, 4, 5])

    with pytest.raises(UnhealthyError, match=re.escape(f"{reader} (input records) has read up to snapshot")):
        erase(workshop, middle, "name = 'Ann'")
    assert ids(workshop, middle) == [1, 3, 5]
    assert {2, 4} <= set(stored_ids(workshop, middle))
    loaded = workshop.stream(reader)
    seen = observe_increment(workshop.ledger, SourceHeads(workshop.settings), loaded)
    assert (seen.lag.undone, seen.must_report) == (0, True)
    assert not has_nothing_to_do(seen)

    passed = workshop.run(reader, is_recorded=True)
    assert all(batch.skipped_input == {} for batch in passed.batches)
    erase(workshop, middle, "name = 'Ann'")
    assert stored_ids(workshop, middle) == [1, 3, 5]
    assert len(workshop.table(middle).snapshots()) == 1
    assert not observe_increment(workshop.ledger, SourceHeads(workshop.settings), loaded).must_report

    put(workshop, inbox, 6, 7)
    workshop.run(writer, is_recorded=True)
    last = workshop.run(reader, is_recorded=True)
    assert sum(batch.input_rows for batch in last.batches) == 2
    assert ids(workshop, middle) == [1, 3, 5, 6, 7]
    assert ids(workshop, copies) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.full  # every run: one that appends
def test_a_writer_that_merges_goes_on(workshop: Workshop) -> None:
    inbox, middle, _ = streams(workshop)
    stream = f"m{workshop.namespace}"
    merged = workshop.declare_table("merged", {"id": "long", "name": "string"}, maintenance={"expiry": None})
    copying(workshop, stream, inbox, merged, mode="merge", keys=["id"])
    assert middle != merged
    for one in (1, 2, 3):
        put(workshop, inbox, one)
        workshop.run(stream, is_recorded=True)
    workshop.append(inbox, [{"id": 3, "name": "Ann"}, {"id": 2, "name": "Bob"}])
    workshop.run(stream, is_recorded=True)
    erase(workshop, merged, "id = 3")
    assert ids(workshop, merged) == [1, 2]
    assert set(stored_ids(workshop, merged)) == {1, 2}
    workshop.append(inbox, [{"id": 1, "name": "Eve"}, {"id": 5, "name": "Eve"}])
    workshop.run(stream, is_recorded=True)
    assert [(row["id"], row["name"]) for row in workshop.rows(merged)] == [(1, "Eve"), (2, "Bob"), (5, "Eve")]


@pytest.mark.full  # every run: one that has begun
def test_a_reader_that_starts_after_an_erasure_gets_every_row_once(workshop: Workshop) -> None:
    inbox, middle, copies = streams(workshop)
    writer, reader = f"w{workshop.namespace}", f"r{workshop.namespace}"
    for one in range(1, 5):
        put(workshop, inbox, one)
        workshop.run(writer, is_recorded=True)
    erase(workshop, middle, "name = 'Ann'")
    put(workshop, inbox, 5)
    workshop.run(writer, is_recorded=True)
    workshop.run(reader, is_recorded=True)
    assert ids(workshop, copies) == [1, 3, 5]
    workshop.run(reader, is_recorded=True)
    assert ids(workshop, copies) == [1, 3, 5]

    erase(workshop, copies, "id = 3")
    put(workshop, inbox, 9)
    workshop.run(writer, is_recorded=True)
    workshop.run(reader, is_recorded=True)
    assert ids(workshop, copies) == [1, 5, 9]
    assert workshop.spark.table(f"{workshop.settings.catalog.name}.{copies}").count() == 3


@pytest.mark.full  # every run has the files (`test_parquet_rows.py`)
def test_a_file_of_every_kind_of_value_is_read_by_spark_as_before(workshop: Workshop) -> None:
    types = {
        "id": "long",
        "name": "string",
        "price": "decimal(9,2)",
        "seen": "timestamptz",
        "day": "date",
    }
    table = workshop.declare_table("types", types, partitioning=[{"column": "day", "transform": "month"}])
    name = f"{workshop.settings.catalog.name}.{table}"
    more = "tags array<string>, counts map<string, long>, inside struct<deep: struct<x: double>>"
    workshop.spark.sql(f"ALTER TABLE {name} ADD COLUMNS ({more})")
    workshop.spark.sql(
        f"""INSERT INTO {name} SELECT id, IF(id % 3 = 0, 'Ann', 'Bob'), id + 0.25, timestamp_seconds(id),
        date_add(date'2026-01-30', cast(id AS int) % 4), IF(id % 5 = 0, null, array('a', null)),
        IF(id % 7 = 0, null, map('k', id)), IF(id % 2 = 0, null, named_struct('deep', named_struct('x', double('NaN'))))
        FROM range(200)"""  # noqa: S608  # our own name
    )
    workshop.spark.sql(f"ALTER TABLE {name} RENAME COLUMN name TO called")
    before = workshop.spark.sql(f"SELECT * FROM {name} WHERE called <> 'Ann' ORDER BY id").toPandas()  # noqa: S608
    erase(workshop, table, "called = 'Ann'")
    workshop.spark.sql(f"REFRESH TABLE {name}")
    after = workshop.spark.sql(f"SELECT * FROM {name} ORDER BY id").toPandas()  # noqa: S608  # our own name
    assert repr(before.to_dict("records")) == repr(after.to_dict("records"))
    assert len(after) == 133
