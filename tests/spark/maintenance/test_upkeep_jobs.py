"""Maintenance and quality checks by the queue: by a command, which starts an application, and in one that runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import yaml
from tests.fixtures.sample_declarations import write_incremental_stream
from tests.fixtures.stack import Stack
from tests.fixtures.work import ask_for, serve
from tests.fixtures.workshop import Workshop

from sluice.ledger.batches import PublicationKey
from sluice.ledger.held_batches import HeldBatch, hold_batch
from sluice.ledger.work_items import observe_item
from sluice.ledger.work_values import WorkState
from sluice.work.requests import CheckTable

JOB_SECONDS = 300


@pytest.fixture
def environment(services: Stack, workshop: Workshop) -> Mapping[str, str]:
    """The environment of a process that works with the test's declarations."""
    own = {"SLUICE_PIPELINES": str(workshop.folder), "SLUICE_REPORTS": str(workshop.folder.parent / "reports")}
    return {**os.environ, **services.environment(), **own}


def declare(workshop: Workshop, called: str = "rows", **parts: Any) -> str:
    """Declare and create a table, and append six rows in six files; its full name."""
    name = workshop.table_name(called)
    columns = [{"name": "id", "type": "long"}]
    declared = {"table": name, "description": "rows", "owner": "me", "columns": columns, **parts}
    (workshop.folder / f"{name}.table.yaml").write_text(yaml.safe_dump(declared))
    workshop.create_tables()
    for number in range(6):
        workshop.append(name, [{"id": number}])
    return name


def run(words: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a process to its end."""
    return subprocess.run(  # noqa: S603  # our own commands
        words, env=dict(environment), capture_output=True, text=True, timeout=JOB_SECONDS, check=False
    )


@pytest.mark.drill  # in every test run the demo maintains its tables
def test_a_person_maintains_a_table(workshop: Workshop, environment: Mapping[str, str]) -> None:
    table = declare(workshop, maintenance={"compaction": {"target_file_bytes": "64MiB", "min_input_files": 5}})
    sluice = [sys.executable, "-m", "sluice.cli.app", "table"]

    ended = run([*sluice, "maintain", table, "--json"], environment)

    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert (document["before"]["files"], document["after"]["files"]) == (6, 1)
    assert document["launched_by"].startswith("command line: ")
    assert [row["id"] for row in workshop.rows(table)] == list(range(6))
    history = json.loads(run([*sluice, "history", table, "--json"], environment).stdout)
    assert [past["after"]["snapshot"] for past in history["runs"]] == [document["after"]["snapshot"]]


def checked(highest: int) -> Mapping[str, Any]:
    """A check that the ids are at most so high."""
    bounds = {"column": "id", "min_value": 0, "max_value": highest}
    return {"expectations": [{"type": "expect_column_values_to_be_between", "kwargs": bounds}]}


def test_a_check_that_finds_bad_data_or_a_held_batch_fails_with_the_reason(
    workshop: Workshop, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    broken, waiting = declare(workshop, quality=checked(3)), declare(workshop, "awaited", quality=checked(5))
    stream = waiting.rpartition(".")[2]
    (workshop.folder / "rows.sql").write_text("SELECT id FROM rows")
    write_incremental_stream(workshop.folder, stream, schedule="{cron: '0 0 1 1 *'}", reads=broken, writes=waiting)
    key = PublicationKey(stream=stream, generation=1, batch=4)
    hold_batch(workshop.ledger, HeldBatch(key=key, reason="has_id by 3 of 40 rows", rows={"main": 40}))
    items = [ask_for(workshop, CheckTable(table=table)) for table in (broken, waiting)]

    assert serve(workshop, items) == "no further work came"

    seen = [observe_item(workshop.ledger, item) for item in items]
    reasons = [(one.failure or "").splitlines()[-1] for one in seen]
    assert [one.state for one in seen] == [WorkState.FAILED] * 2, reasons
    assert reasons[0].startswith(
        "sluice: failed: UnhealthyError: 1 of 1 expectations do not hold on 6 rows of snapshot"
    )
    assert f"{stream}: Batch 1:4 waits for a person: it breaks has_id by 3 of 40 rows." in reasons[1]
    assert f"sluice quality report {broken}" in caplog.text
