"""What is added up for tables, rows and columns, and what is said of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sluice.declarations.table_declaration import TableDeclaration
from sluice.ledger.hourly_figures import ColumnFigures, HourOfColumns, HourOfRows, HoursOfStreams
from sluice.supervision.rows_watch import TableVerdict, column_sentences, columns_of_table, explain, hours_of_table
from sluice.supervision.unusual_columns import ColumnKind, ColumnSign, ColumnsVerdict, UnusualColumn, judge_columns
from sluice.supervision.unusual_rows import HourlyRows, RowsVerdict, UnusualKind, UnusualRows

HOUR = timedelta(hours=1)
ENDS_AT = datetime(2026, 11, 27, 14, tzinfo=UTC)
ONE = HourOfRows(
    stream="flights",
    hour=ENDS_AT - 3 * HOUR,
    batches=2,
    input_rows=12,
    rejected_rows=2,
    published_rows={"rows": 10, "late": 3},
)
FEW = UnusualRows(
    kind=UnusualKind.FEW,
    since=ENDS_AT - 2 * HOUR,
    until=ENDS_AT,
    hours=1,
    seen=412,
    usual=1030,
    weeks=8,
)


def test_the_rows_of_all_writers_are_added_up_by_the_hour() -> None:
    other = replace(ONE, stream="others", hour=ENDS_AT - HOUR, published_rows={"out": 7})
    foreign = replace(ONE, stream="foreign", hour=ENDS_AT - 9 * HOUR)
    hours = HoursOfStreams(ends_at=ENDS_AT, hours=(foreign, ONE, other))

    found = hours_of_table(hours, [("flights", "rows"), ("others", "out")])

    assert found == HourlyRows(begins_at=ENDS_AT - 3 * HOUR, rows=[10, 0, 7], rejected=[2, 0, 2])
    both = hours_of_table(hours, [("flights", "rows"), ("flights", "late")])
    assert (both.rows, both.rejected) == ([13, 0, 0], [2, 0, 0]), "a stream rejects a row once"
    assert hours_of_table(hours, [("silent", "rows")]) == HourlyRows(begins_at=ENDS_AT, rows=[], rejected=[])


def of_rows(*unusual: UnusualRows) -> TableVerdict:
    return TableVerdict(rows=RowsVerdict(unusual=unusual, is_settled=False), columns=ColumnsVerdict())


def test_an_incident_says_what_since_when_and_compared_with_what() -> None:
    silent = replace(FEW, kind=UnusualKind.NONE, hours=3, since=ENDS_AT - 3 * HOUR, seen=0, usual=3100)
    rejected = replace(FEW, kind=UnusualKind.REJECTED, hours=6, seen=90, usual=4)
    compared = "of 8 weeks, at the level of the last seven days."

    assert explain(of_rows(FEW)) == (
        "Too few rows since 2026-11-27 12:00 UTC: 412 in the hour up to 14:00 UTC, where 1,030 are usual in the same "
        f"hour {compared}"
    )
    assert explain(of_rows(silent, rejected)) == (
        f"No rows since 2026-11-27 11:00 UTC, where 3,100 are usual in the same hours {compared} "
        "Too many rejected rows since 2026-11-27 12:00 UTC: 90 in the 6 hours up to 14:00 UTC, where 4 are usual in "
        f"the same hours {compared}"
    )
    assert explain(of_rows()) == ("The rows are as usual again. It is over when they are for 6 hours.")


PRICE = UnusualColumn(
    column="price",
    kind=ColumnKind.NUMBER,
    sign=ColumnSign.ABOVE,
    since=ENDS_AT - 2 * HOUR,
    until=ENDS_AT,
    seen=1_234_567.5,
    usual=8_000.0,
    weeks=9,
)
SENT = replace(PRICE, column="sent_at", kind=ColumnKind.TIME, sign=ColumnSign.BELOW, seen=0.0, usual=-7_200.0)


@pytest.mark.parametrize(
    ("unusual", "sentence"),
    [
        (
            replace(PRICE, sign=ColumnSign.NULLS, seen=0.304, usual=0.02, rows=1_234, weeks=8),
            "Too many nulls in `price` since 2026-11-27 12:00 UTC: 30.4 % of 1,234 rows in the hour up to 14:00 UTC, "
            "where 2 % are usual in the same hour of 8 weeks, at the level of the last seven days.",
        ),
        (
            replace(PRICE, sign=ColumnSign.NULLS, seen=1.0, usual=0.0, rows=9, hours=6, weeks=8),
            "Too many nulls in `price` since 2026-11-27 12:00 UTC: 100 % of 9 rows in the 6 hours up to 14:00 UTC, "
            "where 0 % are usual in the same hours of 8 weeks, at the level of the last seven days.",
        ),
        (
            PRICE,
            "Values far above all others in `price` since 2026-11-27 12:00 UTC: up to 1,234,567.5, where the highest "
            "of 9 weeks was 8,000.",
        ),
        (
            replace(PRICE, sign=ColumnSign.BELOW, seen=-1e300, usual=0.00125),
            "Values far below all others in `price` since 2026-11-27 12:00 UTC: down to -1e+300, where the lowest of "
            "9 weeks was 0.00125.",
        ),
        (
            SENT,
            "Values far below all others in `sent_at` since 2026-11-27 12:00 UTC: down to 1970-01-01 00:00 UTC, where "
            "the earliest of 9 weeks was 2 hours before the begin of the hour in which it arrived.",
        ),
        (
            replace(SENT, kind=ColumnKind.DATE, sign=ColumnSign.ABOVE, seen=253_370_764_800.0, usual=86_400.0),
            "Values far above all others in `sent_at` since 2026-11-27 12:00 UTC: up to 9999-01-01, where the latest "
            "of 9 weeks was 1 day after the begin of the hour in which it arrived.",
        ),
        (
            replace(SENT, sign=ColumnSign.ABOVE, seen=1e12, usual=0.0),
            "Values far above all others in `sent_at` since 2026-11-27 12:00 UTC: up to a time after the year 9999, "
            "where the latest of 9 weeks was 0 seconds after the begin of the hour in which it arrived.",
        ),
    ],
    ids=["nulls", "all nulls", "number", "tiny number", "time", "date", "beyond all years"],
)
def test_what_is_said_of_a_column(unusual: UnusualColumn, sentence: str) -> None:
    assert list(column_sentences([unusual])) == [sentence]


def test_of_many_columns_the_last_are_only_named() -> None:
    many = [replace(PRICE, column=f"c{number}") for number in (*range(7), 6)]

    sentences = list(column_sentences(many))

    assert len(sentences) == 6
    assert sentences[-1] == "Unusual, too: `c5`, `c6`."


def test_the_figures_of_all_writers_are_put_together_by_column() -> None:
    table = TableDeclaration.model_validate(
        {
            "table": "bronze.flights",
            "description": "Flights",
            "owner": "team",
            "columns": [
                {"name": "price", "type": "decimal(9, 2)"},
                {"name": "Secret", "type": "long"},
                {"name": "day", "type": "date"},
            ],
        }
    )
    figures = {
        "price": ColumnFigures(rows=10, nulls=1, lowest=1.0, highest=5.0),
        "Secret": ColumnFigures(rows=10, nulls=2, lowest=7.0, highest=9.0),
        "gone": ColumnFigures(rows=10, nulls=2),
    }
    one = HourOfColumns(stream="flights", output="rows", hour=ENDS_AT - 3 * HOUR, figures=figures)
    two = replace(
        one, stream="others", output="out", figures={"price": ColumnFigures(rows=5, nulls=0, lowest=-2.0, highest=3.0)}
    )
    empty = replace(one, hour=ENDS_AT - HOUR, figures={"price": ColumnFigures(rows=5, nulls=5)})
    foreign = replace(one, output="late", hour=ENDS_AT - 9 * HOUR)

    price, secret, day = columns_of_table(
        table,
        [foreign, one, two, empty],
        writers=[("flights", "rows"), ("others", "out")],
        masked={"secret"},
        ends_at=ENDS_AT,
    )

    assert (price.name, price.kind, price.begins_at) == ("price", ColumnKind.NUMBER, ENDS_AT - 3 * HOUR)
    assert (price.rows.tolist(), price.nulls.tolist()) == ([15, 0, 5], [1, 0, 5])
    assert str((price.lowest, price.highest)) == "(array([-2., nan, nan]), array([ 5., nan, nan]))"
    assert (secret.kind, secret.nulls.tolist()) == (ColumnKind.NONE, [2, 0, 0])
    assert (day.kind, day.rows.tolist()) == (ColumnKind.DATE, [0, 0, 0])
    none = columns_of_table(table, [], writers=[("flights", "rows")], masked=(), ends_at=ENDS_AT)
    assert judge_columns(none) == ColumnsVerdict()


def test_an_hour_that_ended_between_two_readings_of_the_ledger_fails_no_pass() -> None:
    """The hours of the rows are read first, and those of the columns of each table after it."""
    table = TableDeclaration.model_validate(
        {"table": "s.t", "description": "t", "owner": "me", "columns": [{"name": "price", "type": "long"}]}
    )
    figures = {"price": ColumnFigures(rows=10, nulls=1, lowest=1.0, highest=5.0)}
    one = HourOfColumns(stream="flights", output="rows", hour=ENDS_AT - HOUR, figures=figures)
    just_over = replace(one, hour=ENDS_AT)

    (price,) = columns_of_table(table, [one, just_over], writers=[("flights", "rows")], masked=(), ends_at=ENDS_AT)

    assert price.rows.tolist() == [10]
