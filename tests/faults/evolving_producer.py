"""Lets producers change their schemas beside a running chain, and compares every row with DuckDB.

    .venv/bin/python -m tests.faults.evolving_producer [--minutes 30] [--every 60]

A topic with a registry, a folder of files and a table of Iceberg are each written without a pause, and change every
minute to the end: a column is added, one widened, made optional, one renamed, one dropped, added again with another
type, and the next round does the same to other columns. Four continuous streams run beside
them: two into bronze, one that unites bronze and the table in silver, and one that counts silver in gold. In the end
each row is in silver with the values that were sent, in the quarantine with its reason, or in a file that was refused
by its name; and each change is an event with both sides. Ends with 1 when one is not.
"""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
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
from tests.fixtures.evolving_sources import CHANGES, Folder, Row, Schema, Sender, Sent, SourceTable, Topic
from tests.fixtures.registry import Registry, registry_in
from tests.fixtures.stack import stack_in
from tests.fixtures.workshop import Workshop

from sluice.declarations.run_declaration import EngineDeclaration, StateDeclaration
from sluice.errors import SchemaError
from sluice.launching.launch_settings import launch_conf
from sluice.ledger.connection import open_ledger
from sluice.ledger.events import EventSubject, recent_events
from sluice.processes.deadline import wait_until
from sluice.settings import FilesConnection, KafkaConnection, Settings
from sluice.sources.kafka_clients import client_settings
from sluice_spark.run.stop_request import StopReason, StopRequest
from sluice_spark.session.session import open_session

_ROWS, _PAUSE_SECONDS, _END_SECONDS = 10, 5.0, 900.0
_CONSOLE = Console(width=160)
_CONTINUOUS: dict[str, Any] = {"mode": "continuous", "trigger": {"processing_time": "2 seconds"}}

SILVER = """
    NUMBERS = {numbers}

    def transform(k, f, r):
        word = next((name for name in r.columns if name.startswith("note")), "word")
        d = "CAST(d AS decimal(18, 2)) AS d" if "d" in r.columns else "CAST(NULL AS decimal(18, 2)) AS d"
        table = [f"CAST({{name}} AS long) AS {{name}}" for name in NUMBERS]
        parts = [
            k.selectExpr("'topic' AS source", "id", *NUMBERS, "d", "word"),
            f.selectExpr("'files' AS source", "id", *NUMBERS, "d", "word"),
            r.selectExpr("'table' AS source", "id", *table, d, f"{{word}} AS word"),
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


def declare(workshop: Workshop, topic: str, *, first: Schema) -> None:
    """The four streams and their tables. first: the schema of the senders before any change."""
    numbers = [f"n{number}" for number in first.numbers]
    types = {"id": "long", **dict.fromkeys(numbers, "long"), "d": "decimal(18, 2)", "word": "string"}
    tables = {name: workshop.declare_table(name, types) for name in ("k", "f")}
    columns = [{"name": name, "type": kind, "required": name in ("id", "word")} for name, kind in types.items()]
    silver = workshop.declare_table("silver", {"source": "string", **types})
    gold = workshop.declare_table("gold", {"source": "string", "rows": "long", "total": "decimal(38, 0)"})
    written = types | dict.fromkeys(numbers, "int") | {"d": f"decimal({first.precision}, 2)"}
    readings = workshop.declare_table("readings", written, required=["id", *numbers])
    value = {"format": "avro", "registry": "registry", "columns": columns}
    kafka = {"connection": "flights_kafka", "topics": [topic], "value": value}
    optional = [{key: one[key] for key in ("name", "type")} for one in columns]
    files = {"connection": "here", "format": "parquet", "columns": optional, "on_changed": "ignore"}
    for name, source in (("k", {"kafka": kafka}), ("f", {"files": files})):
        workshop.declare_stream(
            f"bronze_{name}",
            sql=f"SELECT {', '.join(types)} FROM rows",  # noqa: S608  # names of this module
            inputs={"rows": {"stream": source}},
            outputs={"main": {"iceberg": {"table": tables[name]}}},
            quarantine=name == "k",
            **_CONTINUOUS,
        )
    inputs = {"k": tables["k"], "f": tables["f"], "r": readings}
    workshop.declare_stream(
        "silver",
        python=SILVER.format(numbers=numbers),
        inputs={name: {"stream": {"iceberg": {"table": table}}} for name, table in inputs.items()},
        outputs={"main": {"iceberg": {"table": silver}}},
        **_CONTINUOUS,
    )
    workshop.declare_stream(
        "gold",
        sql=f"SELECT source, count(*) AS rows, CAST({_total(first)} AS decimal(38, 0)) AS total "  # noqa: S608
        "FROM s GROUP BY source",
        inputs={"s": {"stream": {"iceberg": {"table": silver}}}},
        outputs={"main": {"iceberg": {"table": gold, "mode": "complete"}}},
        **_CONTINUOUS,
    )


def _total(schema: Schema) -> str:
    return f"sum({' + '.join(f'coalesce(n{number}, 0)' for number in schema.numbers)})"


def produce(
    sources: Sequence[Sender],
    *,
    changes: int,
    every_seconds: float,
    before: Callable[[Schema, Sent], None],
    after: Callable[[Schema], None],
) -> Sent:
    """Write rows, with a change of all schemas every so many seconds, until so many were made and one more was due.

    before, after: what a person does about a change, before and after it is made.
    """
    sent, began, number = Sent(), time.monotonic(), 0
    schema = Schema(0, rounds=math.ceil(changes / len(CHANGES)))
    while schema.made < changes or time.monotonic() - began < (changes + 1) * every_seconds:
        if schema.made < changes and time.monotonic() - began >= (schema.made + 1) * every_seconds:
            schema = replace(schema, made=schema.made + 1)
            before(schema, sent)
            for source in sources:
                source.evolve(schema)
            after(schema)
            _CONSOLE.print(f"{time.monotonic() - began:5.0f} s: {schema.made}, {schema.change}")
        for source in sources:
            source.send([Row(number + index, schema) for index in range(_ROWS)], sent)
            number += _ROWS
        time.sleep(_PAUSE_SECONDS)
    return sent


def compare(workshop: Workshop, sent: Sent, *, schema: Schema) -> Iterator[str]:
    """What is not as it must be, by DuckDB."""
    known = duckdb.connect()
    numbers = [f"n{number}" for number in schema.numbers]
    types: dict[str, Any] = {"source": pl.String, "id": pl.Int64, **dict.fromkeys(numbers, pl.Int64)}
    right = pl.DataFrame(sent.right, schema=types | {"d": pl.Decimal(18, 2), "word": pl.String})
    known.register("right_rows", right.to_arrow())
    known.register("silver", workshop.table("silver").scan().to_arrow())
    known.register("gold", workshop.table("gold").scan().to_arrow())
    known.register("quarantine", workshop.table("quarantine.bronze_k").scan().to_arrow())
    columns = ", ".join(right.columns)
    for title, query in (
        ("lost", f"FROM right_rows EXCEPT ALL SELECT {columns} FROM silver"),  # noqa: S608  # names of this module
        ("wrong or twice", f"SELECT {columns} FROM silver EXCEPT ALL FROM right_rows"),  # noqa: S608
        (
            "of gold",
            f"SELECT source, count(*) AS rows, {_total(schema)}::decimal(38, 0) AS total FROM right_rows "  # noqa: S608
            "GROUP BY source EXCEPT ALL SELECT source, rows, total FROM gold",
        ),
    ):
        found = known.execute(query).fetchall()
        if found:
            yield f"{title}: {len(found)}, such as {found[:3]}"
    reasons = dict(known.execute("SELECT reason, count(*) FROM quarantine GROUP BY reason").fetchall())
    if reasons != ({"the value lacks required columns: word": len(sent.rejected)} if sent.rejected else {}):
        yield f"the quarantine: {reasons}, and {len(sent.rejected)} values were renamed"


def expected_changes(stream: str, *, last: Schema) -> Counter[str]:
    """What must have been seen of the changes up to the last one, each as often as it was made.

    A column of a parquet file may always be null, so that making one optional changes no file.
    """
    found: Counter[str] = Counter()
    is_table = stream == "silver"
    for made in range(1, last.made + 1):
        schema = Schema(made, rounds=last.rounds)
        round_ = schema.times(schema.change)
        match schema.change:
            case "added":
                found.update([f"colour{round_} new"])
            case "widened":
                found.update([f"n{round_} changed"])
            case "optional":
                found.update([f"n{round_} changed"] if stream != "bronze_f" else [])
            case "renamed":
                was = f"note{round_ - 1}" if is_table and round_ > 1 else "word"
                found.update([f"{was} gone", f"note{round_} new", *([] if is_table else [f"colour{round_} gone"])])
            case "dropped":
                found.update(["d gone", *([] if is_table else ["word new", f"note{round_} gone"])])
            case "added again":
                found.update(["d new"])
    return found


def changes_seen(workshop: Workshop, *, last: Schema) -> Iterator[str]:
    """The changes without an event."""
    for stream in ("bronze_k", "bronze_f", "silver"):
        events = recent_events(workshop.ledger, EventSubject.STREAM, stream, limit=1_000)
        seen = [one for one in reversed(events) if one.action == "see_schema"]
        for one in seen:
            _CONSOLE.print(f"{stream}: {one.explanation}")
        found = Counter(
            f"{change['field']} {'changed' if change['was'] and change['now'] else 'gone' if change['was'] else 'new'}"
            for one in seen
            for change in one.evidence["changes"]
        )
        expected = expected_changes(stream, last=last)
        _CONSOLE.print(f"{stream}: {len(seen)} events with {found.total()} changes, {expected.total()} expected")
        if missing := expected - found:
            yield f"{stream} has no event of {', '.join(sorted(missing.elements()))}"


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
    changes = max(1, int(options.minutes * 60 / options.every) - 1)
    first = Schema(0, rounds=math.ceil(changes / len(CHANGES)))
    declare(workshop, "evolving", first=first)
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

    def before(schema: Schema, sent: Sent) -> None:
        if schema.change == "dropped":  # what was not read before is gone with the column
            ids = {row["id"] for row in sent.right if row["source"] == "table"}
            await_condition(
                lambda: ids <= set(workshop.table("silver").scan(selected_fields=("id",)).to_arrow()["id"].to_pylist()),
                within_seconds=_END_SECONDS,
            )

    def after(schema: Schema) -> None:
        if schema.change == "added again":
            silver.restart()

    try:
        sent = produce(sources, changes=changes, every_seconds=options.every, before=before, after=after)
        figures = (len(sent.right), len(sent.rejected), len(sent.refused))
        _CONSOLE.print("{} rows to publish, {} to reject, {} in refused files".format(*figures))
        wait_until(
            lambda: not any(compare(workshop, sent, schema=first)) or any(one.failure for one in streams),
            bool,
            seconds=_END_SECONDS,
            poll_seconds=2.0,
        )
    finally:
        for one in streams:
            one.end()
    failures = [f"a stream ended: {one.failure}" for one in streams if one.failure is not None]
    last = replace(first, made=changes)
    return [*failures, *compare(workshop, sent, schema=first), *changes_seen(workshop, last=last)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
