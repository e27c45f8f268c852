"""What plans say of outputs without a mark, when a table was set back or created again, or a checkpoint is torn."""

from __future__ import annotations

from tests.fixtures.workshop import Workshop
from tests.spark.delivery.test_unmarked_outputs import declare_direct, feed

from sluice.declarations.load_declarations import load_declarations
from sluice.ledger.desired_states import set_desired_state
from sluice.ledger.run_values import DesiredState
from sluice.operations import Stake
from sluice.positions.adoption import AdoptionWay
from sluice.positions.adoption_plan import AdoptionPlan, plan_adoption


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
