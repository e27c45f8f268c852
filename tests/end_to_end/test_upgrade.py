"""A newer Sluice upgrades the ledger beside a live driver of this one, takes its stream over, and is left again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from tests.fixtures.drivers import await_condition, end_drivers
from tests.fixtures.newer_sluice import Program, newer_program, this_program
from tests.fixtures.stack import Stack, stack_in

from sluice.ledger.connection import Ledger, open_ledger
from sluice.ledger.run_values import RunObservation
from sluice.ledger.runs import find_run, newest_run
from sluice.tables.catalog import open_catalog

pytestmark = [
    pytest.mark.timeout(1800),  # up to three starts of Spark, on a machine that may be busy
    pytest.mark.full,  # every test run has the ledger's part (`test_migrations.py`) and `restart --older-than`
]

WITHIN_SECONDS = 420.0
"""A driver is up in ten seconds on a quiet machine; a crowded one takes many times that."""

NEWER = "0.3.0"
STREAM = """\
stream: words
description: Words as they come.
owner: team
mode: continuous
trigger: {processing_time: 1 second}
inputs:
  files:
    stream:
      files: {connection: landing, format: json, columns: [{name: id, type: long}]}
transformation: {sql: words.sql}
outputs:
  rows:
    iceberg: {table: bronze.words}
"""
TABLE = """\
table: bronze.words
description: rows as they came
owner: team
columns:
  - {name: id, type: long}
"""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """A stream, its files, and the ledger that both programs share."""

    stack: Stack
    ledger: Ledger
    landing: Path
    environment: dict[str, str]

    def publish(self, number: int) -> None:
        """Wait until the live driver has published a file that comes now, and no file twice or not at all."""
        hidden = self.landing / f".{number}.json"
        hidden.write_text(json.dumps({"id": number}))
        hidden.rename(self.landing / f"{number}.json")
        await_condition(lambda: number in self.rows(), within_seconds=WITHIN_SECONDS)
        assert self.rows() == list(range(number + 1))

    def rows(self) -> list[int]:
        """What the table has, in order."""
        found = open_catalog(self.stack.settings()).load_table("bronze.words").scan().to_arrow()["id"].to_pylist()
        return sorted(int(number) for number in found if number is not None)

    def live_run(self, of: Program) -> RunObservation:
        """The live run of the stream, whose driver has the code of a program."""
        run = newest_run(self.ledger, "words")
        assert run is not None
        assert run.is_live
        assert run.process is not None
        assert run.version == of.version
        words = psutil.Process(run.process.pid).cmdline()
        assert any(word.startswith(f"{of.home}{os.sep}") for word in words), words
        return run

    def await_heartbeat(self, run: RunObservation) -> None:
        """Wait until the driver of a run reports again."""
        known = find_run(self.ledger, run.run_id).heartbeat_at
        await_condition(lambda: find_run(self.ledger, run.run_id).heartbeat_at != known, within_seconds=30)


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    """One stream, declared and not started yet."""
    pipelines, landing = tmp_path / "pipelines", tmp_path / "landing"
    pipelines.mkdir()
    landing.mkdir()
    (pipelines / "words.stream.yaml").write_text(STREAM)
    (pipelines / "words.sql").write_text("SELECT id FROM files")
    (pipelines / "bronze.words.table.yaml").write_text(TABLE)
    with stack_in(tmp_path / "data") as stack:
        stack.up(("postgres", "seaweedfs"))
        environment = {
            **stack.environment(),
            "SLUICE_PIPELINES": str(pipelines),
            "SLUICE_CONNECTIONS__LANDING__KIND": "files",
            "SLUICE_CONNECTIONS__LANDING__ROOT": landing.as_uri(),
            "SLUICE_LEDGER_OWNER_URL": stack.ledger_owner_url(),
        }
        code, said = this_program(environment).sluice("table", "create")
        assert code == 0, said
        with open_ledger(stack.ledger_owner_url()) as ledger:
            yield Deployment(stack=stack, ledger=ledger, landing=landing, environment=environment)
            end_drivers(ledger)


def test_a_live_driver_goes_on_through_an_upgrade_is_replaced_and_the_way_back_is_a_restart(
    deployment: Deployment, tmp_path: Path
) -> None:
    ours = this_program(deployment.environment)
    newer = newer_program(tmp_path / "newer", deployment.environment, newer=NEWER, oldest_reader=ours.version)
    assert ours.sluice("stream", "start", "words")[0] == 0
    deployment.publish(0)
    before = deployment.live_run(ours)

    code, said = newer.sluice("ledger", "upgrade")
    assert (code, "now has version of_a_newer_sluice" in said) == (0, True), said
    deployment.await_heartbeat(before)
    deployment.publish(1)
    assert deployment.live_run(ours).run_id == before.run_id
    assert ours.sluice("stream", "status", "words")[0] == 0

    assert "Ask run" in newer.sluice("stream", "restart", "--older-than", NEWER, "--dry-run")[1]
    code, said = newer.sluice("stream", "restart", "--older-than", NEWER, "--at-once", "4")
    assert (code, "1 of 1 streams are restarted" in said) == (0, True), said
    deployment.publish(2)
    deployment.live_run(newer)
    assert "0 of 0 streams" in newer.sluice("stream", "restart", "--older-than", NEWER)[1]

    code, said = ours.sluice("ledger", "status")
    assert (code, "of a newer Sluice, with which this one may work" in said) == (0, True), said
    code, said = ours.sluice("ledger", "upgrade")  # as `sluice stack up` does
    assert (code, "has version of_a_newer_sluice already" in said) == (0, True), said
    assert ours.sluice("stream", "restart", "words")[0] == 0
    deployment.publish(3)
    deployment.live_run(ours)
