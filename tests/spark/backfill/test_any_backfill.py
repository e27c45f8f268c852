"""Whatever was lost, and in whatever order intervals are backfilled, a table holds what the stream gives.

DuckDB says what that is, from the rows of the source and the watermark of the mark. Backfills of intervals whose
windows or joins are incomplete are refused, and no others.
"""

# ruff: noqa: S608  # every query is made of our own names

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from tests.fixtures.backfills import FIRST_DAY, backfill, delete_days, search_gaps
from tests.fixtures.drill import seeded
from tests.fixtures.workshop import Workshop

from sluice.errors import UnpublishableError, VerificationError

pytestmark = pytest.mark.usefixtures("engine")

_PARTS, _ROWS = 3, 40
PARTS = _PARTS + 1
"""In so many parts a stream reads its rows; the last one moves the watermark alone."""
LAST_DAY = 12
"""No correction gives a row a time behind this day."""
_COLUMNS = {"id": "long", "word": "string", "at": "timestamptz"}

Row = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """A stream.

    sql: its transformation, for Spark. by_duckdb: what its target holds, of `records`, `clicks` and the watermark `$w`.
    columns: of the target. clicks: whether it has the second input. opens: which days are open, of their ends and `$w`.
    follows: whether another stream follows its backfills. is_once: whether it keeps one row for each id.
    time: what a row that is not made of several has as its time, for both engines.
    """

    name: str
    sql: str
    by_duckdb: str
    columns: Mapping[str, str]
    clicks: bool = False
    opens: str = "false"
    follows: bool = False
    is_once: bool = False
    time: str = "records.at"


_COUNTS = {"at": "timestamptz", "rows": "long"}
_JOINED = {"id": "long", "at": "timestamptz", "clicked": "timestamptz"}


def windows(length: str, bound: str, *, opens: str) -> Kind:
    """The rows of each window, by its start or its end."""
    origin = "TIMESTAMPTZ '1970-01-01 00:00:00+00'"
    start = f"time_bucket(INTERVAL '{length}', \"at\", {origin})"
    value = f"{start} + INTERVAL '{length}'" if bound == "end" else start
    return Kind(
        name=f"{bound} of {length}",
        sql=f"SELECT window.{bound} AS at, rows FROM (SELECT window(at, '{length}') AS window, count(*) AS rows "
        "FROM records GROUP BY window(at, '" + length + "'))",
        by_duckdb=f'SELECT {value}, count(*) FROM records WHERE "at" IS NOT NULL '
        f"GROUP BY {start} HAVING {start} + INTERVAL '{length}' <= $w",
        columns=_COUNTS,
        opens=opens,
    )


def single_rows(time: str = "records.at") -> Kind:
    """Each row becomes one."""
    return Kind(
        name="rows",
        sql=f"SELECT id, upper(word) AS word, {time} AS at FROM records",
        by_duckdb=f"SELECT id, upper(word), {time} FROM records",
        columns=_COLUMNS,
        follows=True,
        time=time,
    )


KINDS = (
    single_rows(),
    windows("1 day", "start", opens="ends > $w"),
    windows(
        "2 days",
        "start",
        opens="time_bucket(INTERVAL '2 days', ends - INTERVAL '1 day', "
        "TIMESTAMPTZ '1970-01-01 00:00:00+00') + INTERVAL '2 days' > $w",
    ),
    windows("6 hours", "end", opens="ends > $w"),
    Kind(
        name="outer join",
        sql="SELECT id, at, clicked FROM records LEFT JOIN clicks ON id = click AND clicked >= at "
        "AND clicked <= at + INTERVAL 36 HOURS",
        by_duckdb="""SELECT id, "at", clicked FROM records LEFT JOIN clicks
            ON id = click AND clicked >= "at" AND clicked <= "at" + INTERVAL 36 HOURS
            WHERE clicked IS NOT NULL OR "at" < $w - INTERVAL 36 HOURS - INTERVAL 1 MILLISECOND""",
        columns=_JOINED,
        clicks=True,
        opens="ends + INTERVAL '36 hours' + INTERVAL '1 millisecond' > $w",
    ),
    Kind(
        name="each once",
        sql="",
        by_duckdb='SELECT DISTINCT ON (id) id, word, "at" FROM records ORDER BY id, part',
        columns=_COLUMNS,
        is_once=True,
    ),
)
"""Streams of which every run takes one (`test_right_rows.py` has windows, joins and keys), and a drill many of each."""

LATER = "records.at + CAST({} * id % 3 AS INT) * INTERVAL '1' DAY"
_MOVED = ("records.at", LATER.format(1), LATER.format(2))
"""Some rows move to later intervals, and with another correction to earlier ones."""
_WITHOUT_TIME = (
    "CASE WHEN id % 5 > 0 THEN records.at END",
    "coalesce(records.at, CAST('2013-01-03 12:00:00' AS TIMESTAMP))",
)
"""Rows lose their times, and those that have none get one."""


def corrections_of(kind: Kind) -> list[Kind]:
    """What the transformation of a stream may be corrected into. Where rows count once, their times must not move."""
    made: Iterable[Kind] = ()
    if kind.name in ("rows", "topic"):
        made = map(single_rows, (*_MOVED, *_WITHOUT_TIME))
    elif kind.name == "followed":
        made = map(single_rows, _MOVED)
    elif kind.name == "start of 1 day":
        made = (windows("1 day", bound, opens="ends > $w") for bound in ("start", "end"))
    others = (one for one in made if one.by_duckdb != kind.by_duckdb)
    return [replace(one, name=kind.name, follows=kind.follows) for one in others]


_ONCE = """
    def transform(records):
        return records.drop("part").dropDuplicates(["id"])
"""


@dataclass(slots=True, kw_only=True)
class Case:
    """A stream of a kind with its rows, after it has read all of them."""

    workshop: Workshop
    kind: Kind
    chance: random.Random
    days: int = 8
    stream: str = ""
    watermark: datetime = FIRST_DAY

    def arrive(self) -> None:
        """Declare the stream, and let it read its rows in parts, in the order of their times within the delay."""
        self.declare()
        for part in range(PARTS):
            self.append(part)
            batches = self.workshop.run(self.stream).batches
            if self.kind.follows:
                self.workshop.run(f"g{self.workshop.namespace}")
        self.watermark = batches[-1].watermark or datetime(2100, 1, 1, tzinfo=UTC)

    def append(self, part: int) -> None:
        """Append the rows of a part to what the stream reads."""
        self.workshop.append("source", [one for one in self.records if one["part"] == part])
        if self.kind.clicks:
            self.workshop.append("clicks", [one for one in self.clicked if one["part"] == part])

    def declare(self, *, records: Mapping[str, Any] | None = None, python: str = "", **how: Any) -> None:
        """Declare the stream and its tables, and draw its rows.

        Parameters
        ----------
        records: its input of records; by default a table. python: in the place of the query. how: the rest.
        """
        shop, kind = self.workshop, self.kind
        self.stream = f"s{shop.namespace}"
        source = shop.declare_table("source", {**_COLUMNS, "part": "long"})
        inputs = {"records": records or self._input(source, "at")}
        if kind.clicks:
            clicks = shop.declare_table("clicks", {"click": "long", "clicked": "timestamptz", "part": "long"})
            inputs["clicks"] = self._input(clicks, "clicked")
        target = shop.declare_table("target", kind.columns, partitioning=[{"column": "at", "transform": "month"}])
        shop.declare_stream(
            self.stream,
            python=_ONCE if kind.is_once else python,
            sql=kind.sql,
            inputs=inputs,
            outputs={"rows": {"iceberg": {"table": target}}},
            backfill={"column": "at", "interval": "day"},
            **how,
        )
        if kind.follows:
            self._declare_gold(target)
        if not self.records:
            self.records, self.clicked = self._rows()

    records: Sequence[Mapping[str, Any]] = ()
    clicked: Sequence[Mapping[str, Any]] = ()

    def _input(self, table: str, column: str) -> dict[str, Any]:
        reading = {"stream": {"iceberg": {"table": table}}}
        is_kept = self.kind.opens != "false"
        return {**reading, "watermark": {"column": column, "delay": "6 hours"}} if is_kept else reading

    def _declare_gold(self, target: str) -> None:
        shop = self.workshop
        gold = shop.declare_table("gold", self.kind.columns)
        reading = {"table": target, "on_overwrite": "skip", "on_delete": "skip"}
        shop.declare_stream(
            f"g{shop.namespace}",
            sql="SELECT * FROM rows",
            inputs={"rows": {"stream": {"iceberg": reading}}},
            outputs={"copies": {"iceberg": {"table": gold}}},
            backfill={"column": "at", "reads": {"rows": "at"}, "margin": "1 hour", "follows": ["rows"]},
        )

    def _rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        chance, minutes = self.chance, self.days * 24 * 60
        times = sorted(chance.randrange(minutes) for _ in range(_ROWS))
        records: list[dict[str, Any]] = [
            {
                "id": number,
                "word": chance.choice(["a", "b", None]),
                "at": FIRST_DAY + timedelta(minutes=minute),
                "part": number * _PARTS // _ROWS,
            }
            for number, minute in enumerate(times)
        ]
        clicked: list[dict[str, Any]] = [
            {"click": one["id"], "clicked": one["at"] + timedelta(hours=chance.randrange(48)), "part": one["part"]}
            for one in chance.sample(records, _ROWS // 2)
        ]
        clicked.sort(key=lambda one: one["clicked"])
        for place, one in enumerate(clicked):
            one["part"] = max(one["part"], place * _PARTS // len(clicked))
        if self.kind.opens == "false":
            records += [{"id": 900, "word": "a", "at": None, "part": 1}]
        if self.kind.is_once:  # the same key again, at another time and in a later part
            again = [one for one in records if one["part"] < _PARTS - 1]
            records += [
                {**one, "word": "c", "at": FIRST_DAY + timedelta(minutes=chance.randrange(minutes)), "part": _PARTS - 1}
                for one in chance.sample(again, 12)
            ]
        # The watermark of the last batch is that of the rows before it.
        end = FIRST_DAY + timedelta(days=self.days)
        records.append({"id": 999, "word": "z", "at": end, "part": _PARTS})
        clicked.append({"click": 999, "clicked": end, "part": _PARTS})
        return records, clicked

    def expected(self) -> Counter[Row]:
        """What the target holds, as DuckDB has it."""
        return Counter(self.asked(self.kind.by_duckdb))

    def open_days(self) -> set[int]:
        """The days whose windows or joins are incomplete."""
        days = f"SELECT day FROM (SELECT unnest(range(1, {LAST_DAY + 1})) AS day) AS days"
        ends = f"SELECT day, TIMESTAMPTZ '{FIRST_DAY.isoformat()}' + day * INTERVAL '1 day' AS ends FROM ({days})"
        return {int(day) for (day,) in self.asked(f"SELECT day FROM ({ends}) WHERE {self.kind.opens}")}

    def asked(self, query: str) -> list[Row]:
        """What DuckDB finds in the rows of the source."""
        database = _duckdb()
        for table, rows in (("records", self.records), ("clicks", self.clicked)):
            database.register(table, pa.Table.from_pylist(list(rows), schema=_SOURCES[table]))
        given = {"w": self.watermark} if "$w" in query else {}
        return [tuple(_in_utc(value) for value in row) for row in database.execute(query, given).fetchall()]

    def held(self, table: str = "target") -> Counter[Row]:
        """What a table holds."""
        return Counter(tuple(_in_utc(row[name]) for name in self.kind.columns) for row in self.workshop.rows(table))

    def damage(self) -> set[int]:
        """Lose the rows of some days; the days."""
        place = list(self.kind.columns).index("at")
        held = sorted({row[place].day for row in self.held() if row[place] is not None} & set(range(1, self.days + 1)))
        lost = self.chance.sample(held, min(3, len(held)))
        for day in lost:
            delete_days(self.workshop, "target", date_of(day), date_of(day + 1))
        return set(lost)

    def backfill_all(self, days: Sequence[int], *, is_open: Collection[int] | None = None) -> None:
        """Backfill days in random order; those that are open are refused, and no others."""
        is_open = self.open_days() if is_open is None else is_open
        for day in self.chance.sample(days, len(days)):
            if day in is_open:
                with pytest.raises(UnpublishableError, match=r"windows and joins of the interval|had no watermark"):
                    backfill(self.workshop, self.stream, start=date_of(day), end=date_of(day + 1))
            else:
                backfill(self.workshop, self.stream, start=date_of(day), end=date_of(day + 1), allows_fewer=True)


@cache
def _duckdb() -> duckdb.DuckDBPyConnection:
    """Opened once: with a zone of time it takes longer than what is asked."""
    database = duckdb.connect()
    database.execute("SET TimeZone = 'UTC'")
    return database


_FIELDS: Mapping[str, pa.Field[Any]] = {
    **{name: pa.field(name, pa.int64()) for name in ("id", "click", "part")},
    **{name: pa.field(name, pa.timestamp("us", "UTC")) for name in ("at", "clicked")},
    "word": pa.field("word", pa.string()),
}
_SOURCES = {
    table: pa.schema([_FIELDS[name] for name in names])
    for table, names in (("records", ("id", "word", "at", "part")), ("clicks", ("click", "clicked", "part")))
}


def _in_utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime) else value


def date_of(day: int) -> str:
    """The date of a day of January."""
    return (FIRST_DAY + timedelta(days=day - 1)).date().isoformat()


def case_of(workshop: Workshop, seed: int, *, days: int = 8) -> Case:
    """A stream that has read its rows of some days: the kind goes round, its rows are random."""
    chance = random.Random(seed)  # noqa: S311  # no secret
    case = Case(workshop=workshop, kind=KINDS[seed % len(KINDS)], chance=chance, days=days)
    case.arrive()
    return case


def of_whole_days(rows: Counter[Row], days: set[int], place: int) -> Counter[Row]:
    """The rows without those of some days."""
    return Counter({row: times for row, times in rows.items() if row[place] is None or row[place].day not in days})


# Every run has a whole history instead (`test_any_history.py`).
@pytest.mark.parametrize("seed", seeded(500, [], full=range(6)))
def test_backfills_in_any_order_give_what_the_stream_gives(seed: int, workshop: Workshop) -> None:
    case = case_of(workshop, seed)
    whole, place = case.held(), list(case.kind.columns).index("at")
    assert whole == case.expected(), case.kind.name
    is_open = case.open_days()
    lost = case.damage()
    if case.kind.follows:
        case.backfill_all(list(range(1, case.days + 1)))
    else:
        case.backfill_all(sorted(lost | {case.chance.randrange(1, case.days + 1)}))

    beside = lost & is_open
    if case.kind.is_once:  # which of the repeated rows of a lost day remains is open, and that one does is not
        assert Counter(row[0] for row in case.held()) == Counter(row[0] for row in whole)
        assert not set(case.held()) - {(one["id"], one["word"], one["at"]) for one in case.records}
    else:
        assert of_whole_days(case.held(), beside, place) == of_whole_days(whole, beside, place), case.kind.name
    if case.kind.follows:
        assert case.held("gold") == case.held()
    gaps = search_gaps(workshop, case.stream).gaps
    assert not [gap for gap in gaps if gap.interval.start.day not in beside]


@pytest.mark.full  # every run counts rows that move (`test_corrected_content.py`)
@pytest.mark.parametrize("seed", seeded(100, [1]))
def test_rows_that_a_correction_moves_are_lost_or_doubled_in_no_order(seed: int, workshop: Workshop) -> None:
    """A day that loses rows to another one, or gets rows of it, fails alone. All of them come right together."""
    case = case_of(workshop, seed * len(KINDS), days=4)
    before = Counter(row[0] for row in case.held())
    (workshop.folder / f"{case.stream}.sql").write_text(single_rows(LATER.format(1)).sql)
    days = list(range(1, case.days + 4))
    for day in case.chance.sample(days, len(days)):
        with suppress(VerificationError):
            backfill(workshop, case.stream, start=date_of(day), end=date_of(day + 1), allows_fewer=True)
        assert Counter(row[0] for row in case.held()) == before, "each row is there once"
    backfill(workshop, case.stream, start=date_of(days[0]), end=date_of(days[-1] + 1), allows_fewer=True)

    def moved(row: Row) -> Row:
        return (row[0], row[1], row[2] and row[2] + timedelta(days=row[0] % 3))

    assert case.held() == Counter({moved(row): times for row, times in case.expected().items()})
