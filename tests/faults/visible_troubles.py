"""Every trouble of a stream is red within two minutes, in Airflow and on the command line, with the right words.

    .venv/bin/python -m tests.faults.visible_troubles [--json] [--only NAME …]

One Airflow on a PostgreSQL and a Kafka of its own; its drivers are fake, everything around them is real. The troubles
are made one after the other and awaited together. Then the ledger is read-only for a minute, and a second Airflow with
an empty metadata database runs on the same ledger: nothing stops. Prints a row for each with the words that were seen;
ends with 1 when one was not seen in time, or something stopped. `--only` chooses among them by name.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # documented, and left out of its types
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from rich.console import Console
from rich.table import Table
from sqlalchemy.engine import URL
from tests.fakes.behaviour import Behaviour, tell_drivers
from tests.faults.undisturbed_stream import HEALTHY, RECONCILER, ledger_is_read_only, second_airflow
from tests.fixtures.airflow import RunningAirflow, running_airflow
from tests.fixtures.ledger import running_postgres
from tests.fixtures.sample_declarations import UNMAINTAINED, write_table
from tests.fixtures.secured_kafka import inner_servers, secured_kafka
from tests.fixtures.supervised_streams import TASK, started

from sluice.ledger.runs import newest_run
from sluice.settings import KafkaConnection, project_root
from sluice.stack.tools import find_tools

LIMIT_SECONDS = 120.0
PASS_SECONDS = 15.0
"""What the reconciler's task may take on top, on a machine that has other things to do."""

_END_OF_MESSAGE = re.compile("['\"], 'level'")
"""What follows the message in an entry of a log, as Airflow returns it."""

CONNECTION = "flights_kafka"


@dataclass(slots=True, kw_only=True)
class Trouble:
    """What befalls one stream, and the words that must be seen.

    state: of the stream, as the reconciler and the command line name it. words: some of its sentence.
    in_own_dag: whether its own DAG is red instead of the reconciler's.
    airflow_seconds, status_seconds: how long it took; unset: not in time.
    airflow_words, status_words: the sentences that were seen.
    """

    stream: str
    state: str
    words: str
    make: Callable[[Stage, str], None]
    in_own_dag: bool = False
    began_at: float = 0.0
    airflow_seconds: float | None = None
    status_seconds: float | None = None
    airflow_words: str = ""
    status_words: str = ""

    @property
    def is_seen(self) -> bool:
        """Whether it was seen in both places in time."""
        both = (self.airflow_seconds, self.status_seconds)
        return all(seconds is not None and seconds <= LIMIT_SECONDS + PASS_SECONDS for seconds in both)


@dataclass(slots=True, kw_only=True)
class Stage:
    """The parts of the drill. logs: of the reconciler's runs, by run id, with the time at which each was read."""

    airflow: RunningAirflow
    admin: AdminClient
    producer: Producer
    logs: dict[str, tuple[float, str]] = field(default_factory=dict)

    def declaration(self, stream: str) -> Path:
        """The file that declares a stream."""
        return self.airflow.pipelines / f"{stream}.stream.yaml"

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


def declare(folder: Path, stream: str, *, more: str = "", mode: str = "continuous") -> None:
    """Declare a stream that reads a topic of its own name."""
    (folder / "rows.sql").write_text("select key, value from rows\n")
    trigger = "trigger: {processing_time: 2 seconds}" if mode == "continuous" else "schedule: {cron: '0 0 1 1 *'}"
    (folder / f"{stream}.stream.yaml").write_text(
        f"stream: {stream}\ndescription: what {stream} does\nowner: stream-owner\nmode: {mode}\n{trigger}\n{more}"
        f"inputs:\n  rows:\n    stream:\n      kafka: {{connection: {CONNECTION}, topics: [{stream}]}}\n"
        f"transformation: {{sql: rows.sql}}\noutputs:\n  main:\n    iceberg: {{table: silver.{stream}}}\n"
    )


def fails(stage: Stage, stream: str) -> None:
    """The driver fails, and another start would only repeat it."""
    tell_drivers(stage.airflow.behaviours, stream, Behaviour(fails_with="SchemaError: the table has other columns"))
    run = newest_run(stage.airflow.ledger, stream)
    assert run is not None
    assert run.process is not None
    os.kill(run.process.pid, 9)


def is_deleted(stage: Stage, stream: str) -> None:
    """Somebody deletes the declaration."""
    stage.declaration(stream).unlink()


def is_renamed(stage: Stage, stream: str) -> None:
    """Somebody renames the stream."""
    declare(stage.airflow.pipelines, f"{stream}_successor")
    stage.declaration(stream).unlink()


def is_broken(stage: Stage, stream: str) -> None:
    """Somebody breaks the declaration."""
    file = stage.declaration(stream)
    file.write_text(file.read_text() + "colour: green\n")


def changes_mode(stage: Stage, stream: str) -> None:
    """Somebody makes the stream incremental."""
    declare(stage.airflow.pipelines, stream, mode="incremental")


def loses_its_topic(stage: Stage, stream: str) -> None:
    """Somebody deletes the topic."""
    stage.admin.delete_topics([stream])[stream].result()


def loses_its_permission(stage: Stage, stream: str) -> None:
    """Somebody forbids the user of the connection to read the topic."""
    forbidden = AclBinding(
        ResourceType.TOPIC, stream, ResourcePatternType.LITERAL, "User:reader", "*", AclOperation.ALL,
        AclPermissionType.DENY,
    )  # fmt: skip
    stage.admin.create_acls([forbidden])[forbidden].result()


def is_wedged(stage: Stage, stream: str) -> None:
    """The main thread of the driver hangs, its heartbeat lives, and input waits."""
    tell_drivers(stage.airflow.behaviours, stream, Behaviour(hangs=True))
    stage.producer.produce(stream, value="waits")
    stage.producer.flush(30)


IMPATIENT = "supervision: {stall_after: 20 seconds}\n"
TROUBLES = (
    Trouble(
        stream="failing", state="given up", words="another start would only repeat it", make=fails, in_own_dag=True
    ),
    Trouble(stream="deleted", state="undeclared", words="declares deleted any more", make=is_deleted),
    Trouble(stream="renamed", state="undeclared", words="declares renamed any more", make=is_renamed),
    Trouble(stream="broken", state="declaration broken", words="The declaration of broken is broken", make=is_broken),
    Trouble(stream="remade", state="mode changed", words="is declared incremental now", make=changes_mode),
    Trouble(stream="topicless", state="sources unobserved", words="Kafka has no topic topicless", make=loses_its_topic),
    Trouble(stream="forbidden", state="sources unobserved", words="may not see it", make=loses_its_permission),
    Trouble(stream="wedged", state="stalled", words="has recorded no batch since", make=is_wedged),
)
READ_ONLY, SECOND_AIRFLOW = "read_only", "second_airflow"
"""What must stop nothing: the ledger is read-only for a minute; another Airflow runs on the same ledger."""

ALL = (*(trouble.stream for trouble in TROUBLES), READ_ONLY, SECOND_AIRFLOW)


def watch(stage: Stage, troubles: Sequence[Trouble]) -> None:
    """Wait until every trouble was seen in both places, or its time is over."""
    until = time.monotonic() + LIMIT_SECONDS + 2 * PASS_SECONDS
    while time.monotonic() < until and not all(trouble.is_seen for trouble in troubles):
        stage.read_logs()
        exit_code, rows = stage.status()
        for trouble in troubles:
            if trouble.airflow_seconds is None and (seen := _seen_in_airflow(stage, trouble)) is not None:
                at, trouble.airflow_words = seen
                trouble.airflow_seconds = at - trouble.began_at
            row = rows.get(trouble.stream, {"state": "", "explanation": ""})
            is_right = exit_code == 1 and row["state"] == trouble.state and trouble.words in row["explanation"]
            if trouble.status_seconds is None and is_right:
                trouble.status_seconds = time.monotonic() - trouble.began_at
                trouble.status_words = row["explanation"]
        time.sleep(1)  # the status commands take most of the time


def _seen_in_airflow(stage: Stage, trouble: Trouble) -> tuple[float, str] | None:
    """When the words were seen in a red task of Airflow, and the line that has them; none before."""
    if trouble.in_own_dag:
        run = stage.airflow.runs(trouble.stream)[-1]
        if run["state"] != "failed":
            return None
        log = stage.airflow.log(trouble.stream, TASK, run["dag_run_id"], attempt=1)
        return _line_of(log, trouble.words, at=time.monotonic())
    sentence = f"stream={trouble.stream} state={trouble.state} "
    since = [(at, log) for at, log in stage.logs.values() if at >= trouble.began_at and sentence in log]
    found = [line for at, log in since if (line := _line_of(log, sentence, trouble.words, at=at)) is not None]
    return min(found, default=None)


def _line_of(log: str, *words: str, at: float) -> tuple[float, str] | None:
    """The first line of a log that has all these words, with the time at which the log was read."""
    lines = (line for line in log.splitlines() if all(word in line for word in words))
    return next(((at, _END_OF_MESSAGE.split(line[line.index(words[0]) :])[0]) for line in lines), None)


def perform(stage: Stage, postgres_url: URL, folder: Path, *, only: Collection[str]) -> dict[str, str]:
    """Make the chosen troubles and watch them, then what must change nothing. Returns what that changed."""
    troubles = chosen(only)
    for stream in (HEALTHY, *(trouble.stream for trouble in troubles)):
        started(stage.airflow, stream)
    for trouble in troubles:
        trouble.began_at = time.monotonic()
        trouble.make(stage, trouble.stream)
    watch(stage, troubles)
    changed = {}
    if READ_ONLY in only:
        changed[READ_ONLY] = ledger_is_read_only(stage.airflow, seconds=60)
    if SECOND_AIRFLOW in only:
        second = folder / "second"
        second.mkdir()
        changed[SECOND_AIRFLOW] = second_airflow(stage.airflow, postgres_url, second)
    return changed


def chosen(only: Collection[str]) -> tuple[Trouble, ...]:
    """The troubles of these names."""
    return tuple(trouble for trouble in TROUBLES if trouble.stream in only)


def _connection_settings(kafka: KafkaConnection) -> dict[str, str]:
    prefix = f"SLUICE_CONNECTIONS__{CONNECTION.upper()}__"
    return {
        f"{prefix}KIND": "kafka",
        f"{prefix}BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
        f"{prefix}SECURITY_PROTOCOL": kafka.security_protocol,
        f"{prefix}SASL_MECHANISM": str(kafka.sasl_mechanism),
        f"{prefix}USERNAME": str(kafka.username),
        f"{prefix}PASSWORD": "" if kafka.password is None else kafka.password.get_secret_value(),
        f"{prefix}CA_FILE": str(kafka.ca_file),
    }


def show(troubles: Sequence[Trouble], changed: dict[str, str]) -> None:
    """A table for people."""
    table = Table(title="Troubles, and the seconds until they were seen")
    for heading in ("what", "state", "red in Airflow after", "`status` ends with 1 after", ""):
        table.add_column(heading)
    for one in troubles:
        seconds = ["not seen" if at is None else f"{at:.0f} s" for at in (one.airflow_seconds, one.status_seconds)]
        table.add_row(one.stream, one.state, *seconds, "right" if one.is_seen else "WRONG")
    for what, stopped in changed.items():
        table.add_row(what, "nothing stops", "", "", stopped or "right")
    console = Console(width=140)
    console.print(table)
    for one in troubles:
        console.print(f"{one.stream}\n  Airflow: {one.airflow_words}\n  status:  {one.status_words}", markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the drill and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--only", nargs="+", choices=ALL, default=ALL, metavar="NAME", help=", ".join(ALL))
    options = parser.parse_args(arguments)
    troubles = chosen(options.only)
    tools = find_tools(project_root())
    with tempfile.TemporaryDirectory(prefix="sluice-drill-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for part in ("postgres", "kafka", "orchestration", "pipelines"):
            (folder / part).mkdir()
        pipelines = folder / "pipelines"
        for stream in (HEALTHY, *(trouble.stream for trouble in TROUBLES), "renamed_successor"):
            write_table(pipelines, f"silver.{stream}", more=UNMAINTAINED)
            if stream != "renamed_successor":
                declare(pipelines, stream, more=IMPATIENT if stream == "wedged" else "")
        with (
            running_postgres(folder / "postgres") as server,
            secured_kafka(folder / "kafka", java=tools.java, jars=tools.jars / "kafka") as kafka,
        ):
            admin = AdminClient({"bootstrap.servers": inner_servers(folder / "kafka"), "log_level": 0})
            streams = [HEALTHY, *(trouble.stream for trouble in TROUBLES), "renamed_successor"]
            for created in admin.create_topics([NewTopic(stream, 1, 1) for stream in streams]).values():
                created.result()
            producer = Producer({"bootstrap.servers": inner_servers(folder / "kafka"), "log_level": 0})
            with running_airflow(
                folder / "orchestration", server.url, pipelines=pipelines, settings=_connection_settings(kafka)
            ) as airflow:
                stage = Stage(airflow=airflow, admin=admin, producer=producer)
                changed = perform(stage, server.url, folder, only=options.only)
    if options.json:
        rows = [{**asdict(one), "make": one.make.__name__} for one in troubles]
        print(json.dumps({"troubles": rows, "changed": changed}, indent=1))  # noqa: T201  # the answer of the program
    else:
        show(troubles, changed)
    return int(any(changed.values()) or not all(one.is_seen for one in troubles))


if __name__ == "__main__":
    sys.exit(main())
