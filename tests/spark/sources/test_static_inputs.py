"""A static input is as fresh as declared; a database is in one state for a batch, also when the batch runs again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyarrow import parquet
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from tenacity import Retrying, stop_after_delay, wait_fixed
from tests.fixtures.database import run_sql
from tests.fixtures.streaming import Running, running
from tests.fixtures.streams_of_tables import dying_at
from tests.fixtures.workshop import Workshop

from sluice.declarations.input_declaration import InputDeclaration
from sluice.errors import SchemaError
from sluice.publication.crash_points import CrashPoint
from sluice.settings import FilesConnection, Settings
from sluice_spark.query.static_copies import StaticCopies, with_copies
from sluice_spark.query.stream_inputs import Renewals, renewals_of
from sluice_spark.session.jvm import first_line
from sluice_spark.sources import open_input

KINDS = ("delta", "files", "iceberg", "jdbc")


class Words:
    """One table of ids and words in each place that can be looked up, and a stream of ids that look them up."""

    def __init__(self, workshop: Workshop, settings: Settings, numbers: str, folder: Path) -> None:
        self.workshop, self.numbers, self.folder = workshop, numbers, folder
        self.table = workshop.declare_table("words", {"id": "long", "word": "string"})
        here = FilesConnection(kind="files", root=folder.as_uri())
        self.settings = settings.model_copy(update={"connections": {**settings.connections, "here": here}})
        for name in ("words", "ids"):
            (folder / name).mkdir()
        self.write(1, "one", also_jdbc=False)

    def write(self, id_: int, word: str, *, also_jdbc: bool = True) -> None:
        """Add a word everywhere."""
        (self.folder / "words" / f"{id_}.json").write_text(f'{{"id": {id_}, "word": "{word}"}}\n')
        self.workshop.append("words", [{"id": id_, "word": word}])
        self._commit_to_delta(id_, word)
        if also_jdbc:
            run_sql(self.settings, f"INSERT INTO {self.numbers} VALUES ({id_}, '{word}')")  # noqa: S608  # our own words

    def _commit_to_delta(self, id_: int, word: str) -> None:
        """Append as another writer does. Spark itself would tell its own caches of what it writes."""
        table, log = self.folder / "delta", self.folder / "delta" / "_delta_log"
        if not log.exists():
            rows = self.workshop.spark.createDataFrame([(id_, word)], "id long, word string")
            rows.write.format("delta").save(table.as_uri())
            return
        parquet.write_table(pa.table({"id": pa.array([id_], pa.int64()), "word": [word]}), table / f"{id_}.parquet")
        size = (table / f"{id_}.parquet").stat().st_size
        added = {
            "path": f"{id_}.parquet",
            "partitionValues": {},
            "size": size,
            "modificationTime": 1,
            "dataChange": True,
        }
        version = len(list(log.glob("*.json")))
        (log / f"{version:020}.json").write_text(json.dumps({"add": added}) + "\n")

    def ask(self, id_: int) -> None:
        """Let a row arrive that looks a word up."""
        (self.folder / f"{id_}.txt").write_text(str(id_))
        (self.folder / f"{id_}.txt").rename(self.folder / "ids" / f"{id_}.txt")

    def inputs(self, **more: Any) -> dict[str, InputDeclaration]:
        """The places as static inputs. more: further keys of each."""
        columns = [{"name": "id", "type": "long"}, {"name": "word", "type": "string"}]
        sources: dict[str, Any] = {
            "delta": {"connection": "here", "path": "delta"},
            "files": {"connection": "here", "path": "words", "format": "json", "columns": columns},
            "iceberg": {"table": self.table},
            "jdbc": {"connection": "database", "table": self.numbers},
        }
        return {
            kind: InputDeclaration.model_validate({"static": {kind: source}, **more})
            for kind, source in sources.items()
        }

    def joined(self, opened: dict[str, DataFrame]) -> DataFrame:
        """The ids that arrive, each with its word from every place."""
        source = {"files": {"connection": "here", "path": "ids", "format": "text"}}
        ids = open_input(self.workshop.spark, InputDeclaration.model_validate({"stream": source}), self.settings)
        rows = ids.select(fn.col("value").cast("long").alias("id"))
        for kind, table in opened.items():
            rows = rows.join(fn.broadcast(table.select("id", fn.col("word").alias(kind))), "id", "left")
        return rows

    def found(self, query: Running, id_: int) -> set[str | None]:
        """What all places said of an id that is asked for now."""
        self.ask(id_)
        (row,) = [row for row in query.rows() if row["id"] == id_]
        return {row[kind] for kind in KINDS}


@dataclass(slots=True)
class SetClock:
    """A clock that a test sets; a batch begins when it shows."""

    time: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        """What it shows."""
        return self.time

    def began_at(self, batch: int) -> datetime:
        """When a batch began."""
        return self.time


@pytest.mark.full  # every run: a table of Iceberg (`test_watermarks.py`)
def test_every_batch_reads_a_static_input_again(
    workshop: Workshop, jdbc_settings: Settings, numbers_table: str, tmp_path: Path
) -> None:
    words = Words(workshop, jdbc_settings, numbers_table, tmp_path)
    inputs = words.inputs()
    opened = {name: open_input(workshop.spark, inputs[name], words.settings) for name in inputs}
    copied = with_copies(inputs, opened, StaticCopies(), checkpoint=(tmp_path / "kept").as_uri(), clock=SetClock())

    with renewals_of(inputs, opened).kept(), running(workshop.spark, words.joined(copied), tmp_path) as query:
        assert words.found(query, 1) == {"one"}
        words.write(2, "two")
        for attempt in Retrying(stop=stop_after_delay(60), wait=wait_fixed(1), reraise=True):
            with attempt:  # the list of a folder may be a second old
                later = 20 + attempt.retry_state.attempt_number
                words.write(later, "later")
                assert words.found(query, later) == {"later"}


@pytest.mark.full
def test_an_input_that_may_be_reused_is_read_again_when_its_time_is_over(
    workshop: Workshop, jdbc_settings: Settings, numbers_table: str, tmp_path: Path
) -> None:
    words, clock = Words(workshop, jdbc_settings, numbers_table, tmp_path), SetClock()
    inputs = words.inputs(refresh="10 minutes")
    opened = {name: open_input(workshop.spark, inputs[name], words.settings) for name in inputs}
    checkpoint = (tmp_path / "kept").as_uri()
    copied = with_copies(inputs, opened, StaticCopies(), checkpoint=checkpoint, clock=clock)

    with running(workshop.spark, words.joined(copied), tmp_path) as query:
        assert words.found(query, 1) == {"one"}
        words.write(2, "two")
        clock.time += timedelta(seconds=599)
        assert words.found(query, 2) == {None}
        words.write(3, "three")
        clock.time += timedelta(seconds=1)
        assert words.found(query, 3) == {"three"}
    kept = [folder for name in inputs for folder in (tmp_path / "kept" / "static" / name).iterdir()]
    assert len(kept) == len(inputs), "a copy is removed when a newer one is there"


def test_without_static_inputs_nothing_is_renewed() -> None:
    with Renewals({}).kept():
        pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A stream of ids that looks words up in a database whose view says in each row how often it was read."""

    workshop: Workshop
    view: str
    stream: str

    def declare(self, **how: Any) -> None:
        """Two outputs that take each record, one for each of two look-ups. how: further keys of the input."""
        workshop = self.workshop
        looked_up = {"static": {"jdbc": {"connection": "database", "table": self.view}}, **how}
        workshop.declare_stream(
            self.stream,
            python="""
            def transform(records, words):
                joined = records.join(words, "id", "left")
                return {"first": joined.select("id", "reading"), "second": joined.select("reading", "id")}
            """,
            inputs={
                "records": {"stream": {"iceberg": {"table": workshop.table_name("records")}}},
                "words": looked_up,
            },
            outputs={name: {"iceberg": {"table": workshop.table_name(name)}} for name in ("first", "second")},
        )

    def ask(self, id_: int) -> None:
        """Let a record arrive."""
        self.workshop.append("records", [{"id": id_}])

    def readings(self, id_: int) -> list[int]:
        """Which reading of the view each output shows for a record."""
        found = [row for name in ("first", "second") for row in self.workshop.rows(name)]
        return [row["reading"] for row in found if row["id"] == id_]


@pytest.fixture
def counted(workshop: Workshop, jdbc_settings: Settings, numbers_table: str) -> Iterator[Counted]:
    """A stream without declaration, its tables, and the view."""
    name = f"counted_{uuid4().hex[:8]}"
    run_sql(jdbc_settings, f"CREATE SEQUENCE {name}_readings")
    run_sql(
        jdbc_settings,
        f"CREATE VIEW {name} AS SELECT series AS id, reading.number AS reading FROM generate_series(1::bigint, 9) "  # noqa: S608  # our own names
        f"AS series, (SELECT nextval('{name}_readings') AS number) AS reading",
    )
    settings = workshop.settings.model_copy(update={"connections": jdbc_settings.connections})
    workshop.declare_table("records", {"id": "long"})
    for table in ("first", "second"):
        workshop.declare_table(table, {"id": "long", "reading": "long"})
    yield Counted(workshop=replace(workshop, settings=settings), view=name, stream=f"s{workshop.namespace}")
    run_sql(jdbc_settings, f"DROP VIEW {name}")
    run_sql(jdbc_settings, f"DROP SEQUENCE {name}_readings")


@pytest.mark.full
def test_all_outputs_of_a_batch_see_one_state_of_a_database(counted: Counted) -> None:
    counted.declare()
    for id_ in (1, 2):
        counted.ask(id_)
        counted.workshop.run(counted.stream)

    assert counted.readings(1) == [1, 1]
    assert counted.readings(2) == [2, 2]


@pytest.mark.full
def test_a_batch_that_runs_again_sees_what_it_saw_the_first_time(counted: Counted) -> None:
    counted.declare()
    counted.ask(1)
    with pytest.raises(OSError, match="dies here"):
        counted.workshop.run(counted.stream, reached=dying_at(CrashPoint.FIRST_OUTPUT_STAGED))
    counted.ask(2)

    counted.workshop.run(counted.stream)

    assert counted.readings(1) == [1, 1]
    assert counted.readings(2) == [2, 2]


@pytest.mark.full
def test_a_copy_that_was_not_written_to_its_end_is_made_again(counted: Counted) -> None:
    counted.declare()
    counted.ask(1)
    with pytest.raises(OSError, match="dies here"):
        counted.workshop.run(counted.stream, reached=dying_at(CrashPoint.FIRST_OUTPUT_STAGED))
    (copy,) = (counted.workshop.checkpoint(counted.stream) / "static" / "words").iterdir()
    for file in copy.iterdir():
        file.unlink()

    counted.workshop.run(counted.stream)

    assert counted.readings(1) == [2, 2]


@pytest.mark.full  # every run reads what may not be reused again (`test_watermarks.py`)
def test_batches_and_runs_share_what_may_be_reused(counted: Counted) -> None:
    counted.declare(refresh="1 hour")
    for id_ in (1, 2):
        counted.ask(id_)
        counted.workshop.run(counted.stream)

    assert counted.readings(1) == counted.readings(2) == [1, 1]


@pytest.mark.full
def test_a_copy_of_another_table_is_not_read_however_new_it_is(counted: Counted) -> None:
    counted.declare(refresh="1 hour")
    counted.ask(1)
    counted.workshop.run(counted.stream)
    settings = counted.workshop.settings
    run_sql(settings, f"CREATE VIEW {counted.view}_other AS SELECT id, 100 + reading AS reading FROM {counted.view}")  # noqa: S608  # our own names
    replace(counted, view=f"{counted.view}_other").declare(refresh="1 hour")
    counted.ask(2)

    counted.workshop.run(counted.stream)

    run_sql(settings, f"DROP VIEW {counted.view}_other")
    assert counted.readings(2) == [102, 102]


@pytest.mark.full  # as the tables that may be reused
def test_csv_files_that_may_be_reused_are_copied_as_they_are_decoded(workshop: Workshop, tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "a.csv").write_text("id,word\n1,one\n")
    (tmp_path / "words" / "b.csv").write_text("word,id\ntwo,2\n")
    here = FilesConnection(kind="files", root=tmp_path.as_uri())
    connections = {**workshop.settings.connections, "here": here}
    own = replace(workshop, settings=workshop.settings.model_copy(update={"connections": connections}))
    columns = [{"name": "id", "type": "long"}, {"name": "word", "type": "string"}]
    words = {"connection": "here", "path": "words", "format": "csv", "columns": columns}
    for table, kinds in (("records", {"id": "long"}), ("found", {"id": "long", "word": "string"})):
        own.declare_table(table, kinds)
    stream = f"s{own.namespace}"
    own.declare_stream(
        stream,
        sql="SELECT records.id, words.word FROM records LEFT JOIN words ON records.id = words.id",
        inputs={
            "records": {"stream": {"iceberg": {"table": own.table_name("records")}}},
            "words": {"static": {"files": words}, "refresh": "1 hour"},
        },
        outputs={"found": {"iceberg": {"table": own.table_name("found")}}},
    )
    own.append("records", [{"id": 1}, {"id": 2}])

    own.run(stream)

    assert own.rows("found") == [{"id": 1, "word": "one"}, {"id": 2, "word": "two"}]


@pytest.mark.full
def test_a_database_that_fails_within_a_batch_ends_the_run_with_its_own_error(counted: Counted) -> None:
    counted.declare()
    counted.ask(1)
    run_sql(counted.workshop.settings, f"ALTER SEQUENCE {counted.view}_readings MINVALUE 0 MAXVALUE 1 NO CYCLE")
    counted.workshop.run(counted.stream)
    counted.ask(2)

    with pytest.raises(Py4JJavaError) as failed:
        counted.workshop.run(counted.stream)

    assert "reached maximum value of sequence" in first_line(failed.value)


@pytest.mark.full  # every run: each type of a database (`test_database_values.py`)
def test_a_number_that_spark_would_round_is_refused_by_its_column(jdbc_settings: Settings, workshop: Workshop) -> None:
    name = f"amounts_{uuid4().hex[:8]}"
    run_sql(jdbc_settings, f"CREATE TABLE {name} (id bigint, amount numeric)")
    run_sql(jdbc_settings, f"INSERT INTO {name} VALUES (1, 0.1234567890123456789)")  # noqa: S608  # our own name
    cast = f"SELECT id, amount::numeric(38, 19) AS amount FROM {name}"  # noqa: S608  # as above
    run_sql(jdbc_settings, f"CREATE VIEW {name}_cast AS {cast}")

    def opened(table: str) -> DataFrame:
        source = {"jdbc": {"connection": "database", "table": table}}
        return open_input(workshop.spark, InputDeclaration.model_validate({"static": source}), jdbc_settings)

    with pytest.raises(SchemaError, match="column amount of type numeric has no scale"):
        opened(name)
    assert [str(row.amount) for row in opened(f"{name}_cast").collect()] == ["0.1234567890123456789"]

    run_sql(jdbc_settings, f"CREATE DOMAIN {name}_price AS numeric(9, 2)")
    run_sql(
        jdbc_settings,
        f'CREATE TABLE {name}_odd (id bigint, "at" timestamptz, "of day" date, price {name}_price, n numeric(9, 2))',
    )
    run_sql(jdbc_settings, f"INSERT INTO {name}_odd VALUES (1, now(), '2026-01-31', 1.25, NULL)")  # noqa: S608  # as above
    (row,) = opened(f"{name}_odd").collect()
    assert (str(row["of day"]), str(row.price), row.n) == ("2026-01-31", "1.25", None)
    for column, value in (("at", "-infinity"), ("of day", "infinity"), ("price", "NaN"), ("n", "NaN")):
        run_sql(jdbc_settings, f"UPDATE {name}_odd SET \"{column}\" = '{value}'")  # noqa: S608  # as above
        with pytest.raises(Py4JJavaError, match=f"{value} in column {column}"):
            opened(f"{name}_odd").collect()
        run_sql(jdbc_settings, f'UPDATE {name}_odd SET "{column}" = NULL')  # noqa: S608  # as above

    run_sql(jdbc_settings, f"DROP TABLE {name}_odd")
    run_sql(jdbc_settings, f"DROP DOMAIN {name}_price")
    run_sql(jdbc_settings, f"DROP TABLE {name} CASCADE")
