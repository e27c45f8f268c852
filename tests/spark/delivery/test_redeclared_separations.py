"""What is declared in another way between the hold of a batch and its release without some rows."""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.workshop import Workshop
from tests.spark.delivery.test_held_batches import BAD, COLUMNS, GOOD, RULE, choose, ids
from tests.spark.delivery.test_separated_batches import declare, rejected

from sluice.errors import UsageError
from sluice.ledger.held_batches import HeldDecision, decide_held, find_held
from sluice.operations import OperationVerb
from sluice.publication.held_decisions import plan_decision
from sluice_spark.delivery.waiting_batches import _withdrawal

KNOWN = {"name": "known", "expression": "id IS NOT NULL", "on_failure": "quarantine"}


def test_a_rule_that_finds_as_many_other_rows_is_another_rule(workshop: Workshop) -> None:
    stream = declare(workshop)
    workshop.append("source", [{"id": 1, "price": 500}, BAD])
    workshop.run(stream, is_recorded=True)
    choose(workshop, stream, OperationVerb.SEPARATE_BATCH)
    workshop.declare_table("target", COLUMNS, rules=[RULE | {"expression": "price < 100"}])

    workshop.run(stream, is_recorded=True)

    assert (ids(workshop), rejected(workshop, stream)) == ([], [])
    held = find_held(workshop.ledger, stream)
    assert held is not None
    assert held.decision is None, "it waits for a person again"


@pytest.mark.full  # every run has a rule that is declared otherwise
def test_a_quarantine_that_is_declared_later_has_no_place_for_the_rows(workshop: Workshop) -> None:
    source, stream = workshop.declare_table("source", COLUMNS), f"s{workshop.namespace}"

    def declare_stream(**parts: Any) -> None:
        workshop.declare_stream(
            stream,
            sql="SELECT * FROM r",
            inputs={"r": {"stream": {"iceberg": {"table": source, "max_files_per_batch": 1}}}},
            outputs={"main": {"iceberg": {"table": workshop.table_name("target")}}},
            **parts,
        )

    workshop.declare_table("target", COLUMNS, rules=[RULE])
    declare_stream()
    workshop.append("source", [GOOD, BAD])
    workshop.run(stream, is_recorded=True)
    workshop.declare_table("target", COLUMNS, rules=[RULE, KNOWN])
    declare_stream(quarantine=True)
    with pytest.raises(UsageError, match="had none when it was staged"):
        plan_decision(workshop.ledger, workshop.stream(stream), OperationVerb.SEPARATE_BATCH)
    held = find_held(workshop.ledger, stream)
    assert held is not None
    decide_held(  # as an earlier version let a person decide
        workshop.ledger, held.key, HeldDecision.SEPARATED, _withdrawal(held.key, "a test"), by="a test"
    )

    workshop.run(stream, is_recorded=True)

    held = find_held(workshop.ledger, stream)
    assert held is not None
    assert (held.decision, ids(workshop)) == (None, [])
    choose(workshop, stream, OperationVerb.RELEASE_BATCH)
    workshop.run(stream, is_recorded=True)
    assert ids(workshop) == [1, 2]
