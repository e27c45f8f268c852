"""The figures of a compaction: what known conditions read before and after it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.unit.layout.test_layout_advice import Place, place_of, rows_of
from tests.unit.maintenance.test_maintenance_plan import NOON

from sluice.layout.pruning import files_read, read_data_files
from sluice.ledger.maintenance_runs import MaintenanceStep, StepObservation, StepOutcome
from sluice.maintenance.maintenance_records import LayoutProbe, figure_sentences
from sluice.tables.inspection import observe_table


def done(step: MaintenanceStep, outcome: StepOutcome = StepOutcome.DONE) -> StepObservation:
    """A step of a run."""
    return StepObservation(step=step, outcome=outcome, reason="r", explanation="e", result={"kept": 1})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A table of two files."""
    found = place_of(tmp_path)
    for seed in range(2):
        found.append(rows_of(10, seed=seed))
    return found


def figures(place: Place, *steps: StepObservation) -> tuple[StepObservation, ...]:
    """The steps with their figures, after two files have become three."""
    table, filters = place.table, tuple(place.filters("a >= 0"))
    before = tuple(files_read(table, read_data_files(table), one) for one in filters)
    seen = observe_table(table, name="silver.rows", small_file_bytes=1, now=NOON)
    place.append(rows_of(10, seed=9))
    after = observe_table(place.table, name="silver.rows", small_file_bytes=1, now=NOON)
    probe = LayoutProbe(filters=filters, before=before)
    return probe.with_figures(steps, place.table, seen=seen, after=after)


def test_a_compaction_has_its_figures_and_other_steps_have_none(place: Place) -> None:
    steps = (done(MaintenanceStep.REWRITE_DATA_FILES), done(MaintenanceStep.REWRITE_MANIFESTS))

    compacted, manifests = figures(place, *steps)

    assert manifests == steps[1]
    assert compacted.result["kept"] == 1
    (read,) = compacted.result["filters"]
    assert (read["where"], read["before"]["files"], read["after"]["files"]) == ("a >= 0", 2, 3)
    first, second = figure_sentences(compacted)
    assert first.startswith("planning a scan of everything took ")
    assert second.startswith("a >= 0 reads 2 files (")
    assert list(figure_sentences(manifests)) == []


@pytest.mark.parametrize("outcome", [StepOutcome.SKIPPED, StepOutcome.YIELDED, StepOutcome.FAILED])
def test_a_compaction_that_was_not_made_has_no_figures(place: Place, outcome: StepOutcome) -> None:
    (step,) = figures(place, done(MaintenanceStep.REWRITE_DATA_FILES, outcome))

    assert step.result == {"kept": 1}


def test_a_table_that_cannot_be_read_any_more_leaves_the_figures_out(place: Place) -> None:
    table, filters = place.table, tuple(place.filters("a >= 0"))
    seen = observe_table(table, name="silver.rows", small_file_bytes=1, now=NOON)
    for manifest in table.inspect.manifests()["path"].to_pylist():
        Path(str(manifest).removeprefix("file://")).unlink()
    probe = LayoutProbe(filters=filters, before=tuple(files_read(table, (), one) for one in filters))

    (step,) = probe.with_figures((done(MaintenanceStep.REWRITE_DATA_FILES),), table, seen=seen, after=seen)

    assert "filters" not in step.result
    assert "planning_ms" in step.result
