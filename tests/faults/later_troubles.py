"""The troubles of a longer life: second occasions, deleted DAGs, hosts that differ, overdue increments, slow answers,
clocks that go back. What befalls one stream may stop no other one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from sqlalchemy import text
from tests.fakes.behaviour import Behaviour, tell_drivers
from tests.faults.trouble_stage import Stage, Trouble, declare
from tests.faults.undisturbed_stream import HEALTHY
from tests.fixtures.airflow import RunningAirflow
from tests.fixtures.supervised_streams import DEADLINE_SECONDS, await_running

from sluice.ledger.airflow_owner import find_dag_pause
from sluice.ledger.clock_jumps import SIGNS
from sluice.ledger.connection import Ledger
from sluice.ledger.migrations import LOCK_SECONDS, observe_version
from sluice.ledger.progress_samples import SourceSample
from sluice.ledger.run_leases import Lease
from sluice.ledger.runs import find_run, newest_run, recent_runs
from sluice.supervision.restart_policy import BECAUSE_CHANGED

SLOW_SECONDS = 2.0
"""Until Airflow's API answers, each time."""

DUMP_SECONDS = 30.0
"""How long a dump holds the tables of the ledger: an upgrade tries again several times meanwhile."""

HEARD_WITHIN_SECONDS = 15.0
"""A heartbeat that waits behind an upgrade, on a busy machine."""

_FAILS = Behaviour(fails_with="SchemaError: the table has other columns")


def fails(stage: Stage, stream: str) -> None:
    """The driver fails, and another start would only repeat it."""
    tell_drivers(stage.airflow.behaviours, stream, _FAILS)
    run = newest_run(stage.airflow.ledger, stream)
    assert run is not None
    assert run.process is not None
    os.kill(run.process.pid, 9)


def was_given_up(stage: Stage, stream: str) -> None:
    """It was given up before, and a person started it again by the command line: its DAG is still paused."""
    airflow, first = stage.airflow, newest_run(stage.airflow.ledger, stream)
    fails(stage, stream)
    airflow.wait(lambda: airflow.is_paused(stream), within_seconds=DEADLINE_SECONDS)
    tell_drivers(airflow.behaviours, stream, Behaviour())
    _sluice(airflow, "stream", "start", stream)
    await_running(airflow, stream, after=first)


def loses_its_dag(stage: Stage, stream: str) -> None:
    """A person deletes the DAG to clear its history; the next parse makes it again, paused as every new one."""
    airflow = stage.airflow
    answer = airflow.client.delete(f"/api/v2/dags/{stream}")
    assert answer.is_success, answer.text
    airflow.parse_again(HEALTHY)
    airflow.wait(lambda: airflow.client.get(f"/api/v2/dags/{stream}").is_success, within_seconds=DEADLINE_SECONDS)


def has_other_files_elsewhere(stage: Stage, stream: str) -> None:
    """A worker on another host, with a home of its own, holds an older file. An edit replaces a run once, too; from the
    second time on the hosts replace each other's runs."""
    home = stage.airflow.folder / "other_home"
    shutil.copytree(stage.airflow.pipelines, home)
    declare(home, stream, more="engine: {driver_memory: 700m}\n")
    with (stage.airflow.folder / "other_home.log").open("wb") as log:
        stage.others.append(
            subprocess.Popen(  # noqa: S603  # ours
                [sys.executable, "-m", "tests.faults.other_home", stream],
                env={**stage.airflow.environment, "SLUICE_PIPELINES": str(home)},
                stdout=log,
                stderr=log,
            )
        )
    ledger = stage.airflow.ledger

    def is_replaced_twice() -> bool:
        runs = recent_runs(ledger, stream, limit=9)
        return sum(run.end_asked_because == BECAUSE_CHANGED for run in runs) >= 2

    stage.airflow.wait(is_replaced_twice, within_seconds=DEADLINE_SECONDS)


def continues(stage: Stage, stream: str) -> None:
    """Nothing more has to happen."""


def ran_once(stage: Stage, stream: str) -> None:
    """An increment ends well, a pass sees its DAG unpaused, and the pool of its application has no slot any more."""
    airflow = stage.airflow
    airflow.unpause(stream)
    airflow.wait(
        lambda: any(run["state"] == "success" for run in airflow.runs(stream)), within_seconds=DEADLINE_SECONDS
    )
    airflow.patch("pools/spark", {"pool": "spark", "slots": 0, "include_deferred": False})
    airflow.wait(lambda: not _is_under_way(airflow, stream), within_seconds=DEADLINE_SECONDS)
    airflow.wait(lambda: _is_known_unpaused(airflow, stream), within_seconds=DEADLINE_SECONDS)


def _is_under_way(airflow: RunningAirflow, stream: str) -> bool:
    """Whether an increment has begun that may still end well."""
    states = [airflow.tasks(stream, run["dag_run_id"]) for run in airflow.runs(stream) if run["state"] == "running"]
    return any(state in ("running", "deferred", "queued", "restarting") for tasks in states for state in tasks.values())


def _is_known_unpaused(airflow: RunningAirflow, stream: str) -> bool:
    known = find_dag_pause(airflow.ledger, stream)
    return known is not None and not known.is_paused


def is_overdue(stage: Stage, stream: str) -> None:
    """It has not run for an hour: what the ledger knows of it becomes an hour older."""
    with stage.airflow.ledger.transaction() as connection:
        for table, column in (("newest_increments", "ended_at"), ("dag_pauses", "since")):
            aged = f"UPDATE sluice.{table} SET {column} = {column} - interval '1 hour' WHERE stream = :stream"  # noqa: S608  # ours
            assert connection.execute(text(aged), {"stream": stream}).rowcount == 1, table
        connection.execute(text("UPDATE sluice.reconciler_passes SET up_since = up_since - interval '2 hours'"))


def fails_while_airflow_is_slow(stage: Stage, stream: str) -> None:
    """Airflow's API takes two seconds for each answer."""
    stage.proxy.delay_seconds = SLOW_SECONDS
    fails(stage, stream)


def clock_is_set_back(stage: Stage, stream: str) -> None:
    """A standby takes over whose clock is an hour behind: everything that is recorded lies an hour ahead of it."""
    columns = {table: list(names) for table, names in SIGNS.items()} | {SourceSample: ["observed_at"]}
    columns[Lease] = [*columns[Lease], "expires_at"]
    with stage.airflow.ledger.transaction() as connection:
        for table, names in columns.items():
            ahead = ", ".join(f"{name} = {name} + interval '1 hour'" for name in names)
            connection.execute(text(f"UPDATE sluice.{table.__tablename__} SET {ahead}"))  # noqa: S608  # ours


LATER = (
    Trouble(
        stream="given_up_again",
        state="given up",
        words="another start would only repeat it",
        make=fails,
        prepare=was_given_up,
    ),
    Trouble(
        stream="made_again",
        state="pause unclear",
        words="`sluice stream stop made_again`",
        make=loses_its_dag,
        stays=True,
    ),
    Trouble(
        stream="overdue", state="late", words="is overdue for", make=is_overdue, prepare=ran_once, mode="incremental"
    ),
    Trouble(
        stream="elsewhere",
        state="files differ",
        words="the hosts of Airflow probably hold different files",
        make=continues,
        prepare=has_other_files_elsewhere,
    ),
)
SLOW_API = Trouble(
    stream="slowly_answered",
    state="given up",
    words="another start would only repeat it",
    make=fails_while_airflow_is_slow,
    in_own_dag=True,
)
CLOCK = Trouble(
    stream="clock_set_back",
    state="clock set back",
    words="was set back by",
    make=clock_is_set_back,
    subject="the ledger's clock",
    stays=True,
)

_UPGRADE = """
import sys
from pathlib import Path
from sluice.ledger import migrations
config = migrations._config()
config.set_main_option("script_location", sys.argv[1])
migrations._config = lambda: config
migrations.upgrade(sys.argv[2])
"""
"""The upgrade of a newer program, which has one migration more."""

_NEXT = """
import sqlalchemy as sa
from alembic import op

revision, down_revision, oldest_reader = "of_a_drill", {newest!r}, "0.2.0"


def upgrade() -> None:
    op.add_column("runs", sa.Column("of_a_drill", sa.Text(), nullable=True), schema="sluice")
"""


def upgrade_beside_a_dump(airflow: RunningAirflow) -> str:
    """Let a newer program upgrade the ledger while a dump of it runs. Returns what was wrong; empty: nothing."""
    from sluice.ledger import migrations

    url = airflow.ledger.engine.url.render_as_string(hide_password=False)
    scripts = shutil.copytree(Path(migrations.__file__).parent, airflow.folder / "migrations")
    newest = observe_version(url).needed
    (scripts / "versions" / "of_a_drill.py").write_text(_NEXT.format(newest=newest))
    run = newest_run(airflow.ledger, HEALTHY)
    assert run is not None
    with airflow.ledger.transaction() as dump:
        dump.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        dump.execute(text("LOCK TABLE sluice.runs IN ACCESS SHARE MODE"))  # as pg_dump does for every table
        upgrade = subprocess.Popen(  # noqa: S603  # ours
            [sys.executable, "-c", _UPGRADE, str(scripts), url], env=airflow.environment, stderr=subprocess.PIPE
        )
        longest = _longest_silence(airflow.ledger, run.run_id, seconds=DUMP_SECONDS)
        is_early = upgrade.poll() is not None
    ended = upgrade.wait(timeout=120)
    if is_early or ended:
        return f"the upgrade ended with {ended} {'during' if is_early else 'after'} the dump"
    if observe_version(url).found != "of_a_drill":
        return "the ledger has the version of before"
    silence = max(longest, _longest_silence(airflow.ledger, run.run_id, seconds=10))
    if silence > HEARD_WITHIN_SECONDS:
        return f"{HEALTHY} was not heard for {silence:.0f} s; a lock is waited for for {LOCK_SECONDS} s"
    return "" if find_run(airflow.ledger, run.run_id).is_live else f"{HEALTHY} has stopped"


def _longest_silence(ledger: Ledger, run_id: str, *, seconds: float) -> float:
    """The longest time without a heartbeat within some seconds."""
    query = text("SELECT extract(epoch FROM clock_timestamp() - heartbeat_at) FROM sluice.runs WHERE run_id = :run")
    until, longest = time.monotonic() + seconds, 0.0
    while time.monotonic() < until:
        with ledger.transaction() as connection:
            longest = max(longest, float(connection.execute(query, {"run": run_id}).scalar_one()))
        time.sleep(0.5)  # the time in which heartbeats are watched
    return longest


def _sluice(airflow: RunningAirflow, *arguments: str) -> None:
    command = [str(Path(sys.executable).parent / "sluice"), *arguments]
    subprocess.run(command, env=airflow.environment, check=True, capture_output=True)  # noqa: S603  # ours
