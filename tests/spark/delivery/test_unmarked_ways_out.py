"""What plans say of outputs without a mark, when a table was set back or created again, or a checkpoint is torn."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fixtures.continuations import go_on
from tests.fixtures.workshop import Workshop
from tests.spark.delivery.test_unmarked_outputs import declare_direct, feed, repair_of, with_files
from tests.spark.runs.test_torn_staging import repair
from tests.spark.sources.test_unpublished_ways_out import cut, ids

from sluice.declarations.load_declarations import load_declarations
from sluice.errors import CheckpointError, RolledBackError
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.run_values import DesiredState
from sluice.operations import Stake
from sluice.positions.adopt_table import adopt_table
from sluice.positions.adoption import AdoptionWay
from sluice.positions.adoption_plan import AdoptionPlan, plan_adoption
from sluice.positions.repair_stream import plan_repair


def adoption_of(workshop: Workshop, stream: str, table: str, way: AdoptionWay) -> AdoptionPlan:
    """What an adoption of a table would do while its stream is stopped."""
    set_desired_state(workshop.ledger, stream, DesiredState.STOPPED)
    declared, name = load_declarations(workshop.folder), workshop.table_name(table)
    return plan_adoption(workshop.ledger, workshop.catalog, declared, workshop.settings, table=name, way=way)


def test_a_target_that_was_created_again_is_accepted_with_the_number_of_its_rows(workshop: Workshop) -> None:
    stream = declare_direct(workshop)
    feed(workshop, stream, 1, 2)
    workshop.catalog.drop_table(workshop.table_name("target"))
    workshop.create_tables(only=workshop.table_name("target"))
    plan = adoption_of(workshop, stream, "target", AdoptionWay.ACCEPT)
    assert (plan.rows, plan.at_stake) == (2, Stake.ROWS)


def test_a_direct_target_that_was_rolled_back_has_one_way_out(workshop: Workshop) -> None:
    """Start, adoption and repair name it."""
    stream = declare_direct(workshop)
    feed(workshop, stream, 1)
    first = workshop.table("target").current_snapshot()
    assert first is not None
    feed(workshop, stream, 2, 3)
    workshop.table("target").manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    with pytest.raises(RolledBackError) as refused:
        workshop.run(stream, is_recorded=True)
    wanted = (refused.value.message, refused.value.next_step)
    repaired = plan_repair(workshop.ledger, workshop.catalog, workshop.stream(stream), workshop.settings)
    for plan in (*(adoption_of(workshop, stream, "target", way) for way in AdoptionWay), repaired):
        assert [(one.sentence, one.next_step) for one in plan.refusals] == [wanted]
        assert "is what its streams have published" not in " ".join(plan.sentences())
    assert "Set main back to its snapshot" in (refused.value.next_step or "")


@pytest.mark.full  # every run counts the rows of one that was created again
def test_rows_that_are_read_again_are_said_to_be_doubled_in_a_console(workshop: Workshop, tmp_path: Path) -> None:
    files, stream = with_files(workshop, tmp_path / "lake", with_table=True, console={})
    feed(files, stream, 1)
    first = files.table("first").current_snapshot()
    assert first is not None
    feed(files, stream, 2, 3)
    files.table("first").manage_snapshots().rollback_to_snapshot(first.snapshot_id).commit()
    twice = f"What {stream} reads again comes a second time to lines"
    assert twice in " ".join(adoption_of(files, stream, "first", AdoptionWay.REREAD).sentences())
    assert twice not in " ".join(adoption_of(files, stream, "first", AdoptionWay.UNDO).sentences())
    adopt_table(
        files.ledger,
        files.catalog,
        load_declarations(files.folder),
        files.settings,
        table=files.table_name("first"),
        way=AdoptionWay.REREAD,
        asked_by="a test",
    )
    plan = plan_repair(files.ledger, files.catalog, files.stream(stream), files.settings)
    said = " ".join(plan.sentences())
    assert twice in said
    assert "2 rows are read again, 0 are lost, 2 are doubled." in said
    assert plan.evidence["rows_doubled"] == 2


@pytest.mark.full  # every run repairs one that the ledger forgot (`test_unmarked_outputs.py`)
def test_a_torn_plan_of_a_direct_stream_is_repaired_and_doubles_nothing(workshop: Workshop) -> None:
    stream = declare_direct(workshop)
    feed(workshop, stream, 1, 2)
    (workshop.checkpoint(stream) / "offsets" / "2").write_text("")
    with pytest.raises(CheckpointError, match="offsets/2"):
        feed(workshop, stream, 3)
    assert "a second time" not in repair_of(workshop, stream)
    repair(workshop, stream)
    cut(workshop, 4, 5)
    go_on(workshop, stream)
    workshop.run(stream, is_recorded=True)
    assert ids(workshop, "target") == [1, 2, 3, 4, 5]
