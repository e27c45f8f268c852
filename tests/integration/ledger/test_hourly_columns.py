"""The nulls and bounds of columns by the hour: added once for each batch, and removed when they are old."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import text
from tests.integration.ledger.test_batches import a_batch

from sluice.ledger.batches import record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.hourly_figures import ColumnFigures, HourlyColumnsRow, read_column_hours, remove_old_hours

PRICE = ColumnFigures(rows=10, nulls=2, lowest=0.25, highest=9.0)


def let_pass(ledger: Ledger, interval: str) -> None:
    """Let the hours lie further back."""
    with ledger.transaction() as connection:
        connection.execute(
            text("UPDATE sluice.hourly_columns SET hour = hour - CAST(:by AS interval)"), {"by": interval}
        )


def test_an_hour_has_the_figures_of_its_batches(ledger: Ledger) -> None:
    first = {"rows": {"price": PRICE, "word": ColumnFigures(rows=10, nulls=10)}, "late": {"price": PRICE}}
    later = {
        "rows": {
            "price": ColumnFigures(rows=5, nulls=0, lowest=-1e300, highest=1.5),
            "new": ColumnFigures(rows=5, nulls=1, lowest=2.0, highest=2.0),
            "word": ColumnFigures(rows=5, nulls=0),
        }
    }
    empty = {"rows": {"price": ColumnFigures(rows=3, nulls=3)}, "late": {}}
    for number, figures in enumerate((first, later, empty, {})):
        assert record_batch(ledger, replace(a_batch(number), column_figures=figures))
    assert not record_batch(ledger, replace(a_batch(1), column_figures=later)), "again, which is no other one"
    assert read_column_hours(ledger, ["flights"]) == (), "the hour is not over"
    let_pass(ledger, "1 hour")

    found = {one.output: one.figures for one in read_column_hours(ledger, ["flights", "others"])}

    assert found["late"] == {"price": PRICE}
    assert found["rows"] == {
        "price": ColumnFigures(rows=18, nulls=5, lowest=-1e300, highest=9.0),
        "word": ColumnFigures(rows=15, nulls=10),
        "new": ColumnFigures(rows=5, nulls=1, lowest=2.0, highest=2.0),
    }
    assert read_column_hours(ledger, ["others"]) == ()


def test_old_hours_are_removed(ledger: Ledger) -> None:
    for number in range(2):
        record_batch(ledger, replace(a_batch(number), column_figures={"rows": {"price": PRICE}, "late": {"n": PRICE}}))
        let_pass(ledger, "100 days")

    removed = [remove_old_hours(ledger, HourlyColumnsRow, dry_run=is_dry) for is_dry in (True, False, False)]

    assert removed == [2, 2, 0]
    assert {one.output for one in read_column_hours(ledger, ["flights"])} == {"rows", "late"}


def test_a_batch_is_recorded_when_its_figures_cannot_be(ledger: Ledger) -> None:
    """As when a role of drivers was not admitted to the new table: the writer would try for ever, and the staging
    tables would never be cleared."""
    rename = "ALTER TABLE sluice.{} RENAME TO {}"
    with ledger.transaction() as connection:
        connection.execute(text(rename.format("hourly_columns", "hourly_columns_away")))
    try:
        assert record_batch(ledger, replace(a_batch(77), column_figures={"rows": {"price": PRICE}}))
    finally:
        with ledger.transaction() as connection:
            connection.execute(text(rename.format("hourly_columns_away", "hourly_columns")))
