"""A static input is as fresh as declared: read for every batch, or reused for a while."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import DataFrame
from pyspark.sql import functions as fn
from tenacity import Retrying, stop_after_delay, wait_fixed
from tests.fixtures.database import run_sql
from tests.fixtures.streaming import Running, running
from tests.fixtures.workshop import Workshop

from sluice.declarations.input_declaration import InputDeclaration
from sluice.settings import FilesConnection, Settings
from sluice_spark.query.static_inputs import Renewals, renewals_of
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


def test_every_batch_reads_a_static_input_again(
    workshop: Workshop, jdbc_settings: Settings, numbers_table: str, tmp_path: Path
) -> None:
    words = Words(workshop, jdbc_settings, numbers_table, tmp_path)
    inputs = words.inputs()
    opened = {name: open_input(workshop.spark, inputs[name], words.settings) for name in inputs}

    with renewals_of(inputs, opened).kept(), running(workshop.spark, words.joined(opened), tmp_path) as query:
        assert words.found(query, 1) == {"one"}
        words.write(2, "two")
        for attempt in Retrying(stop=stop_after_delay(60), wait=wait_fixed(1), reraise=True):
            with attempt:  # the list of a folder may be a second old
                later = 20 + attempt.retry_state.attempt_number
                words.write(later, "later")
                assert words.found(query, later) == {"later"}


def test_an_input_that_may_be_reused_is_read_again_when_its_time_is_over(
    workshop: Workshop, jdbc_settings: Settings, numbers_table: str, tmp_path: Path
) -> None:
    words = Words(workshop, jdbc_settings, numbers_table, tmp_path)
    inputs = words.inputs(refresh="10 minutes")
    opened = {name: open_input(workshop.spark, inputs[name], words.settings) for name in inputs}
    renewals = renewals_of(inputs, opened)
    renewals.renew_due(now_seconds=0)

    with running(workshop.spark, words.joined(opened), tmp_path) as query:
        assert words.found(query, 1) == {"one"}
        words.write(2, "two")
        renewals.renew_due(now_seconds=599)
        assert words.found(query, 2) == {None}
        words.write(3, "three")
        renewals.renew_due(now_seconds=600)
        assert words.found(query, 3) == {"three"}
    for rows in opened.values():
        rows.unpersist()


def test_without_static_inputs_nothing_is_renewed() -> None:
    with Renewals(()).kept():
        pass
