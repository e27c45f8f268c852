"""A test kit for streams: feeds a declared stream batch by batch, crashes it at a named point, and reads its tables.

A plugin for pytest. In a `conftest.py`:

    pytest_plugins = ["sluice_spark.testing"]

The stream runs with its declaration and its transformation, by the code that runs in production, on a real Spark,
catalog, object store and ledger. The kit starts these in a temporary folder, once for all tests. Only two things are
replaced: a `stream` input reads a table that the test feeds, and every name has a prefix of its test, so that tests are
independent.
How to use it: `docs/guides/test-your-stream.md`.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import Declarations, LoadedStream, quarantine_declaration
from sluice.declarations.run_declaration import EngineDeclaration, StateDeclaration
from sluice.declarations.source_declarations import FilesSource, IcebergSource, KafkaSource
from sluice.declarations.table_declaration import TableColumn, TableDeclaration
from sluice.declarations.value_declaration import Column
from sluice.errors import UsageError
from sluice.launching.launch_settings import launch_conf
from sluice.ledger.batches import BatchObservation, record_batch
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.runs import admit_run
from sluice.project_file import find_project
from sluice.publication.crash_points import CrashPoint, Reached, unnoticed
from sluice.settings import Settings, load_settings
from sluice.stack.environment import load_environment
from sluice.supervision.held_lease import HeldLease
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import create_or_evolve_table
from sluice_spark.run.job import recorded_end
from sluice_spark.run.stop_request import StopRequest
from sluice_spark.run.supervised_run import SupervisedRun
from sluice_spark.session.session import open_session

_KAFKA_COLUMNS = (
    Column(name="key", type="binary"),
    Column(name="value", type="binary"),
    Column(name="topic", type="string"),
    Column(name="partition", type="int"),
    Column(name="offset", type="long"),
    Column(name="timestamp", type="timestamptz"),
)


class CrashError(Exception):
    """The driver crashes at this point of a test."""


@dataclass(slots=True)
class _CrashAt:
    """Ends a run at a crash point, and records whether the run reached it."""

    point: CrashPoint
    has_crashed: bool = False

    def __call__(self, reached: CrashPoint) -> None:
        if reached is self.point:
            self.has_crashed = True
            raise CrashError(f"the test crashes the driver at {reached}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamBench:
    """A declared stream on a test bench.

    stream: the stream with the replaced inputs and names.
    prefix: the prefix of the names of its tables.
    batches: the observations of all batches so far.
    """

    spark: SparkSession
    settings: Settings
    ledger: Ledger
    stream: LoadedStream
    declarations: Declarations
    prefix: str
    batches: list[BatchObservation] = field(default_factory=list)

    def feed(self, input_name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows to an input. The next run reads all rows that were fed since the last run, as one batch.

        Parameters
        ----------
        input_name: a `stream` input of the declaration.
        rows: Python values by column; columns that a row lacks are null.

        Raises
        ------
        UsageError: when the stream has no such input.
        """
        declared = self.stream.declaration.inputs.get(input_name)
        if declared is None or declared.stream is None or declared.stream.iceberg is None:
            raise UsageError(f"The stream has no stream input {input_name}.")
        self._append(declared.stream.iceberg.table, rows)

    def fill(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows to a table that a `static` input reads. table: its declared name."""
        self._append(self._own(table), rows)

    def advance_watermark(self, input_name: str, to: datetime, *, like: Mapping[str, Any]) -> None:
        """Advance the watermark of an input: feed a row with a newer event time, and run.

        Spark applies the watermark of the previous batch to a batch, so there are two such rows and two runs.

        Parameters
        ----------
        input_name: a `stream` input with a watermark.
        to: windows up to this time are closed, and older rows are late.
        like: a template of the rows; its event time is replaced. The transformation processes them like any other row.

        Raises
        ------
        UsageError: when the input declares no watermark.
        """
        watermark = self.stream.declaration.inputs[input_name].watermark
        if watermark is None:
            raise UsageError(f"The input {input_name} declares no watermark.")
        for _ in range(2):
            self.feed(input_name, [{**like, watermark.column: to + watermark.delay}])
            self.run()

    def run(self, *, crash_at: CrashPoint | None = None) -> tuple[BatchObservation, ...]:
        """Run the stream over the fed rows, in this process, from its checkpoint.

        Parameters
        ----------
        crash_at: the point at which the driver crashes; the next run is the restart.

        Returns
        -------
        The observations of the batches. A batch that a crash left unfinished is the first one of the next run.

        Raises
        ------
        AssertionError: when the run did not reach the crash point.
        """
        if crash_at is None:
            return self._run(unnoticed)
        crash = _CrashAt(crash_at)
        try:
            self._run(crash)
        except Exception:  # after the crash: Spark raises an error of its own with its text
            if not crash.has_crashed:
                raise
        assert crash.has_crashed, f"the run did not reach {crash_at}"  # noqa: S101  # a test's own
        return ()

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Read the rows of a table without Spark, ordered by their values. table: its declared name."""
        found: list[dict[str, Any]] = self._table(self._own(table)).scan().to_arrow().to_pylist()
        return sorted(found, key=lambda row: [(value is not None, str(value)) for value in row.values()])

    def refused(self) -> list[dict[str, Any]]:
        """Read the rows of the stream's quarantine."""
        found: list[dict[str, Any]] = (
            self._table(self.stream.declaration.quarantine_table).scan().to_arrow().to_pylist()
        )
        return found

    def _run(self, reached: Reached) -> tuple[BatchObservation, ...]:
        done = run_here(self.spark, self.settings, self.ledger, self.stream, reached=reached)
        self.batches.extend(done)
        return done

    def _own(self, table: str) -> str:
        return f"{self.prefix}_{table}"

    def _table(self, name: str) -> Any:

        return open_catalog(self.settings).load_table(name)

    def _append(self, table: str, rows: Sequence[Mapping[str, Any]]) -> None:

        opened = self._table(table)
        schema = opened.schema().as_arrow()
        if unknown := sorted({name for row in rows for name in row} - set(schema.names)):
            raise UsageError(f"{table} has no column {', '.join(unknown)}; it has {', '.join(schema.names)}.")
        opened.append(pa.Table.from_pylist([dict(row) for row in rows], schema=schema))


def run_here(
    spark: SparkSession, settings: Settings, ledger: Ledger, stream: LoadedStream, *, reached: Reached = unnoticed
) -> tuple[BatchObservation, ...]:
    """Run a stream in this process and an open session, as its job does, until it ends.

    Parameters
    ----------
    spark, settings, ledger: the session and the deployment.
    stream: the stream.
    reached: called with each crash point that a batch reaches; an error that it raises ends the run.

    Returns
    -------
    The observations of the batches.
    """

    mode = stream.declaration.mode
    run = admit_run(ledger, stream=stream.name, mode=mode, declaration_digest=stream.digest, launched_by="a test bench")
    lease = HeldLease(stream=run.stream, token=run.token)
    lease.renewed(asked_at_seconds=lease.now_seconds())
    batches: list[BatchObservation] = []

    def take(batch: BatchObservation, recorded: Callable[[], None]) -> None:
        batches.append(batch)
        lease.renewed(asked_at_seconds=lease.now_seconds())  # a run here has no heartbeat
        record_batch(ledger, batch)
        recorded()

    work = SupervisedRun(settings=settings, ledger=ledger, stream=stream, run=run, reached=reached)
    with recorded_end(ledger, run.run_id) as say_reason:
        say_reason(work.work_in(spark, stop=StopRequest(), lease=lease, hand_over=take))
    return tuple(batches)


@pytest.fixture(scope="session")
def sluice_pipelines(request: pytest.FixtureRequest) -> Path:
    """The declarations of the project of the tests. Override the fixture in a `conftest.py` to use another folder."""
    project = find_project(request.config.rootpath)
    return project.pipelines if project is not None else request.config.rootpath / "include" / "pipelines"


@pytest.fixture(scope="session")
def sluice_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Settings]:
    """The settings of a catalog, an object store and a ledger, started once for all tests and stopped at the end."""

    data = tmp_path_factory.mktemp("sluice") / "data"
    shell = {**os.environ, "SLUICE_DATA": str(data)}
    command = [sys.executable, "-m", "sluice.cli.app", "stack"]
    with ExitStack() as ending:
        ending.callback(subprocess.run, [*command, "down"], env=shell, check=True, capture_output=True)
        up = [*command, "up", "--services", "postgres,seaweedfs"]
        subprocess.run(up, env=shell, check=True, capture_output=True)  # noqa: S603  # our own command
        with patch.dict(os.environ, load_environment(data)):
            settings = load_settings()
        yield settings


@pytest.fixture(scope="session")
def sluice_spark(sluice_settings: Settings) -> Iterator[SparkSession]:
    """A Spark session as a driver opens it, with two cores of this machine."""

    conf = launch_conf(
        home=sluice_settings.home, jars=sluice_settings.jars, engine=EngineDeclaration(), is_bounded=True
    )
    words = ["--master", "local[2]", *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}"))]
    launch = {"PYSPARK_SUBMIT_ARGS": shlex.join([*words, "pyspark-shell"]), "PYSPARK_PYTHON": sys.executable}
    with patch.dict(os.environ, launch):
        spark = open_session(sluice_settings, name="tests of streams", state=StateDeclaration())
    yield spark
    spark.stop()


@pytest.fixture
def stream_bench(
    sluice_settings: Settings, sluice_spark: SparkSession, sluice_pipelines: Path, tmp_path: Path
) -> Iterator[Callable[[str], StreamBench]]:
    """A function that puts the stream of a name on a bench, with empty tables and a new checkpoint."""

    declarations = load_declarations(sluice_pipelines)
    own = {"pipelines": sluice_pipelines, "checkpoints": (tmp_path / "checkpoints").as_uri()}
    settings = sluice_settings.model_copy(update=own)
    with open_ledger(settings.ledger_url) as ledger:

        def set_up(name: str) -> StreamBench:
            prefix = f"t{uuid4().hex[:8]}"
            stream = _on_the_bench(declarations.stream(name), prefix=prefix)
            bench = StreamBench(
                spark=sluice_spark,
                settings=settings,
                ledger=ledger,
                stream=stream,
                declarations=declarations,
                prefix=prefix,
            )
            _create_tables(bench, declared=declarations.stream(name))
            return bench

        yield set_up


def _on_the_bench(stream: LoadedStream, *, prefix: str) -> LoadedStream:
    """The stream in incremental mode, with prefixed names, its stream inputs replaced by tables."""
    declaration = stream.declaration
    name = f"{prefix}_{declaration.stream}"
    outputs = {
        key: output.model_copy(
            update={"iceberg": output.iceberg.model_copy(update={"table": f"{prefix}_{output.iceberg.table}"})}
        )
        if output.iceberg is not None
        else output
        for key, output in declaration.outputs.items()
    }
    changed = {
        "stream": name,
        "mode": "incremental",
        "trigger": None,
        "inputs": {key: _fed(given, key, prefix=prefix) for key, given in declaration.inputs.items()},
        "outputs": outputs,
    }
    return replace(stream, declaration=declaration.model_copy(update=changed))


def _fed(declared: InputDeclaration, name: str, *, prefix: str) -> InputDeclaration:
    if declared.stream is not None:
        own = IcebergSource(table=f"{prefix}_inputs.{name}")
        if (stored := declared.stream.iceberg) is not None and stored.value is not None:
            own = own.model_copy(update={"value": stored.value, "value_column": stored.value_column})
        fed = declared.stream.model_copy(update={declared.stream.kind: None, "iceberg": own})
        return declared.model_copy(update={"stream": fed})
    source = declared.declared_source
    if source.iceberg is None:
        return declared
    own = source.iceberg.model_copy(update={"table": f"{prefix}_{source.iceberg.table}"})
    return declared.model_copy(update={"static": source.model_copy(update={"iceberg": own})})


def _create_tables(bench: StreamBench, *, declared: LoadedStream) -> None:

    catalog = open_catalog(bench.settings)
    for table in dict.fromkeys((*declared.declaration.tables_written, *_looked_up(declared))):
        known = bench.declarations.tables[table].declaration
        create_or_evolve_table(catalog, known.model_copy(update={"table": f"{bench.prefix}_{table}"}))
    for name, given in declared.declaration.inputs.items():
        if given.is_stream:
            columns = tuple(map(TableColumn.of, _columns_of(given, bench.declarations, input_name=name)))
            fed = TableDeclaration(
                table=f"{bench.prefix}_inputs.{name}", description=f"Feeds {name}.", owner="tests", columns=columns
            )
            create_or_evolve_table(catalog, fed)
    if declared.declaration.quarantine:
        create_or_evolve_table(catalog, quarantine_declaration(bench.stream.declaration))


def _looked_up(stream: LoadedStream) -> tuple[str, ...]:
    static = (given.declared_source.iceberg for given in stream.declaration.inputs.values() if not given.is_stream)
    return tuple(source.table for source in static if source is not None)


def _columns_of(declared: InputDeclaration, declarations: Declarations, *, input_name: str) -> tuple[Column, ...]:
    """The columns of an input's rows: those of its table, of its files, or of Kafka records."""
    match declared.declared_source.source:
        case IcebergSource() as source:
            columns = declarations.tables[source.table].declaration.columns
            return tuple(column.model_copy(update={"required": False}) for column in columns)
        case FilesSource() as source:
            return source.columns
        case KafkaSource() as source if source.value is None:
            return _KAFKA_COLUMNS
    raise UsageError(
        f"The input {input_name} is of kind {declared.declared_source.kind}, which the test bench cannot feed.",
        next_step="Kafka topics without decoded values, files and Iceberg tables can be fed.",
    )
