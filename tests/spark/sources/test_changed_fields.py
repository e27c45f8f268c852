"""A source table that evolves while a stream reads it: the batch after the change is read with a new plan."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.table import Table
from pyiceberg.types import DecimalType, DoubleType, FloatType, IntegerType, LongType
from tests.fixtures.workshop import Workshop

from sluice.errors import SchemaError
from sluice.ledger.batches import BatchObservation
from sluice.ledger.events import EventSubject, recent_events
from sluice.ledger.source_schemas import FieldChange, source_schemas

COLUMNS = {"id": "long", "n": "int", "d": "decimal(9, 2)", "f": "float"}
FIRST = {"id": 1, "n": 5, "d": Decimal("1.50"), "f": 0.5}


class Evolving:
    """A continuous stream that copies readings; its source is changed and written after its first batch."""

    def __init__(self, workshop: Workshop, *, sql: str = "SELECT id, n, d, f FROM r", **target: str) -> None:
        self.workshop, self.stream = workshop, f"s{workshop.namespace}"
        self.source = workshop.declare_table("bronze", COLUMNS, required=["id", "n"])
        self.target = workshop.declare_table("silver", COLUMNS | target)
        workshop.declare_stream(
            self.stream,
            sql=sql,
            inputs={"r": {"stream": {"iceberg": {"table": self.source}}}},
            outputs={"main": {"iceberg": {"table": self.target}}},
            mode="continuous",
            trigger={"processing_time": "1 second"},
        )
        self.append(FIRST)

    def append(self, row: dict[str, Any]) -> None:
        """Append a reading as another writer does."""
        opened = self.workshop.table(self.source)
        opened.append(pa.Table.from_pylist([row], schema=opened.schema().as_arrow()))

    def run(self, change: Callable[[Table], None], row: dict[str, Any]) -> list[dict[str, Any]]:
        """Run until the second reading is copied; what the target holds."""
        read: dict[int, int] = {}  # a start reports again what an earlier plan has published

        def stop_when(batch: BatchObservation) -> bool:
            if batch.input_rows and not read:
                change(self.workshop.table(self.source))
                self.append(row)
            read[batch.key.batch] = batch.input_rows
            return sum(read.values()) >= 2

        self.workshop.run(self.stream, stop_when=stop_when)
        return self.workshop.rows(self.target)


def changes_seen(workshop: Workshop, stream: str) -> list[str]:
    """What the stream did about each change of a schema, newest first."""
    events = recent_events(workshop.ledger, EventSubject.STREAM, stream, limit=50)
    return [event.evidence["answer"] for event in events if event.action == "see_schema"]


@pytest.mark.full  # every run: a change within a run
def test_a_change_between_two_runs_is_an_event_of_the_next_start_and_an_added_column_is_one(
    workshop: Workshop,
) -> None:
    evolving = Evolving(workshop)

    def add(table: Table) -> None:
        with table.update_schema() as update:
            update.add_column("colour", LongType())

    second = FIRST | {"id": 2}
    assert evolving.run(add, second) == [FIRST, second]
    _optional(workshop.table(evolving.source))
    evolving.append(FIRST | {"id": 3, "n": None})
    workshop.run(evolving.stream, stop_when=lambda batch: batch.input_rows > 0)

    assert changes_seen(workshop, evolving.stream) == [
        "A run that starts now is planned with it, and stops if it does not fit.",
        "What is new in it is read from the next start on.",
    ]


def _optional(table: Table) -> None:
    with table.update_schema() as update:
        update.make_column_optional("n")


def _wide_decimal(table: Table) -> None:
    with table.update_schema() as update:
        update.update_column("d", DecimalType(20, 2))


def _dropped_and_added(table: Table) -> None:
    with table.update_schema() as update:
        update.delete_column("f")
    with table.update_schema() as update:
        update.add_column("f", FloatType())


def _wide_integer(table: Table) -> None:
    with table.update_schema() as update:
        update.update_column("n", LongType())


def test_a_column_that_becomes_optional_gives_null_and_not_zero(workshop: Workshop) -> None:
    second = {"id": 2, "n": None, "d": Decimal("1.50"), "f": 0.5}
    evolving = Evolving(workshop)
    assert evolving.run(_optional, second) == [FIRST, second]

    (seen,) = source_schemas(workshop.ledger, evolving.stream)
    change = FieldChange(field="n", was="required int, id 2", now="optional int, id 2")
    assert (seen.source, seen.changes) == (f"table {evolving.source}", (change,))
    assert changes_seen(workshop, evolving.stream) == ["The run plans again before its next batch."]


@pytest.mark.full  # one question for each kind; every run asks the first one
def test_a_column_that_was_dropped_and_added_again_is_read_by_its_new_id(workshop: Workshop) -> None:
    second = {"id": 2, "n": 5, "d": Decimal("1.50"), "f": 0.25}
    found = Evolving(workshop).run(_dropped_and_added, second)
    assert [row["f"] for row in found] == [0.5, 0.25]


@pytest.mark.full  # as above
@pytest.mark.parametrize(
    ("change", "column", "value"),
    [(_wide_decimal, "d", Decimal("123456789012.34")), (_wide_integer, "n", 3_000_000_000)],
)
def test_a_wider_column_that_does_not_fit_the_target_is_refused_by_its_name(
    workshop: Workshop, change: Callable[[Table], None], column: str, value: Any
) -> None:
    with pytest.raises(SchemaError, match=rf"{column}: declared"):
        Evolving(workshop).run(change, FIRST | {"id": 2, column: value})


@pytest.mark.full  # as above
def test_a_wider_column_that_fits_the_target_is_read_whole(workshop: Workshop) -> None:
    second = FIRST | {"id": 2, "d": Decimal("123456789012.34")}
    sql = "SELECT id, n, CAST(d AS decimal(20, 2)) d, f FROM r"
    found = Evolving(workshop, sql=sql, d="decimal(20, 2)").run(_wide_decimal, second)
    assert [row["d"] for row in found] == [Decimal("1.50"), Decimal("123456789012.34")]


@pytest.mark.full  # every run has the comparison (`test_source_identities.py`)
def test_fields_inside_of_lists_maps_and_structs_are_followed_too(workshop: Workshop) -> None:
    """And the column of the partitions, which is renamed."""
    name = f"s{workshop.namespace}"
    columns = {"id": "long", "day": "date", "s": "struct<a: int, b: int>", "l": "list<int>", "m": "map<string, float>"}
    source = workshop.declare_table("bronze", columns, partitioning=[{"column": "day", "transform": "identity"}])
    wide = {"id": "long", "s": "struct<a: int, b: int>", "l": "list<long>", "m": "map<string, double>"}
    workshop.declare_stream(
        name,
        sql="SELECT id, s, CAST(l AS ARRAY<BIGINT>) l, CAST(m AS MAP<STRING, DOUBLE>) m FROM r",
        inputs={"r": {"stream": {"iceberg": {"table": source}}}},
        outputs={"main": {"iceberg": {"table": workshop.declare_table("silver", wide)}}},
        mode="continuous",
        trigger={"processing_time": "1 second"},
    )
    day = date(2026, 1, 31)
    workshop.append(source, [{"id": 1, "day": day, "s": {"a": 5, "b": 7}, "l": [1], "m": [("k", 0.5)]}])
    read: dict[int, int] = {}

    def stop_when(batch: BatchObservation) -> bool:
        if batch.input_rows and not read:
            with workshop.table(source).update_schema() as update:
                update.delete_column(("s", "a"))
                update.update_column(("l", "element"), LongType())
                update.update_column(("m", "value"), DoubleType())
                update.rename_column("day", "on_day")
            with workshop.table(source).update_schema() as update:
                update.add_column(("s", "a"), IntegerType())
            workshop.append(source, [{"id": 2, "on_day": day, "s": {"a": 6, "b": 8}, "l": [2**40], "m": [("k", 0.1)]}])
        read[batch.key.batch] = batch.input_rows
        return sum(read.values()) >= 2

    workshop.run(name, stop_when=stop_when)

    assert workshop.rows("silver") == [
        {"id": 1, "s": {"a": 5, "b": 7}, "l": [1], "m": {"k": 0.5}},
        {"id": 2, "s": {"a": 6, "b": 8}, "l": [2**40], "m": {"k": 0.1}},
    ]
