"""What the tables and the ledger must hold: the same rows, batch by batch, in DuckDB.

Nothing here knows Spark's plans, its state or Iceberg: an aggregation is computed from all of its rows again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import duckdb
import pyarrow as pa
from tests.differential.case import Case, Output, Row, source_kinds
from tests.differential.column_kinds import KINDS
from tests.differential.queries import AGGREGATED, columns_of, rows_query

_NEVER_MS = 0
"""The watermark of a stream that saw no event time."""

_ARROW: Mapping[str, pa.DataType] = {
    "VARCHAR": pa.string(),
    "BIGINT": pa.int64(),
    "INTEGER": pa.int32(),
    "BOOLEAN": pa.bool_(),
    "DATE": pa.date32(),
    "TIMESTAMP": pa.timestamp("us"),
    "TIMESTAMPTZ": pa.timestamp("us", tz="UTC"),
    "DECIMAL(9, 2)": pa.decimal128(9, 2),
    "BLOB": pa.binary(),
}


_LOOKUP = {"k2": pa.string(), "label": pa.string()}
"""The columns of the static table."""


def arrow_types(case: Case) -> dict[str, pa.DataType]:
    """The columns that are read, with their types in Arrow; a uuid is text."""
    return {name: _ARROW[KINDS[kind].duckdb] for name, kind in source_kinds(case.key).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """What the ledger must say of a batch. published: rows by output."""

    input_rows: int
    published: Mapping[str, int]
    late: int
    duplicate: int
    refused: int = 0


@dataclass(slots=True)
class Expected:
    """What there must be in the end.

    tables: the rows by output, each a tuple in the order of `case.output_columns`.
    refusal: why the last batch stops the stream; empty when none does.
    """

    tables: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    batches: list[Numbers] = field(default_factory=list)
    refusal: str = ""


class Refused(Exception):  # noqa: N818  # no mistake: the right end of a batch
    """A batch that no stream may deliver."""


def expected(case: Case, batches: Sequence[Sequence[Row]], *, lookup_changes_at: int | None = None) -> Expected:
    """What becomes of a case.

    Parameters
    ----------
    batches: its rows as they were cut into batches; one without rows moves the watermark.
    lookup_changes_at: the number of the first batch that sees what was added to the static table.
    """
    with duckdb.connect() as database:
        database.execute("SET TimeZone = 'UTC'")
        database.execute("CREATE TYPE TIMESTAMP_LTZ AS TIMESTAMPTZ")  # as Spark names it
        return _Oracle(case, database, lookup_changes_at).after(batches)


@dataclass(slots=True)
class _Oracle:
    case: Case
    database: duckdb.DuckDBPyConnection
    lookup_changes_at: int | None = None
    late_ms: int = _NEVER_MS
    closing_ms: int = _NEVER_MS
    newest_ms: int = _NEVER_MS

    def after(self, batches: Sequence[Sequence[Row]]) -> Expected:
        self._create_tables()
        result = Expected()
        for number, rows in enumerate(batches):
            if number == self.lookup_changes_at:
                self._insert("lookup", self.case.lookup_added, _LOOKUP)
            try:
                with self._all_or_nothing():
                    result.batches.append(self._batch(rows))
            except Refused as refused:
                result.refusal = str(refused)
                break
        for name in self._names():
            result.tables[name] = self._fetch(f"SELECT {', '.join(self.case.output_columns)} FROM {name}")
        return result

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        self._do("BEGIN")
        try:
            yield
        except Refused:
            self._do("ROLLBACK")
            raise
        self._do("COMMIT")

    def _names(self) -> list[str]:
        return [f"output{number}" for number in range(len(self.case.outputs))]

    def _create_tables(self) -> None:
        kinds = {name: KINDS[kind] for name, kind in source_kinds(self.case.key).items()}
        columns = ", ".join(f"{name} {kind.duckdb}" for name, kind in kinds.items())
        self._do(f"CREATE TABLE records ({columns})")
        self._do("CREATE TABLE lookup (k2 VARCHAR, label VARCHAR)")
        self._insert("lookup", self.case.lookup, _LOOKUP)
        self._do(f"CREATE TABLE kept AS {self._arriving()} LIMIT 0")
        self._do("ALTER TABLE kept ADD COLUMN opened_us BIGINT")
        for name, output in zip(self._names(), self.case.outputs, strict=True):
            self._do(f"CREATE TABLE {name} AS SELECT * FROM ({self._result_of('kept', output)}) LIMIT 0")

    def _arriving(self) -> str:
        return rows_query(self.case, records="records", lookup="lookup")

    def _batch(self, rows: Sequence[Row]) -> Numbers:
        self._do("DELETE FROM records")
        self._insert("records", rows, arrow_types(self.case))
        self.late_ms, self.closing_ms = self.closing_ms, max(self.closing_ms, self.newest_ms)
        self._do(f"CREATE OR REPLACE TABLE arrived AS {self._arriving()}")
        late, duplicate = self._step()
        published = {}
        for name, output in zip(self._names(), self.case.outputs, strict=True):
            self._do(f"CREATE OR REPLACE TABLE result AS {self._result_of('stepped', output)}")
            published[name] = self._number("SELECT count(*) FROM result")
            self._write(name, output)
        self._see_event_times(rows)
        # Each output has an operator of its own, which counts what it drops.
        times = len(self.case.outputs)
        refused = self.case.malformed if rows else 0
        return Numbers(
            input_rows=len(rows) + refused,
            published=published,
            late=late * times,
            duplicate=duplicate * times,
            refused=refused,
        )

    def _see_event_times(self, rows: Sequence[Row]) -> None:
        if self.case.delay_seconds is None:
            return
        times = [_milliseconds(row["moment"]) for row in rows if row["moment"] is not None]
        self.newest_ms = max([self.newest_ms, *(time - self.case.delay_seconds * 1000 for time in times)])

    def _step(self) -> tuple[int, int]:
        """Fill `stepped` from `arrived`; the rows that came late, and the duplicates."""
        match self.case.step.kind:
            case "none":
                self._do("CREATE OR REPLACE TABLE stepped AS SELECT * FROM arrived")
                return 0, 0
            case "dedupe":
                return self._deduplicate()
            case "group":
                self._do("INSERT INTO kept SELECT *, NULL FROM arrived")
                self._aggregate(by=list(self.case.step.by))
                return 0, 0
            case "window":
                return self._windows(), 0

    def _deduplicate(self) -> tuple[int, int]:
        by = ", ".join(self.case.step.by)
        is_late = "false"
        if self.case.delay_seconds is not None and "moment" in self.case.step.by:
            is_late = f"coalesce(epoch_us(moment) <= {self.late_ms * 1000}, false)"
        late = self._number(f"SELECT count(*) FROM arrived WHERE {is_late}")
        in_time = f"SELECT {by} FROM arrived WHERE NOT {is_late}"
        self._do(f"CREATE OR REPLACE TABLE stepped AS SELECT DISTINCT * FROM ({in_time}) EXCEPT SELECT {by} FROM kept")
        new = self._number("SELECT count(*) FROM stepped")
        duplicate = self._number(f"SELECT count(*) FROM ({in_time})") - new
        self._do(f"INSERT INTO kept BY NAME SELECT {by} FROM stepped")
        return late, duplicate

    def _windows(self) -> int:
        size, slide = self.case.step.size_seconds * 1_000_000, self.case.step.slide_seconds * 1_000_000
        count = -(-size // slide)
        opened = f"(epoch_us(moment) // {slide}) * {slide} - i * {slide}"
        spread = f"SELECT *, {opened} AS opened_us FROM arrived, range({count}) AS t(i) WHERE moment IS NOT NULL"
        self._do(
            f"CREATE OR REPLACE TABLE spread AS SELECT * EXCLUDE (i) FROM ({spread}) "
            f"WHERE opened_us + {size} > epoch_us(moment)"
        )
        keeps_all = self.case.outputs[0].mode == "complete"
        is_open = "true" if keeps_all else f"opened_us + {size} > {self.late_ms * 1000}"
        last = f"(epoch_us(moment) // {slide}) * {slide}"  # a row is late when no window takes it any more
        late = self._number(
            f"SELECT count(*) FROM arrived WHERE moment IS NOT NULL AND NOT ({is_open.replace('opened_us', last)})"
        )
        self._do(f"CREATE OR REPLACE TABLE arrived AS SELECT * FROM spread WHERE {is_open}")
        self._do("INSERT INTO kept SELECT * FROM arrived")
        self._aggregate(by=["opened_us", *self.case.step.by])
        return late

    def _aggregate(self, *, by: list[str]) -> None:
        """The groups that a batch hands over: all, those that it changed, or those that it closes."""
        groups = f"SELECT {', '.join([*by, AGGREGATED])} FROM kept GROUP BY {', '.join(by)}"
        mode = self.case.outputs[0].mode
        if mode == "merge":
            same = " AND ".join(f"g.{name} IS NOT DISTINCT FROM a.{name}" for name in by)
            groups = f"SELECT * FROM ({groups}) AS g WHERE EXISTS (SELECT 1 FROM arrived AS a WHERE {same})"
        elif mode == "append":
            size = self.case.step.size_seconds * 1_000_000
            closed = f"opened_us + {size} <= {self.closing_ms * 1000} AND opened_us + {size} > {self.late_ms * 1000}"
            groups = f"SELECT * FROM ({groups}) AS g WHERE {closed}"
        self._do(f"CREATE OR REPLACE TABLE stepped AS {groups}")

    def _result_of(self, table: str, output: Output) -> str:
        """The rows of an output, from the rows after the step; from `kept` only their columns matter."""
        columns = []
        types = {"opened": 0, "closed": self.case.step.size_seconds * 1_000_000}
        for name in columns_of(self.case, output):
            if self.case.step.kind == "window" and name in types:
                columns.append(f"make_timestamp(opened_us + {types[name]})::TIMESTAMPTZ AS {name}")
            else:
                columns.append(name)
        given = table
        if table == "kept" and self.case.step.kind in ("group", "window"):
            by = [*(["opened_us"] if self.case.step.kind == "window" else []), *self.case.step.by]
            given = f"(SELECT {', '.join([*by, AGGREGATED])} FROM kept GROUP BY {', '.join(by)})"
        chosen = f"SELECT {', '.join(columns)} FROM {given}"
        return f"SELECT * FROM ({chosen}) {f'WHERE {output.where}' if output.where else ''}"

    def _write(self, name: str, output: Output) -> None:
        match output.mode:
            case "append":
                self._do(f"INSERT INTO {name} SELECT * FROM result")
            case "complete":
                self._do(f"DELETE FROM {name}")
                self._do(f"INSERT INTO {name} SELECT * FROM result")
            case "overwrite_partitions":
                place = [_partition(*field) for field in output.partitioning]
                theirs, ours = (f"({', '.join(f'coalesce(CAST({one} AS VARCHAR), chr(0))' for one in place)})",) * 2
                self._do(f"DELETE FROM {name} WHERE {theirs} IN (SELECT {ours} FROM result)")
                self._do(f"INSERT INTO {name} SELECT * FROM result")
            case "merge":
                self._merge(name, output)

    def _merge(self, name: str, output: Output) -> None:
        keys = ", ".join(output.keys)
        if output.ordering:
            # Rows that are equal count once; of the others the highest is the newest, and a tie has no answer.
            newest_first = ", ".join(f"{one} DESC NULLS LAST" for one in output.ordering)
            self._do(
                f"CREATE OR REPLACE TABLE ranked AS SELECT *, rank() OVER (PARTITION BY {keys} "
                f"ORDER BY {newest_first}) AS place FROM (SELECT DISTINCT * FROM result)"
            )
            self._do("CREATE OR REPLACE TABLE newest AS SELECT * EXCLUDE (place) FROM ranked WHERE place = 1")
        else:
            self._do("CREATE OR REPLACE TABLE newest AS SELECT * FROM result")
        if self._number(f"SELECT count(*) FROM (SELECT 1 FROM newest GROUP BY {keys} HAVING count(*) > 1)"):
            raise Refused("two different rows of a batch" if output.ordering else "two rows of a batch")
        same = " AND ".join(f"t.{key} IS NOT DISTINCT FROM s.{key}" for key in output.keys)
        if output.is_feed:
            # A change that is older than the row in the table changes nothing; a missing value is the lowest.
            older = _is_older(output.ordering)
            self._do(f"DELETE FROM newest AS s WHERE EXISTS (SELECT 1 FROM {name} AS t WHERE {same} AND {older})")
        self._do(f"DELETE FROM {name} AS t WHERE EXISTS (SELECT 1 FROM newest AS s WHERE {same})")
        lives = "WHERE op <> 'd'" if output.is_feed else ""
        self._do(f"INSERT INTO {name} SELECT * FROM newest {lives}")

    def _insert(self, table: str, rows: Sequence[Row], types: Mapping[str, pa.DataType]) -> None:
        given = pa.Table.from_pylist([dict(row) for row in rows], schema=pa.schema(list(types.items())))
        self.database.register("given", given)
        self._do(f"INSERT INTO {table} SELECT {', '.join(types)} FROM given")
        self.database.unregister("given")

    def _do(self, statement: str) -> None:
        self.database.execute(statement)

    def _number(self, statement: str) -> int:
        (number,) = self.database.execute(statement).fetchall()[0]
        return int(number)

    def _fetch(self, statement: str) -> list[tuple[Any, ...]]:
        found = self.database.execute(statement).to_arrow_table()
        return [tuple(row.values()) for row in found.to_pylist()]


def _is_older(ordering: Sequence[str]) -> str:
    """Whether a row `s` is before the row `t`, comparing several columns in turn."""
    alternatives = []
    for number, name in enumerate(ordering):
        equal = [f"t.{before} IS NOT DISTINCT FROM s.{before}" for before in ordering[:number]]
        lower = f"(s.{name} < t.{name} OR (s.{name} IS NULL AND t.{name} IS NOT NULL))"
        alternatives.append(f"({' AND '.join([*equal, f'coalesce({lower}, false)'])})")
    return f"({' OR '.join(alternatives)})"


def _partition(column: str, transform: str, width: int | None) -> str:
    """The value of a partition, from a column."""
    match transform:
        case "identity":
            return column
        case "truncate":
            return f"left({column}, {width})"
        case "hour" | "day" | "month" | "year":
            return f"date_trunc('{transform}', {column})"
    raise ValueError(transform)


def _milliseconds(time: datetime) -> int:
    microseconds = (time - datetime(1970, 1, 1, tzinfo=UTC)) // _MICROSECOND
    return microseconds // 1000


_MICROSECOND = datetime.resolution
