"""A run is recorded also where the table cannot be looked at behind it."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import pytest
from tests.integration.maintenance.test_row_retention import OLD, YOUNG, Place, place, without_grace

from sluice.declarations.load_declarations import load_declarations
from sluice.errors import LakehouseError
from sluice.ledger.maintenance_runs import StepOutcome, recent_maintenance
from sluice.maintenance.maintenance_steps import TableMaintainer
from sluice.maintenance.run_maintenance import open_maintenance

__all__ = ["place", "without_grace"]


def test_what_was_removed_is_recorded_where_the_catalog_is_away_afterwards(place: Place) -> None:
    place.append((1, OLD))
    place.append((2, YOUNG))
    declarations = load_declarations(place.folder)
    opened = open_maintenance(place.settings, place.ledger, declarations, launched_by="a test")
    maintenance = replace(opened, agreed=declarations.tables[place.name].declaration.maintenance.retention)

    away = patch.object(TableMaintainer, "observe", side_effect=LakehouseError("the catalog is away"))
    with away, pytest.raises(LakehouseError, match="the catalog is away"):
        maintenance.maintain_without_spark(place.name)

    assert place.ids() == [2]
    (run,) = recent_maintenance(place.ledger, place.name, limit=5)
    assert (run.operations[0].outcome, run.operations[0].result["removed_rows_count"]) == (StepOutcome.DONE, 1)
    assert run.after == run.before, "the table as it was seen last"
    assert not any(step.basis for step in run.operations)
