"""What streams have rejected in their windows, and since a person has last seen it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from sqlalchemy import text
from tests.integration.ledger.test_batches import a_batch

from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.ledger.batch_findings import LIMITED_OUTPUT, MAX_REJECTED, RuleCount, RuleResult
from sluice.ledger.batches import BatchObservation, record_batch
from sluice.ledger.connection import Ledger
from sluice.ledger.desired_states import SuspensionCause, set_desired_state, suspend
from sluice.ledger.held_batches import rejected_within
from sluice.ledger.run_values import DesiredState

HOUR = timedelta(hours=1)


def rejected(ledger: Ledger, window: timedelta = HOUR) -> tuple[int, int]:
    """The rejected rows of the stream in a window, and those that it read."""
    found = rejected_within(ledger, {"flights": window})["flights"]
    return found.rows, found.read


def let_pass(ledger: Ledger, by: timedelta) -> None:
    """Let time pass for the batches that are recorded."""
    with ledger.transaction() as connection:
        connection.execute(text("UPDATE sluice.batches SET recorded_at = recorded_at - :by"), {"by": by})


def held(batch: BatchObservation, *, by: str) -> BatchObservation:
    """The batch as a rule of this name has held it."""
    key = batch.key
    count = RuleCount(counted=9, failed=9, on_failure="hold", is_broken=True)
    result = RuleResult(
        stream=key.stream,
        generation=key.generation,
        batch=key.batch,
        output="quarantine",
        table="quarantine.flights",
        rows=9,
        rules={by: count},
    )
    return replace(batch, rule_results=(result,))


def test_rejected_rows_count_in_the_window_of_each_stream(ledger: Ledger) -> None:
    record_batch(ledger, a_batch(0))
    let_pass(ledger, timedelta(minutes=30))
    for number in (1, 2):
        record_batch(ledger, a_batch(number))
    record_batch(ledger, replace(a_batch(3), is_rejected=True, refused_rows=100))
    record_batch(ledger, a_batch(0, stream="others"))

    found = rejected_within(ledger, {"flights": HOUR, "others": HOUR, "silent": HOUR})

    counts = {name: (one.rows, one.read) for name, one in found.items()}
    assert counts == {"flights": (12, 300), "others": (4, 100), "silent": (0, 0)}
    assert rejected(ledger, timedelta(minutes=10)) == (8, 200)
    assert rejected_within(ledger, {}) == {}


def test_what_a_person_has_seen_counts_no_more(ledger: Ledger) -> None:
    record_batch(ledger, a_batch(0))
    set_desired_state(ledger, "flights", DesiredState.RUNNING, requested_by="ann")
    record_batch(ledger, a_batch(1))
    assert rejected(ledger) == (4, 100)
    suspend(ledger, "flights", SuspensionCause.PAUSED)
    assert rejected(ledger) == (0, 0)


@pytest.mark.parametrize("is_rejected", [False, True], ids=["released", "rejected"])
def test_a_decision_about_a_batch_that_was_held_for_its_rejected_rows_begins_a_new_count(
    ledger: Ledger, is_rejected: bool
) -> None:
    record_batch(ledger, a_batch(0))
    record_batch(ledger, held(a_batch(1), by="price_is_positive"))
    assert rejected(ledger) == (8, 200), "another rule says nothing about rejected rows"
    record_batch(ledger, replace(held(a_batch(2), by=MAX_REJECTED), is_rejected=is_rejected))
    assert rejected(ledger) == (0, 0)
    record_batch(ledger, a_batch(3))
    assert rejected(ledger) == (4, 100)


def test_a_rule_of_a_table_that_has_the_name_of_the_limit_begins_no_new_count(ledger: Ledger) -> None:
    assert LIMITED_OUTPUT == QUARANTINE_OUTPUT
    for number in (0, 1):
        batch = held(a_batch(number), by=MAX_REJECTED)
        (result,) = batch.rule_results
        found = RuleCount(counted=9, failed=0, on_failure="warn", is_broken=False)
        result = replace(result, output="main", table="silver.flights", rules={MAX_REJECTED: found})
        record_batch(ledger, replace(batch, rule_results=(result,)))

    assert rejected(ledger) == (8, 200)


def test_rows_that_a_person_has_separated_from_a_batch_are_no_rejections_of_the_stream(ledger: Ledger) -> None:
    record_batch(ledger, held(a_batch(0), by="price_is_positive"))
    batch = held(a_batch(1), by="price_is_positive")
    (result,) = batch.rule_results
    moved = {name: replace(one, on_failure="quarantine", separated=3) for name, one in result.rules.items()}
    batch = replace(batch, rule_results=(replace(result, output="main", rules=moved), result))

    record_batch(ledger, batch)

    assert rejected(ledger) == (4 + 1, 200)
