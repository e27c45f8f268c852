"""A trigger twice a second with a publication every half minute: small snapshots stay away from the table.

    .venv/bin/python -m benchmarks.fast_trigger [--seconds 120] [--rows 1000] [--json]

A steady producer writes numbered rows to Kafka. A driver, through the real `spark-submit`, stages a batch each half
second and publishes every half minute. In the middle of the run it is killed with SIGKILL while batches wait for their
publication, and another one takes over. pyiceberg reads the table in the end, without Spark.

Ends with 1 when a row is lost or doubled, or when a figure misses its target: at most one snapshot for each
publication interval, published files at least ten times as large as staged ones, 99 of 100 rows visible within 35 s
while no driver is being replaced.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars as pl
import yaml
from benchmarks.steady_rows import StagingWatch, SteadyProducer, files_of
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot
from rich.console import Console
from rich.progress import Progress
from rich.table import Table as ReportTable
from tests.fixtures.spark_jobs import Job, Jobs, jobs_in, wait_until
from tests.fixtures.stack import Stack, stack_in

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import all_tables
from sluice.ledger.batches import recent_batches
from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.run_values import DesiredState, RunState
from sluice.ledger.runs import record_end
from sluice.publication.staged_batch import StagedOutput
from sluice.settings import KafkaConnection, Settings
from sluice.sources.kafka_clients import ClientSettings, client_settings
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import create_or_evolve_table
from sluice.tables.declared_tables import load_table as find_table

STREAM, OUTPUT, TARGET = "fast", "rows", "bench.rows"
ROWS = StagedOutput(stream=STREAM, output=OUTPUT, target=TARGET)
PUBLISH_SECONDS = 30.0
MOST_FRESHNESS_SECONDS = 35.0
LEAST_FILE_RATIO = 10.0

PATIENCE_SECONDS = 300.0
"""How long a driver may take to start, or to bring the last rows: ten seconds, many times that on a crowded machine."""

QUERY = """
SELECT v.* FROM (SELECT from_json(CAST(value AS STRING), 'id LONG, sent_at TIMESTAMP, payload STRING') AS v FROM rows)
"""
_STREAM_OF_ROWS: Mapping[str, Any] = {
    "stream": STREAM,
    "description": "rows, twice a second",
    "owner": "benchmark",
    "mode": "continuous",
    "trigger": {"processing_time": "500 milliseconds"},
    "transformation": {"sql": "fast.sql"},
    "outputs": {OUTPUT: {"iceberg": {"table": TARGET, "publish_every": "30 seconds"}}},
}
_TABLE_OF_ROWS: Mapping[str, Any] = {
    "table": TARGET,
    "description": "rows",
    "owner": "benchmark",
    "columns": [
        {"name": "id", "type": "long"},
        {"name": "sent_at", "type": "timestamptz"},
        {"name": "payload", "type": "string"},
    ],
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What came of it.

    snapshots_per_interval: of each driver, publications for each publication interval in which it worked.
    staged_file_bytes, published_file_bytes: the mean of all files.
    freshness_seconds: from the producer to the snapshot, 99 of 100 rows; of the rows that no kill touched.
    freshness_with_kill_seconds: the same of all rows.
    """

    rows: int
    lost: int
    doubled: int
    batches: int
    batch_ms: float
    publications: int
    snapshots_per_interval: float
    staged_files: int
    published_files: int
    staged_file_bytes: float
    published_file_bytes: float
    freshness_seconds: float
    freshness_with_kill_seconds: float
    killed_with_waiting_batches: int

    @property
    def file_ratio(self) -> float:
        """How many times larger the published files are."""
        return self.published_file_bytes / self.staged_file_bytes

    def targets(self) -> dict[str, bool]:
        """Each target, and whether it is met."""
        return {
            "rows lost or doubled: none": not self.lost and not self.doubled,
            "snapshots for each 30 s: at most 1": self.snapshots_per_interval <= 1.0,
            "published files: 10 times as large": self.file_ratio >= LEAST_FILE_RATIO,
            "visible within 35 s: 99 of 100 rows": self.freshness_seconds <= MOST_FRESHNESS_SECONDS,
            "killed while batches waited": self.killed_with_waiting_batches > 0,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The parts of one run. progress: called with the current step."""

    settings: Settings
    ledger: Ledger
    jobs: Jobs
    progress: Progress
    seconds: float

    def start(self) -> Job:
        """Start a driver and wait until it has delivered a batch."""
        newest = self.staged()
        stream = load_declarations(self.settings.pipelines).stream(STREAM)
        job = self.jobs.start_stream(stream, self.ledger)

        def has_begun() -> bool:
            _require(job.process.poll() is None, job)
            return self.staged() > newest

        wait_until(has_begun, within_seconds=PATIENCE_SECONDS)
        return job

    def staged(self) -> int:
        """The newest batch that is staged; -1 before the first."""
        table = find_table(open_catalog(self.settings), ROWS.staging)
        numbers = [_batch_of(snapshot) for snapshot in table.snapshots()] if table is not None else []
        return max((number for number in numbers if number is not None), default=-1)

    def work(self, what: str, seconds: float) -> None:
        """Let the driver work for so long."""
        task = self.progress.add_task(what, total=seconds)
        began = time.monotonic()
        while (gone := time.monotonic() - began) < seconds:
            self.progress.update(task, completed=gone)
            time.sleep(min(1.0, seconds - gone))  # how long it works is what was asked for
        self.progress.update(task, completed=seconds)

    def await_waiting_batches(self) -> int:
        """How many batches are staged and not published; waits until there are some."""
        waiting = 0

        def are_some() -> bool:
            nonlocal waiting
            waiting = self.staged() - max((_batch_of(one) or 0 for one in publications(self.target())), default=-1)
            return waiting >= 5

        wait_until(are_some, within_seconds=PATIENCE_SECONDS)
        return waiting

    def kill(self, job: Job) -> None:
        """Kill a driver, and record its end in the ledger as its watcher would."""
        job.kill()
        if job.run is not None:
            record_end(self.ledger, job.run.run_id, state=RunState.LOST, exit_code=None, reason="its driver is gone")

    def end(self, job: Job) -> None:
        """Ask a driver to stop; it publishes what waits."""
        set_desired_state(self.ledger, STREAM, DesiredState.STOPPED)
        _require(job.wait(PATIENCE_SECONDS) == 0, job)

    def target(self) -> Table:
        """The table, freshly loaded."""
        return open_catalog(self.settings).load_table(TARGET)


def _require(is_so: bool, job: Job) -> None:
    if not is_so:
        raise SystemExit(f"the driver failed:\n{job.log.read_text()[-4000:]}")


def publications(table: Table) -> list[Snapshot]:
    """The snapshots of a table that brought rows, the oldest first."""
    listed = sorted(table.snapshots(), key=lambda snapshot: snapshot.sequence_number or 0)
    return [snapshot for snapshot in listed if files_of(snapshot)[0]]


def _batch_of(snapshot: Snapshot) -> int | None:
    entries = snapshot.summary.additional_properties if snapshot.summary is not None else {}
    key = entries.get("sluice.publication-key", "")
    return int(key.rpartition(":")[2]) if key else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A driver at work: from when to when, in seconds since the epoch."""

    began: float
    ended: float


def measure(bench: Bench, producer: SteadyProducer, staging: StagingWatch) -> Figures:
    """Let two drivers work, one after the other, and count."""
    stretches = []
    with staging.at_work():
        with producer.at_work():
            first = bench.start()
            began = time.time()
            bench.work("the first driver works", bench.seconds)
            waiting = bench.await_waiting_batches()
            bench.kill(first)
            stretches.append(Stretch(began=began, ended=time.time()))
            second = bench.start()
            began = time.time()
            bench.work("the second driver works", bench.seconds)
        stretches.append(Stretch(began=began, ended=time.time()))
        with suppress(AssertionError):  # missing rows are a figure of the report
            wait_until(lambda: _rows(bench.target()) >= producer.sent, within_seconds=PATIENCE_SECONDS)
        bench.end(second)
    return judged(bench, producer.sent, staging, stretches, waiting)


def _rows(table: Table) -> int:
    """How many rows a table says that it has."""
    snapshot = table.current_snapshot()
    entries = snapshot.summary.additional_properties if snapshot is not None and snapshot.summary is not None else {}
    return int(entries.get("total-records", 0))


def judged(bench: Bench, sent: int, staging: StagingWatch, stretches: Sequence[Stretch], waiting: int) -> Figures:
    """The figures of a run that has ended."""
    table = bench.target()
    made = publications(table)
    seen: Counter[int] = Counter()
    freshness: list[tuple[float, float]] = []
    for snapshot in made:
        scan = table.scan(snapshot_id=snapshot.snapshot_id, selected_fields=("id", "sent_at"))
        rows = pl.DataFrame(scan.to_arrow())
        published = snapshot.timestamp_ms / 1000
        sent_at = dict(zip(rows["id"], rows["sent_at"].dt.epoch("us"), strict=True))
        new = sent_at.keys() - seen.keys()
        freshness += [(published, published - sent_at[number] / 1_000_000) for number in new]
        seen = Counter(rows["id"])
    staged_files, staged_bytes = map(sum, zip(*staging.seen.values(), strict=True))
    published_files, published_bytes = map(sum, zip(*map(files_of, made), strict=True))
    undisturbed = [age for at, age in freshness if _is_undisturbed(at, age, stretches)]
    batches = recent_batches(bench.ledger, STREAM, 100_000)
    return Figures(
        rows=sent,
        lost=sum(number not in seen for number in range(sent)),
        doubled=seen.total() - len(seen),
        batches=len(batches),
        batch_ms=statistics.median(batch.duration_ms for batch in batches if batch.duration_ms),
        publications=len(made),
        snapshots_per_interval=max(_per_interval(made, stretch) for stretch in stretches),
        staged_files=staged_files,
        published_files=published_files,
        staged_file_bytes=staged_bytes / staged_files,
        published_file_bytes=published_bytes / published_files,
        freshness_seconds=_percentile(undisturbed),
        freshness_with_kill_seconds=_percentile([age for _, age in freshness]),
        killed_with_waiting_batches=waiting,
    )


def _per_interval(made: Sequence[Snapshot], stretch: Stretch) -> float:
    """Publications of one driver for each publication interval from its first staged batch on."""
    times = [one.timestamp_ms / 1000 for one in made]
    count = sum(stretch.began < at < stretch.ended for at in times)
    return count * PUBLISH_SECONDS / (stretch.ended - stretch.began)


def _is_undisturbed(at: float, age: float, stretches: Sequence[Stretch]) -> bool:
    """Whether a row was sent and became visible while one driver worked, apart from its start, when it catches up."""
    return any(stretch.began <= at - age and at <= stretch.ended for stretch in stretches)


def _percentile(ages: Sequence[float]) -> float:
    return statistics.quantiles(ages, n=100)[98]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=120, help="how long each of the two drivers works")
    parser.add_argument("--rows", type=int, default=1000, help="rows a second")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    options = parser.parse_args(arguments)
    console = Console(stderr=True)
    with tempfile.TemporaryDirectory() as folder, stack_in(Path(folder) / "data") as stack:
        stack.up(("postgres", "seaweedfs", "kafka"))
        figures = _measured(stack, Path(folder), rows=options.rows, seconds=options.seconds, console=console)
    if options.json:
        found = asdict(figures) | {"file_ratio": figures.file_ratio, "targets": figures.targets()}
        print(json.dumps(found, indent=1))  # noqa: T201  # the answer of the program
    else:
        _print(figures)
    return 0 if all(figures.targets().values()) else 1


def _measured(stack: Stack, folder: Path, *, rows: int, seconds: float, console: Console) -> Figures:
    pipelines = folder / "pipelines"
    pipelines.mkdir()
    own = {"SLUICE_PIPELINES": str(pipelines), "SLUICE_CHECKPOINTS": (folder / "checkpoints").as_uri()}
    settings = stack.settings().model_copy(update={"pipelines": pipelines, "checkpoints": own["SLUICE_CHECKPOINTS"]})
    client = client_settings(settings.connection("flights_kafka", KafkaConnection))
    topic = _declare(settings, client)
    producer = SteadyProducer(client=client, topic=topic, rows_per_second=rows)
    with (
        open_ledger(settings.ledger_url.get_secret_value()) as ledger,
        jobs_in(settings, {**stack.environment(), **own}, folder) as jobs,
        Progress(console=console) as progress,
    ):
        bench = Bench(settings=settings, ledger=ledger, jobs=jobs, progress=progress, seconds=seconds)
        return measure(bench, producer, StagingWatch(settings=settings, output=ROWS))


def _declare(settings: Settings, client: ClientSettings) -> str:
    """Declare the stream, create its table and its topic; the topic's name."""
    topic = f"b{uuid4().hex}"
    admin = AdminClient(client)
    admin.create_topics([NewTopic(topic, 2, 1)])[topic].result()
    source = {"connection": "flights_kafka", "topics": [topic], "starting": "earliest"}
    stream = dict(_STREAM_OF_ROWS) | {"inputs": {"rows": {"stream": {"kafka": source}}}}
    (settings.pipelines / "fast.sql").write_text(QUERY)
    (settings.pipelines / "fast.stream.yaml").write_text(yaml.safe_dump(stream))
    (settings.pipelines / f"{TARGET}.table.yaml").write_text(yaml.safe_dump(dict(_TABLE_OF_ROWS)))
    declared = load_declarations(settings.pipelines)
    declared.require_valid()
    for declaration in all_tables(declared).values():
        create_or_evolve_table(open_catalog(settings), declaration)
    return topic


def _print(figures: Figures) -> None:
    table = ReportTable(title="A batch each half second, published every half minute, killed in between")
    table.add_column("figure")
    table.add_column("seen", justify="right")
    seen = {
        "rows sent / lost / doubled": f"{figures.rows} / {figures.lost} / {figures.doubled}",
        "batches staged, median trigger": f"{figures.batches}, {figures.batch_ms:.0f} ms",
        "publications (snapshots with rows)": str(figures.publications),
        "publications for each 30 s of a driver": f"{figures.snapshots_per_interval:.2f}",
        "staged files, mean size": f"{figures.staged_files}, {figures.staged_file_bytes / 1024:.1f} KiB",
        "published files, mean size": f"{figures.published_files}, {figures.published_file_bytes / 1024:.1f} KiB",
        "published to staged, size of a file": f"{figures.file_ratio:.1f}x",
        "freshness, 99 of 100 rows, undisturbed": f"{figures.freshness_seconds:.1f} s",
        "freshness, 99 of 100 rows, with the kill": f"{figures.freshness_with_kill_seconds:.1f} s",
        "batches that waited when it was killed": str(figures.killed_with_waiting_batches),
    }
    for name, value in seen.items():
        table.add_row(name, value)
    for name, is_met in figures.targets().items():
        table.add_row(name, "met" if is_met else "MISSED")
    Console(width=100).print(table)


if __name__ == "__main__":
    sys.exit(main())
