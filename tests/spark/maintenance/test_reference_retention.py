"""Old tags and branches of people go with the snapshots that they kept; those in use stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from unittest.mock import patch

import pytest
from pyiceberg.table import Table
from tests.fixtures.upkeep import maintain
from tests.fixtures.workshop import Workshop
from tests.spark.maintenance.test_maintenance import NO_COMPACTION, append, declare, ids, step

from sluice.ledger.maintenance_runs import MaintenanceStep, StepOutcome
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import live_run, live_streams, record_end
from sluice.maintenance import maintenance_steps
from sluice.maintenance.position_pins import remove_references

EXPIRES: Mapping[str, Any] = {
    "expiry": {"older_than": "1 millisecond", "retain_last": 1, "tags": "1 millisecond", "branches": "1 millisecond"}
}

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
"""pyspark fetches the rows of `collect` through a socket that it leaves to the garbage collector."""


@pytest.fixture(autouse=True)
def nothing_else_runs(workshop: Workshop) -> None:
    """End what other tests have left running: its declaration is not known, so that it may read any tag."""
    for stream in live_streams(workshop.ledger):
        with workshop.ledger.transaction() as connection:
            run = live_run(connection, stream)
        if run is not None:
            record_end(workshop.ledger, run.run_id, state=RunState.FINISHED, exit_code=0, reason="its test has ended")


def old_table(workshop: Workshop) -> tuple[str, list[int]]:
    """A table of four rows and snapshots, the first three tagged or on a branch; its name and its snapshots."""
    name = declare(workshop, "rows", **NO_COMPACTION, **EXPIRES)
    append(workshop, name, 0, 4)
    table = workshop.table(name)
    snapshots = [one.snapshot_id for one in table.snapshots()]
    with table.manage_snapshots() as update:
        update.create_tag(snapshots[0], "audit").create_tag(snapshots[1], "read").create_branch(snapshots[2], "try")
    return name, snapshots


def reading(workshop: Workshop, name: str) -> None:
    """A stream that joins with the table as it was at a tag."""
    workshop.declare_stream(
        f"s{workshop.namespace}",
        sql="SELECT value FROM numbers CROSS JOIN (SELECT count(*) AS n FROM rows)",
        inputs={
            "numbers": {"stream": {"rate": {"rows_per_second": 1}}},
            "rows": {"static": {"iceberg": {"table": name, "tag": "read"}}},
        },
        outputs={"main": {"iceberg": {"table": workshop.declare_table("numbers", {"value": "long"})}}},
    )


def listed(table: Table) -> list[int]:
    return [one.snapshot_id for one in table.refresh().snapshots()]


def test_old_references_go_and_named_ones_stay(workshop: Workshop) -> None:
    name, snapshots = old_table(workshop)
    reading(workshop, name)
    done = step(maintain(workshop, name), MaintenanceStep.EXPIRE_SNAPSHOTS)
    assert done.outcome is StepOutcome.DONE
    assert done.result["removed_references"] == ["audit", "try"]
    assert set(workshop.table(name).refs()) == {"main", "read"}
    assert listed(workshop.table(name)) == [snapshots[1], snapshots[3]]
    assert ids(workshop, name) == [0, 1, 2, 3]
    again = step(maintain(workshop, name), MaintenanceStep.EXPIRE_SNAPSHOTS)
    assert again.outcome is StepOutcome.SKIPPED, "the next run finds nothing to expire"


def test_a_branch_that_is_written_meanwhile_stays(workshop: Workshop) -> None:
    name, snapshots = old_table(workshop)

    def written_first(table: Table, references: Any) -> tuple[str, ...]:
        other = workshop.table(name)
        rows = other.scan(snapshot_id=snapshots[0]).to_arrow()
        other.append(rows, branch="try")
        return remove_references(table, references)

    with patch.object(maintenance_steps, "remove_references", written_first):
        done = step(maintain(workshop, name), MaintenanceStep.EXPIRE_SNAPSHOTS)
    assert done.result["removed_references"] == ["audit", "read"]
    assert set(workshop.table(name).refs()) == {"main", "try"}
    assert workshop.table(name).scan().use_ref("try").to_arrow().num_rows == 4, "its snapshots are whole"
