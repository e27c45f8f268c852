"""The column of a retention is renamed in the declaration, and then in the table."""

from __future__ import annotations

import yaml
from tests.integration.maintenance.test_maintenance_commands import ended
from tests.integration.maintenance.test_row_retention import OLD, YOUNG, Place, place, without_grace

from sluice.declarations.load_declarations import load_declarations
from sluice.maintenance.step_decision import StepAction
from sluice.tables.declared_tables import create_or_evolve_table

__all__ = ["place", "without_grace"]


def test_rows_go_by_a_renamed_column_without_a_question(place: Place) -> None:
    place.append((1, OLD), (2, YOUNG), (3, YOUNG))
    assert ended(["table", "maintain", place.name, "--yes"]) == 0
    place.append((4, OLD))
    file = place.folder / f"{place.name}.table.yaml"
    declared = yaml.safe_load(file.read_text())
    declared["columns"][1] = {"name": "happened_at", "type": "timestamptz", "renamed_from": "at"}
    declared["partitioning"] = [{"column": "happened_at", "transform": "day"}]
    declared["maintenance"]["retention"]["column"] = "happened_at"
    file.write_text(yaml.safe_dump(declared))
    assert "no date or time happened_at yet" in place.decision().explanation

    create_or_evolve_table(place.catalog, load_declarations(place.folder).tables[place.name].declaration)

    (hourly, *_) = place.plan(agrees=False).steps
    assert hourly.action is StepAction.RUN, hourly.explanation
    assert "1 file with 1 rows" in hourly.explanation
    assert ended(["table", "maintain", place.name, "--yes"]) == 0
    assert place.ids() == [2, 3]
