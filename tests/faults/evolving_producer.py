"""Lets producers change their schemas beside a running chain, and compares every row with DuckDB.

    .venv/bin/python -m tests.faults.evolving_producer [--minutes 30] [--every 60]

A topic with a registry, a folder of files and a table of Iceberg are each written without a pause, and change every
minute: a column is added, widened, made optional, renamed, dropped, added again. Four continuous streams run beside
them: two into bronze, one that unites bronze and the table in silver, and one that counts silver in gold. In the end
each row is in silver with the values that were sent, in the quarantine with its reason, or in a file that was refused
by its name; and each change is an event with both sides. Ends with 1 when one is not.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import SparkSession
from rich.console import Console
from tests.fixtures.drivers import await_condition
from tests.fixtures.evolving_sources import CHANGES, Folder, Row, Sender, Sent, SourceTable, Topic
from tests.fixtures.registry import Registry, registry_in
from tests.fixtures.stack import stack_in
from tests.fixtures.workshop import Workshop

from sluice.declarations.engine_declaration import EngineDeclaration, StateDeclaration
from sluice.errors import SchemaError
from sluice.launching.launch_settings import launch_conf
from sluice.ledger.connection import open_ledger
from sluice.ledger.events import EventSubject, recent_events
from sluice.settings import FilesConnection, KafkaConnection, Settings
from sluice.sources.kafka_clients import client_settings
from sluice_spark.run.stop_request import StopReason, StopRequest
from sluice_spark.session.session import open_session

_ROWS, _PAUSE_SECONDS, _END_SECONDS = 10, 5.0, 300.0
_CONSOLE = Console(width=160)
_SENT: dict[str, Any] = {"source": pl.String, "id": pl.Int64, "n": pl.Int64, "d": pl.Decimal(9, 2), "word": pl.String}
_TYPES = {"id": "long", "n": "long", "d": "decimal(9, 2)", "word": "string"}
_CONTINUOUS: dict[str, Any] = {"mode": "continuous", "trigger": {"processing_time": "2 seconds"}}

SILVER = """
    def transform(k, f, r):
        word = "note" if "note" in r.columns else "word"
        d = "d" if "d" in r.columns else "CAST(NULL AS decimal(9, 2))"
        parts = [
            k.selectExpr("'topic' AS source", "id", "n", "d", "word"),
            f.selectExpr("'files' AS source", "id", "n", "d", "word"),
            r.selectExpr("'table' AS source", "id", "CAST(n AS long) AS n", f"{d} AS d", f"{word} AS word"),
        ]
        return parts[0].unionByName(parts[1]).unionByName(parts[2])
"""


class Running:
    """A continuous stream on a thread, started again when a person has done something about what it refused."""

    def __init__(self, workshop: Workshop, stream: str, *, repair: Callable[[SchemaError], None] | None = None) -> None:
        self._workshop, self._stream, self._repair = workshop, stream, repair
        self._stop, self._is_ended = StopRequest(), False
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name=stream)
        self._thread.start()

    def restart(self) -> None:
        """Stop it behind its batch, and start it again: a new column is read from the next start on."""
        self._stop.make(StopReason.STOPPED)

    def end(self) -> None:
        """Stop it behind its batch."""
        self._is_ended = True
        self.restart()
        self._thread.join()

    def _work(self) -> None:
        while not self._is_ended:
            self._stop = StopRequest()
            if self._is_ended:  # since the line above, so that the request before has the stop
                return
            try:
                self._workshop.run(self._stream, stop=self._stop, is_recorded=True)
            except SchemaError as error:
                if self._repair is None:
                    self.failure = error
                    return
                self._repair(error)
            except BaseException as error:  # noqa: BLE001  # whatever ends a stream is a finding
                self.failure = error
                return
            _CONSOLE.print(f"{self._stream} has stopped")


def declare(workshop: Workshop, topic: str) -> None:
    """The four streams and their tables."""
    tables = {name: workshop.declare_table(name, _TYPES) for name in ("k", "f")}
    columns = [{"name": name, "type": kind, "required": name in ("id", "word")} for name, kind in _TYPES.items()]
    silver = workshop.declare_table("silver", {"source": "string", **_TYPES})
    gold = workshop.declare_table("gold", {"source": "string", "rows": "long", "total": "decimal(38, 0)"})
    readings = workshop.declare_table("readings", {**_TYPES, "n": "int"}, required=["id", "n"])
    value = {"format": "avro", "registry": "registry", "columns": columns}
    kafka = {"connection": "flights_kafka", "topics": [topic], "value": value}
    optional = [{key: one[key] for key in ("name", "type")} for one in columns]
    files = {"connection": "here", "format": "parquet", "columns": optional, "on_changed": "ignore"}
    select = "SELECT id, n, d, word FROM rows"
    for name, source in (("k", {"kafka": kafka}), ("f", {"files": files})):
        workshop.declare_stream(
            f"bronze_{name}",
            sql=select,
            inputs={"rows": {"stream": source}},
            outputs={"main": {"iceberg": {"table": tables[name]}}},
            quarantine=name == "k",
            **_CONTINUOUS,
        )
    inputs = {"k": tables["k"], "f": tables["f"], "r": readings}
    workshop.declare_stream(
        "silver",
        python=SILVER,
        inputs={name: {"stream": {"iceberg": {"table": table}}} for name, table in inputs.items()},
        outputs={"main": {"iceberg": {"table": silver}}},
        **_CONTINUOUS,
    )
    workshop.declare_stream(
        "gold",
        sql="SELECT source, count(*) AS rows, CAST(sum(n) AS decimal(38, 0)) AS total FROM s GROUP BY source",
        inputs={"s": {"stream": {"iceberg": {"table": silver}}}},
        outputs={"main": {"iceberg": {"table": gold, "mode": "complete"}}},
        **_CONTINUOUS,
    )


def produce(
    sources: Sequence[Sender],
    *,
    minutes: float,
    every_seconds: float,
    before: Callable[[str, Sent], None],
    after: Callable[[str], None],
) -> Sent:
    """Write rows for so long, with a change of all schemas every so many seconds, until all changes were made.

    before, after: what a person does about a change, before and after it is made.
    """
    sent, began, made = Sent(), time.monotonic(), 0
    number = 0
    while time.monotonic() - began < minutes * 60:
        if made < len(CHANGES) and time.monotonic() - began >= (made + 1) * every_seconds:
            before(CHANGES[made], sent)
            for source in sources:
                source.evolve(CHANGES[made])
            after(CHANGES[made])
            made += 1
            _CONSOLE.print(f"{time.monotonic() - began:5.0f} s: {CHANGES[made - 1]}")
        for source in sources:
            rows = [Row(id=number + index, change=CHANGES[made - 1] if made else "") for index in range(_ROWS)]
            source.send(rows, sent)
            number += _ROWS
        time.sleep(_PAUSE_SECONDS)
    assert made == len(CHANGES), "more minutes, or more changes in them"
    return sent


def compare(workshop: Workshop, sent: Sent) -> Iterator[str]:
    """What is not as it must be, by DuckDB."""
    known = duckdb.connect()
    known.register("right_rows", pl.DataFrame(sent.right, schema=_SENT).to_arrow())
    known.register("silver", workshop.table("silver").scan().to_arrow())
    known.register("gold", workshop.table("gold").scan().to_arrow())
    known.register("quarantine", workshop.table("quarantine.bronze_k").scan().to_arrow())
    for title, query in (
        ("lost", "FROM right_rows EXCEPT ALL SELECT source, id, n, d, word FROM silver"),
        ("wrong or twice", "SELECT source, id, n, d, word FROM silver EXCEPT ALL FROM right_rows"),
        (
            "of gold",
            "SELECT source, count(*) AS rows, sum(n)::decimal(38, 0) AS total FROM right_rows GROUP BY source "
            "EXCEPT ALL SELECT source, rows, total FROM gold",
        ),
    ):
        found = known.execute(query).fetchall()
        if found:
            yield f"{title}: {len(found)}, such as {found[:3]}"
    reasons = dict(known.execute("SELECT reason, count(*) FROM quarantine GROUP BY reason").fetchall())
    if reasons != {"the value lacks required columns: word": len(sent.rejected)}:
        yield f"the quarantine: {reasons}, and {len(sent.rejected)} values were renamed"


def changes_seen(workshop: Workshop) -> Iterator[str]:
    """The changes without an event. Two that come between two looks have one together; one that files of another sender
    had before, or a schema of the registry, is none."""
    all_have = {"colour new", "n changed", "word gone", "note new", "d gone"}
    for stream, expected in (("bronze_k", all_have), ("bronze_f", all_have), ("silver", all_have | {"d new"})):
        events = recent_events(workshop.ledger, EventSubject.STREAM, stream, limit=1_000)
        seen = [one for one in reversed(events) if one.action == "see_schema"]
        for one in seen:
            _CONSOLE.print(f"{stream}: {one.explanation}")
        found = {
            f"{change['field']} {'changed' if change['was'] and change['now'] else 'gone' if change['was'] else 'new'}"
            for one in seen
            for change in one.evidence["changes"]
        }
        if missing := expected - found:
            yield f"{stream} has no event of {', '.join(sorted(missing))}"


@contextmanager
def opened(settings: Settings, folder: Path) -> Iterator[tuple[Workshop, Callable[[], Workshop]]]:
    """A workshop, and what makes one with a session of its own for a stream."""
    conf = launch_conf(home=settings.home, jars=settings.jars, engine=EngineDeclaration(), is_bounded=False)
    words = ["--master", "local[2]", *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}"))]
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "PYSPARK_SUBMIT_ARGS": shlex.join([*words, "pyspark-shell"])}
    (folder / "pipelines").mkdir()
    own: dict[str, Any] = {"pipelines": folder / "pipelines", "checkpoints": (folder / "checkpoints").as_uri()}
    settings = settings.model_copy(update=own)
    spark: SparkSession = open_session(settings, name="evolving producer", state=StateDeclaration())
    with open_ledger(settings.ledger_url.get_secret_value()) as ledger:
        made = partial(Workshop, settings=settings, ledger=ledger, namespace="evolving")
        yield made(spark=spark), lambda: made(spark=spark.newSession())
    spark.stop()


def main(arguments: list[str]) -> int:
    """Run it and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--every", type=float, default=60, help="seconds between two changes")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name, stack_in(Path(name) / "data") as stack:
        folder = Path(name)
        (folder / "registry").mkdir()
        (folder / "in").mkdir()
        stack.up(("postgres", "seaweedfs", "kafka"))
        with registry_in(folder / "registry") as registry:
            here = FilesConnection(kind="files", root=(folder / "in").as_uri())
            settings = stack.settings()
            connections = {**settings.connections, "registry": registry.connection, "here": here}
            settings = settings.model_copy(update={"connections": connections})
            with opened(settings, folder) as (workshop, another):
                problems = _run(workshop, another, registry, folder / "in", options)
    for problem in problems:
        _CONSOLE.print(f"PROBLEM {problem}")
    return 1 if problems else 0


def _run(
    workshop: Workshop, another: Callable[[], Workshop], registry: Registry, place: Path, options: argparse.Namespace
) -> list[str]:
    kafka = client_settings(workshop.settings.connection("flights_kafka", KafkaConnection))
    admin = AdminClient({**kafka})
    admin.create_topics([NewTopic("evolving", 1, 1)])["evolving"].result()
    declare(workshop, "evolving")
    folder = Folder(place=place)
    sources: list[Sender] = [
        Topic(name="evolving", registry=registry, producer=Producer({**kafka})),
        folder,
        SourceTable(load=lambda: workshop.table("readings")),
    ]
    silver = Running(another(), "silver")
    streams = [
        silver,
        Running(another(), "bronze_k"),
        Running(another(), "bronze_f", repair=folder.write_again),
        Running(another(), "gold"),
    ]

    def before(change: str, sent: Sent) -> None:
        if change == "dropped":  # what was not read before is gone with the column
            ids = {row["id"] for row in sent.right if row["source"] == "table"}
            await_condition(
                lambda: ids <= set(workshop.table("silver").scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()),
                within_seconds=_END_SECONDS,
            )

    def after(change: str) -> None:
        if change == "added again":
            silver.restart()

    try:
        sent = produce(sources, minutes=options.minutes, every_seconds=options.every, before=before, after=after)
        figures = (len(sent.right), len(sent.rejected), len(sent.refused))
        _CONSOLE.print("{} rows to publish, {} to reject, {} in refused files".format(*figures))
        await_condition(
            lambda: not any(compare(workshop, sent)) or any(one.failure for one in streams), within_seconds=_END_SECONDS
        )
    finally:
        for one in streams:
            one.end()
    failures = [f"a stream ended: {one.failure}" for one in streams if one.failure is not None]
    return [*failures, *compare(workshop, sent), *changes_seen(workshop)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
