"""What befalls a stream in the drill of visible troubles, and the parts of its stage."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from tests.faults.undisturbed_stream import RECONCILER
from tests.fixtures.airflow import RunningAirflow
from tests.fixtures.tampering import FaultyProxy

LIMIT_SECONDS = 120.0
PASS_SECONDS = 15.0
"""What the reconciler's task may take on top, on a machine that has other things to do."""

CONNECTION = "flights_kafka"


@dataclass(slots=True, kw_only=True)
class Trouble:
    """What befalls one stream, and the words that must be seen.

    state: of the stream, as the reconciler and the command line name it. words: some of its sentence.
    in_own_dag: whether its own DAG is red instead of the reconciler's.
    prepare: what must have happened before; the time does not count.
    subject: of the reconciler's sentence, when that is not the stream; then the command line shows none.
    stays: whether the run of the stream goes on untouched. mode: of the stream.
    airflow_seconds, status_seconds: how long it took; unset: not in time.
    airflow_words, status_words: the sentences that were seen.
    """

    stream: str
    state: str
    words: str
    make: Callable[[Stage, str], None]
    in_own_dag: bool = False
    prepare: Callable[[Stage, str], None] | None = None
    subject: str = ""
    stays: bool = False
    mode: str = "continuous"
    began_at: float = 0.0
    airflow_seconds: float | None = None
    status_seconds: float | None = None
    airflow_words: str = ""
    status_words: str = ""

    @property
    def is_seen(self) -> bool:
        """Whether it was seen in both places in time."""
        both = (self.airflow_seconds, self.airflow_seconds if self.subject else self.status_seconds)
        return all(seconds is not None and seconds <= LIMIT_SECONDS + PASS_SECONDS for seconds in both)


@dataclass(slots=True, kw_only=True)
class Stage:
    """The parts of the drill. proxy: between Airflow's tasks and its API.

    logs: of the reconciler's runs, by run id, with the time at which each was read.
    others: processes that a trouble has started.
    """

    airflow: RunningAirflow
    admin: AdminClient
    producer: Producer
    proxy: FaultyProxy
    logs: dict[str, tuple[float, str]] = field(default_factory=dict)
    others: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def declaration(self, stream: str) -> Path:
        """The file that declares a stream."""
        return self.airflow.pipelines / f"{stream}.stream.yaml"

    def end_others(self) -> None:
        """End what troubles have started."""
        for process in self.others:
            process.kill()
            process.wait()
        self.others.clear()

    def read_logs(self) -> None:
        """Read the logs of the reconciler's runs that have failed since."""
        for run in self.airflow.runs(RECONCILER)[-6:]:
            if run["state"] == "failed" and run["dag_run_id"] not in self.logs:
                log = self.airflow.log(RECONCILER, "reconcile", run["dag_run_id"])
                self.logs[run["dag_run_id"]] = (time.monotonic(), log)

    def status(self) -> tuple[int, dict[str, dict[str, str]]]:
        """What `sluice stream status` ends with, and what it says of each stream."""
        command = [str(Path(sys.executable).parent / "sluice"), "stream", "status", "--json"]
        done = subprocess.run(  # noqa: S603  # ours
            command, env=self.airflow.environment, capture_output=True, text=True, check=False
        )
        return done.returncode, {row["stream"]: row for row in json.loads(done.stdout)["streams"]}


def declare(folder: Path, stream: str, *, more: str = "", mode: str = "continuous", cron: str = "0 0 1 1 *") -> None:
    """Declare a stream that reads a topic of its own name."""
    (folder / "rows.sql").write_text("select key, value from rows\n")
    trigger = "trigger: {processing_time: 2 seconds}" if mode == "continuous" else f"schedule: {{cron: '{cron}'}}"
    (folder / f"{stream}.stream.yaml").write_text(
        f"stream: {stream}\ndescription: what {stream} does\nowner: stream-owner\nmode: {mode}\n{trigger}\n{more}"
        f"inputs:\n  rows:\n    stream:\n      kafka: {{connection: {CONNECTION}, topics: [{stream}]}}\n"
        f"transformation: {{sql: rows.sql}}\noutputs:\n  main:\n    iceberg: {{table: silver.{stream}}}\n"
    )
