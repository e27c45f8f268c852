"""A run is recorded also where the table cannot be looked at behind it."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
import yaml
from tests.integration.maintenance.test_row_retention import OLD, YOUNG, Place, place, without_grace

from sluice.declarations.load_declarations import load_declarations
from sluice.errors import LakehouseError
from sluice.ledger.maintenance_runs import StepOutcome, recent_maintenance
from sluice.maintenance import maintenance_steps
from sluice.maintenance.file_rewrite import CommitConflictError
from sluice.maintenance.maintenance_steps import TableMaintainer
from sluice.maintenance.run_maintenance import TableMaintenance, open_maintenance

__all__ = ["place", "without_grace"]


def agreed(place: Place) -> TableMaintenance:
    """Maintenance by a person who has agreed to the retention of the table."""
    declarations = load_declarations(place.folder)
    opened = open_maintenance(place.settings, place.ledger, declarations, launched_by="a test")
    return replace(opened, agreed=declarations.tables[place.name].declaration.maintenance.retention)


def test_what_was_removed_is_recorded_where_the_catalog_is_away_afterwards(place: Place) -> None:
    place.append((1, OLD))
    place.append((2, YOUNG))
    maintenance = agreed(place)

    away = patch.object(TableMaintainer, "observe", side_effect=LakehouseError("the catalog is away"))
    with away, pytest.raises(LakehouseError, match="the catalog is away"):
        maintenance.maintain_without_spark(place.name)

    assert place.ids() == [2]
    (run,) = recent_maintenance(place.ledger, place.name, limit=5)
    assert (run.operations[0].outcome, run.operations[0].result["removed_rows_count"]) == (StepOutcome.DONE, 1)
    assert run.after == run.before, "the table as it was seen last"
    assert not any(step.basis for step in run.operations)


def test_an_agreed_removal_that_yields_ends_the_run(place: Place) -> None:
    """Spark's part would be planned without the agreement, and the person would read that no person has agreed."""
    place.append((1, OLD))
    place.append((2, YOUNG))
    file = place.folder / f"{place.name}.table.yaml"
    declared = yaml.safe_load(file.read_text())
    declared["maintenance"]["expiry"] = {"older_than": "1 millisecond", "retain_last": 1}
    file.write_text(yaml.safe_dump(declared))

    with patch.object(maintenance_steps, "remove_old_files", side_effect=CommitConflictError("writers came")):
        run = agreed(place).maintain_without_spark(place.name)

    assert run is not None
    assert run.operations[0].outcome is StepOutcome.YIELDED
    assert agreed(place).maintain_without_spark(place.name) is None, "the rows are gone, and Spark is left"
    assert place.ids() == [2]
