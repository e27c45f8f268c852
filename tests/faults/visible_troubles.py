"""Every trouble of a stream is red within two minutes, in Airflow and on the command line, with the right words.

    .venv/bin/python -m tests.faults.visible_troubles [--json] [--only NAME …]

One Airflow on a PostgreSQL and a Kafka of its own; its drivers are fake, everything around them is real. The troubles
are made one after the other and awaited together. Then the ledger is read-only for a minute, and a second Airflow with
an empty metadata database runs on the same ledger: nothing stops. So it is beside an upgrade while a dump runs, a slow
Airflow and a clock that goes back, which come one after the other. Prints a row for each with the words that were seen;
ends with 1 when one was not seen in time, or something stopped. `--only` chooses among them by name.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict
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
from tests.faults.later_troubles import CLOCK, LATER, SLOW_API, fails, upgrade_beside_a_dump
from tests.faults.trouble_stage import CONNECTION, LIMIT_SECONDS, PASS_SECONDS, Stage, Trouble, declare
from tests.faults.undisturbed_stream import HEALTHY, ledger_is_read_only, second_airflow
from tests.fixtures.airflow import running_airflow
from tests.fixtures.ledger import running_postgres
from tests.fixtures.sample_declarations import UNMAINTAINED, write_table
from tests.fixtures.secured_kafka import inner_servers, secured_kafka
from tests.fixtures.supervised_streams import TASK, started
from tests.fixtures.tampering import faulty_proxy

from sluice.ledger.runs import newest_run
from sluice.settings import KafkaConnection, project_root
from sluice.stack.stack_plan import find_tools

_END_OF_MESSAGE = re.compile("['\"], 'level'")
"""What follows the message in an entry of a log, as Airflow returns it."""


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
AT_ONCE = (*TROUBLES, *LATER)
"""The troubles that are made one after the other and awaited together."""

EVERY_TROUBLE = (*AT_ONCE, SLOW_API, CLOCK)

PROGRESS = Console(stderr=True, width=140)
"""What was seen so far, while the drill runs."""

DUMP, READ_ONLY, SECOND_AIRFLOW = "upgrade_beside_a_dump", "read_only", "second_airflow"
"""What must stop nothing: an upgrade while a dump runs; the ledger is read-only for a minute; another Airflow runs on
the same ledger."""

ALL = (*(trouble.stream for trouble in EVERY_TROUBLE), DUMP, READ_ONLY, SECOND_AIRFLOW)


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
                PROGRESS.print(f"{trouble.stream}: red after {trouble.airflow_seconds:.0f} s", markup=False)
            row = rows.get(trouble.stream, {"state": "", "explanation": ""})
            is_right = exit_code == 1 and row["state"] == trouble.state and trouble.words in row["explanation"]
            if trouble.status_seconds is None and is_right:
                trouble.status_seconds = time.monotonic() - trouble.began_at
                trouble.status_words = row["explanation"]
                PROGRESS.print(f"{trouble.stream}: in the status after {trouble.status_seconds:.0f} s", markup=False)
        time.sleep(1)  # the status commands take most of the time


def _seen_in_airflow(stage: Stage, trouble: Trouble) -> tuple[float, str] | None:
    """When the words were seen in a red task of Airflow, and the line that has them; none before."""
    if trouble.in_own_dag:
        run = stage.airflow.runs(trouble.stream)[-1]
        if run["state"] != "failed":
            return None
        log = stage.airflow.log(trouble.stream, TASK, run["dag_run_id"], attempt=1)
        return _line_of(log, trouble.words, at=time.monotonic())
    sentence = f"stream={trouble.subject or trouble.stream} state={trouble.state} "
    since = [(at, log) for at, log in stage.logs.values() if at >= trouble.began_at and sentence in log]
    found = [line for at, log in since if (line := _line_of(log, sentence, trouble.words, at=at)) is not None]
    return min(found, default=None)


def _line_of(log: str, *words: str, at: float) -> tuple[float, str] | None:
    """The first line of a log that has all these words, with the time at which the log was read."""
    lines = (line for line in log.splitlines() if all(word in line for word in words))
    return next(((at, _END_OF_MESSAGE.split(line[line.index(words[0]) :])[0]) for line in lines), None)


def perform(stage: Stage, postgres_url: URL, folder: Path, *, only: Collection[str]) -> dict[str, str]:
    """Make the chosen troubles and watch them, then what must change nothing. Returns what that changed."""
    started(stage.airflow, HEALTHY)
    changed = befall(stage, [trouble for trouble in AT_ONCE if trouble.stream in only])
    stage.end_others()
    changed |= befall(stage, [trouble for trouble in (SLOW_API,) if trouble.stream in only])
    stage.proxy.delay_seconds = 0
    changed |= befall(stage, [trouble for trouble in (CLOCK,) if trouble.stream in only])
    if DUMP in only:
        changed[DUMP] = upgrade_beside_a_dump(stage.airflow)
    if READ_ONLY in only:
        changed[READ_ONLY] = ledger_is_read_only(stage.airflow, seconds=60)
    if SECOND_AIRFLOW in only:
        second = folder / "second"
        second.mkdir()
        changed[SECOND_AIRFLOW] = second_airflow(stage.airflow, postgres_url, second)
    return changed


def befall(stage: Stage, troubles: Sequence[Trouble]) -> dict[str, str]:
    """Make troubles and watch them. Returns what else they have stopped, by the stream that had to go on."""
    for trouble in troubles:
        if trouble.mode == "continuous":
            started(stage.airflow, trouble.stream)
    for trouble in troubles:
        if trouble.prepare is not None:
            PROGRESS.print(f"{trouble.stream}: is prepared", markup=False)
            trouble.prepare(stage, trouble.stream)
    stage.read_logs()  # what was red before is no sign of these
    going_on = [HEALTHY, *(trouble.stream for trouble in troubles if trouble.stays)]
    runs = {stream: newest_run(stage.airflow.ledger, stream) for stream in going_on}
    for trouble in troubles:
        trouble.began_at = time.monotonic()
        trouble.make(stage, trouble.stream)
    watch(stage, troubles)
    names = ", ".join(trouble.stream for trouble in troubles)
    after = {stream: newest_run(stage.airflow.ledger, stream) for stream in going_on}
    return {
        f"{stream} beside {names}": f"it has stopped: {run}"
        for stream, run in after.items()
        if run is None or not run.is_live or run.run_id != getattr(runs[stream], "run_id", "")
    }


def chosen(only: Collection[str]) -> tuple[Trouble, ...]:
    """The troubles of these names."""
    return tuple(trouble for trouble in EVERY_TROUBLE if trouble.stream in only)


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
        if one.subject:
            seconds[1] = "no stream"
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
        streams = [HEALTHY, *(trouble.stream for trouble in EVERY_TROUBLE), "renamed_successor"]
        for stream in streams:
            write_table(pipelines, f"silver.{stream}", more=UNMAINTAINED)
        declare(pipelines, HEALTHY)
        for trouble in EVERY_TROUBLE:
            more = IMPATIENT if trouble.stream == "wedged" else ""
            declare(pipelines, trouble.stream, more=more, mode=trouble.mode, cron="* * * * *")
        with (
            running_postgres(folder / "postgres") as server,
            secured_kafka(folder / "kafka", java=tools.java, jars=tools.jars / "kafka") as kafka,
            faulty_proxy("") as proxy,
        ):
            admin = AdminClient({"bootstrap.servers": inner_servers(folder / "kafka"), "log_level": 0})
            for created in admin.create_topics([NewTopic(stream, 1, 1) for stream in streams]).values():
                created.result()
            producer = Producer({"bootstrap.servers": inner_servers(folder / "kafka"), "log_level": 0})
            with running_airflow(
                folder / "orchestration",
                server.url,
                pipelines=pipelines,
                settings=_connection_settings(kafka),
                proxy=proxy,
            ) as airflow:
                stage = Stage(airflow=airflow, admin=admin, producer=producer, proxy=proxy)
                try:
                    changed = perform(stage, server.url, folder, only=options.only)
                finally:
                    stage.end_others()
    if options.json:
        rows = [{**asdict(one), "make": one.make.__name__, "prepare": ""} for one in troubles]
        print(json.dumps({"troubles": rows, "changed": changed}, indent=1))  # noqa: T201  # the answer of the program
    else:
        show(troubles, changed)
    return int(any(changed.values()) or not all(one.is_seen for one in troubles))


if __name__ == "__main__":
    sys.exit(main())
