"""A declared stream on a real YARN, supervised as Airflow's task supervises it, with a real lakehouse and ledger."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from tests.fixtures.drivers import await_condition
from tests.fixtures.stack import Stack, stack_in
from tests.fixtures.successors import runs_since
from tests.yarn.single_node import SingleNodeYarn

from sluice.declarations.load_declarations import load_declarations
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.ledger.batches import newest_batch
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.run_values import DesiredState, RunObservation, RunState
from sluice.ledger.runs import find_run, newest_run
from sluice.supervision.supervision_values import SupervisionAction, SupervisionReason
from sluice.supervision.supervisor import Supervisor, supervise
from sluice.tables.catalog import open_catalog
from sluice.tables.declared_tables import create_or_evolve_table
from sluice_airflow.composition import Deployment, load_deployment

DEADLINE_SECONDS = 900.0
"""Far beyond what anything here takes on a quiet machine."""

STREAM = """\
stream: on_yarn
description: Numbers from nowhere, on a cluster
owner: a test
mode: continuous
trigger: {processing_time: 2 seconds}
inputs:
  rows:
    stream:
      rate: {rows_per_second: 20}
transformation: {sql: rows.sql}
outputs:
  numbers:
    iceberg: {table: silver.numbers}
engine: {connection: the_cluster, executors: 1, cores: 1, executor_memory: 512 MiB}
supervision:
  restart: {first_delay: 1 second}
"""

TABLE = """\
table: silver.numbers
description: numbers
owner: a test
columns:
  - {name: id, type: long}
"""


@pytest.fixture
def deployment(yarn_connection: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    """A deployment with a Spark connection to YARN, which the stream names."""
    assert f"connection: {yarn_connection}," in STREAM
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "on_yarn.stream.yaml").write_text(STREAM)
    (tmp_path / "pipelines" / "silver.numbers.table.yaml").write_text(TABLE)
    (tmp_path / "pipelines" / "rows.sql").write_text("SELECT value AS id FROM rows\n")
    with stack_in(tmp_path / "data") as stack:
        stack.up(("postgres", "seaweedfs"))
        for name, value in _environment(stack).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("SLUICE_PIPELINES", str(tmp_path / "pipelines"))
        yield load_deployment()


def _environment(stack: Stack) -> dict[str, str]:
    return {name: value for name, value in stack.environment().items() if name.startswith("SLUICE_")}


def test_a_stream_lives_dies_and_comes_back_on_yarn(deployment: Deployment, yarn: SingleNodeYarn) -> None:
    declared = load_declarations(deployment.settings.pipelines)
    wanted = declared.stream("on_yarn")
    for table in declared.tables.values():
        create_or_evolve_table(open_catalog(deployment.settings), table.declaration)
    with deployment.open_ledger() as ledger:
        supervisor = deployment.supervisor(ledger, launched_by="a test")
        with _argv_of_everybody() as seen:
            launched = supervise(supervisor, wanted)
        assert launched.decision.action is SupervisionAction.LAUNCH
        _assert_no_secret(seen, deployment)
        first = _await_batch(supervisor, after=None)
        _assert_no_secret_of_a_container(yarn, deployment)
        again = supervise(supervisor, wanted)
        assert (again.decision.action, again.decision.reason) == (
            SupervisionAction.ADOPT,
            SupervisionReason.HEARTBEAT_FRESH,
        )
        assert len(yarn.running()) == 1

        _kill_the_driver(first)
        await_condition(lambda: yarn.running() == [], within_seconds=DEADLINE_SECONDS)
        _supervise_until_another_run(supervisor, wanted, first)
        died = find_run(ledger, first.run_id)
        assert (died.state, died.exit_code) == (RunState.FAILED, 137)
        second = _await_batch(supervisor, after=first)
        assert runs_since(ledger, first) == 1
        assert len(yarn.running()) == 1

        set_desired_state(ledger, "on_yarn", DesiredState.STOPPED, requested_by="a test")
        await_condition(lambda: not find_run(ledger, second.run_id).is_live, within_seconds=DEADLINE_SECONDS)
        ended = find_run(ledger, second.run_id)
        assert (ended.state, ended.exit_code, ended.reason) == (RunState.FINISHED, 0, "stopped as requested")
        assert supervise(supervisor, wanted).decision.action is SupervisionAction.FINISH
        await_condition(lambda: yarn.running() == [], within_seconds=DEADLINE_SECONDS)
    numbers = open_catalog(deployment.settings).load_table("silver.numbers").scan().to_arrow()["id"].to_numpy()
    assert sorted(int(number) for number in numbers) == list(range(len(numbers)))  # none lost, none twice
    assert len(numbers) > 0


def _await_batch(supervisor: Supervisor, *, after: RunObservation | None) -> RunObservation:
    """The newest run once it has delivered a batch of its own. after: another run than this one."""

    def has_delivered() -> bool:
        run, batch = newest_run(supervisor.ledger, "on_yarn"), newest_batch(supervisor.ledger, "on_yarn")
        assert run is not None
        assert run.is_live, f"the driver ended: {run.reason}"
        is_another = after is None or run.run_id != after.run_id
        return is_another and batch is not None and batch.run_id == run.run_id

    await_condition(has_delivered, within_seconds=DEADLINE_SECONDS)
    run = newest_run(supervisor.ledger, "on_yarn")
    assert run is not None
    return run


def _supervise_until_another_run(supervisor: Supervisor, wanted: LoadedStream, run: RunObservation) -> None:
    def is_another() -> bool:
        supervised = supervise(supervisor, wanted)
        assert supervised.decision.action is not SupervisionAction.GIVE_UP, supervised.decision
        return supervised.run is not None and supervised.run.run_id != run.run_id

    await_condition(is_another, within_seconds=DEADLINE_SECONDS)


def _kill_the_driver(run: RunObservation) -> None:
    """Kill the application master at one blow: the JVM, and the Python in it, which would have told the ledger."""
    found = [
        process
        for process in psutil.process_iter(["cmdline"])
        if "org.apache.spark.deploy.yarn.ApplicationMaster" in (process.info["cmdline"] or [])
        and f"--run-id={run.run_id}" in process.info["cmdline"]
        and "java" in Path(process.info["cmdline"][0]).name
    ]
    assert len(found) == 1
    python = found[0].children(recursive=True)
    for process in python:
        process.suspend()
    for process in (*found, *python):
        process.kill()


@contextmanager
def _argv_of_everybody() -> Iterator[set[str]]:
    """Every argv on this machine that is seen while the block runs."""
    seen: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.1):
            for process in psutil.process_iter(["cmdline"]):
                seen.add(" ".join(process.info["cmdline"] or []))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def _assert_no_secret(seen: set[str], deployment: Deployment) -> None:
    submitting = [argv for argv in seen if "org.apache.spark.deploy.SparkSubmit" in argv and "on_yarn" in argv]
    assert submitting
    assert all(" --properties-file " in argv for argv in submitting)
    secrets = _secrets(deployment)
    assert not any(secret in argv for argv in submitting for secret in secrets)


def _secrets(deployment: Deployment) -> list[str]:
    store = deployment.settings.object_store
    secrets = [deployment.ledger_url, *(key.get_secret_value() for key in (store.secret_access_key,) if key)]
    secrets += [value for name, value in os.environ.items() if name.startswith("SLUICE_") and "CREDENTIAL" in name]
    assert len(secrets) >= 2
    return secrets


def _assert_no_secret_of_a_container(yarn: SingleNodeYarn, deployment: Deployment) -> None:
    """The node writes the environment of a container into a script, and Spark its settings into a file beside it."""
    files = [
        file
        for name in ("launch_container.sh", "__spark_conf__.properties")
        for file in yarn.configuration.parent.rglob(name)
    ]
    assert {file.name for file in files} == {"launch_container.sh", "__spark_conf__.properties"}
    texts = [file.read_text(errors="replace") for file in files]
    assert not any(secret in text for text in texts for secret in _secrets(deployment))
    settings = list(yarn.configuration.parent.rglob("sluice-*.json"))
    assert settings, "the driver has its settings from a file"
