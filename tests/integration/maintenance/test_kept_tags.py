"""A tag stays as long as a stream may read it, whatever is left of the stream's declaration."""

from __future__ import annotations

from datetime import timedelta

import pytest
import yaml
from tests.integration.maintenance.conftest import Place

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.connection import database_time
from sluice.ledger.run_values import RunState
from sluice.ledger.runs import admit_run, record_end
from sluice.maintenance.maintained_tables import plan_table_maintenance
from sluice.maintenance.maintenance_plan import MaintenancePlan


def planned(place: Place) -> MaintenancePlan:
    """The plan of the table in an hour, when its tag is old."""
    declarations = load_declarations(place.folder)
    return plan_table_maintenance(
        place.ledger,
        declarations,
        place.settings,
        declaration=declarations.table(f"{place.namespace}.copies").declaration,
        table=place.table("copies"),
        now=database_time(place.ledger) + timedelta(hours=1),
    )


@pytest.mark.parametrize("is_declared", [True, False], ids=["by an earlier declaration", "without one"])
def test_a_tag_stays_while_a_stream_runs_whose_inputs_are_unknown(place: Place, is_declared: bool) -> None:
    """Its inputs may name the tag."""
    file = place.folder / f"{place.namespace}.copies.table.yaml"
    expiry = {"older_than": "1 minute", "retain_last": 1, "tags": "10 minutes"}
    file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), "maintenance": {"expiry": expiry}}))
    first, _ = place.append("copies", 2)
    place.table("copies").manage_snapshots().create_tag(first, "audit").commit()
    stream = place.stream if is_declared else f"gone_{place.namespace}"
    run = admit_run(place.ledger, stream=stream, mode="continuous", declaration_digest="d", launched_by="a test")

    plan = planned(place)

    assert [one.references for one in plan.steps if one.references] == []
    assert any(note.startswith("audit: old enough to go, but kept") and stream in note for note in plan.notes)
    record_end(place.ledger, run.run_id, state=RunState.FINISHED, exit_code=0, reason="done")
    assert not any(stream in note for note in planned(place).notes)
