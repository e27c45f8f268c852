"""A batch with which a stream rejects more rows than `max_rejected` waits for a person before it is visible."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.fixtures.workshop import Workshop
from tests.spark.decoding.test_malformed_lines import with_folder
from tests.spark.delivery.test_held_batches import choose

from sluice.errors import UsageError
from sluice.ledger.batches import recent_batches
from sluice.ledger.held_batches import HeldBatch, find_held
from sluice.operations import OperationVerb
from sluice.publication.held_decisions import plan_decision
from sluice_spark.run.stop_request import StopReason

COLUMNS = {"id": "long", "price": "long"}
RULE = {"name": "price_is_positive", "expression": "price > 0", "on_failure": "quarantine"}


HOLDING = {"name": "price_is_usual", "expression": "price < 100", "on_failure": "hold"}


def declare(workshop: Workshop, limit: dict[str, Any], *rules: dict[str, Any]) -> str:
    """A stream of a batch for each snapshot of its source, which rejects rows and has a limit; its name."""
    workshop.declare_table("source", COLUMNS)
    workshop.declare_table("target", COLUMNS, rules=[RULE, *rules])
    stream = f"s{workshop.namespace}"
    workshop.declare_stream(
        stream,
        python="def transform(r):\n    return {'main': r.where('id < 90')}",
        inputs={"r": {"stream": {"iceberg": {"table": workshop.table_name("source"), "max_rows_per_batch": 3}}}},
        outputs={"main": {"iceberg": {"table": workshop.table_name("target")}}},
        quarantine=True,
        supervision={"max_rejected": limit},
    )
    return stream


def append(workshop: Workshop, *prices: int, first: int) -> None:
    """A snapshot of rows with these prices."""
    workshop.append("source", [{"id": first + place, "price": price} for place, price in enumerate(prices)])


def ids(workshop: Workshop) -> list[int]:
    return sorted(row["id"] for row in workshop.rows("target"))


def held_of(workshop: Workshop, stream: str) -> HeldBatch:
    held = find_held(workshop.ledger, stream)
    assert held is not None
    return held


def test_the_batch_beyond_the_limit_is_held(workshop: Workshop) -> None:
    """The first one is within it."""
    stream = declare(workshop, {"rows": 1, "action": "hold"})
    append(workshop, 5, 6, -1, first=1)
    append(workshop, 7, -2, -3, first=4)
    append(workshop, 8, 9, 10, first=7)

    assert workshop.run(stream, is_recorded=True).reason is StopReason.EXHAUSTED

    held = held_of(workshop, stream)
    assert held.reason.startswith("max_rejected by 3 rejected rows of 6 since ")
    assert (held.key.batch, held.rows, held.queued) == (1, {"main": 1, "quarantine": 2}, 1)
    assert ids(workshop) == [1, 2], "nothing of it is visible, and nothing behind it"
    assert len(workshop.rows(f"quarantine.{stream}")) == 1
    with pytest.raises(UsageError, match="the rows that it rejects are in its quarantine already"):
        plan_decision(workshop.ledger, workshop.stream(stream), OperationVerb.SEPARATE_BATCH)


@pytest.mark.full  # every run: `test_rejection_hold.py` counts without Spark, `test_held_batches.py` releases
def test_what_a_person_releases_counts_no_more(workshop: Workshop) -> None:
    stream = declare(workshop, {"rows": 1, "action": "hold"})
    append(workshop, 5, 6, -1, first=1)
    workshop.run(stream, is_recorded=True)
    assert (ids(workshop), find_held(workshop.ledger, stream)) == ([1, 2], None), "one is within the limit"
    append(workshop, 7, -2, -3, first=4)
    append(workshop, 8, 9, 10, first=7)
    workshop.run(stream, is_recorded=True)
    assert ids(workshop) == [1, 2]

    choose(workshop, stream, OperationVerb.RELEASE_BATCH)
    workshop.run(stream, is_recorded=True)

    assert ids(workshop) == [1, 2, 4, 7, 8, 9]
    assert len(workshop.rows(f"quarantine.{stream}")) == 3
    append(workshop, 11, -4, 12, first=10)
    workshop.run(stream, is_recorded=True)
    assert (ids(workshop)[-2:], find_held(workshop.ledger, stream)) == ([10, 12], None), "the count began again"


@pytest.mark.full  # every run holds the first one
def test_batches_behind_a_held_one_are_held_too_when_they_reject_rows(workshop: Workshop) -> None:
    """What waits is recorded when it is let go, and counts before that."""
    stream = declare(workshop, {"rows": 2, "action": "hold"})
    append(workshop, -1, -2, -3, first=1)
    append(workshop, 5, 6, 7, first=4)
    append(workshop, 5, 6, -1, first=7)
    workshop.run(stream, is_recorded=True)
    assert (held_of(workshop, stream).key.batch, held_of(workshop, stream).queued) == (0, 2)

    choose(workshop, stream, OperationVerb.RELEASE_BATCH)
    workshop.run(stream, is_recorded=True)

    held = held_of(workshop, stream)
    assert (held.key.batch, ids(workshop)) == (2, [4, 5, 6])
    assert held.reason.startswith("max_rejected by 4 rejected rows of 9 since ")


@pytest.mark.full  # every run has either hold alone
def test_a_batch_that_a_rule_and_the_limit_hold_is_separated_and_what_a_person_separates_counts_not(
    workshop: Workshop,
) -> None:
    stream = declare(workshop, {"rows": 1, "action": "hold"}, HOLDING)
    append(workshop, 5, 500, 600, first=1)
    workshop.run(stream, is_recorded=True)
    assert held_of(workshop, stream).failed == {"main": {"price_is_usual": 2}}, "a row that waits is not rejected"
    choose(workshop, stream, OperationVerb.SEPARATE_BATCH)
    workshop.run(stream, is_recorded=True)
    append(workshop, 6, 7, -1, first=4)
    workshop.run(stream, is_recorded=True)
    assert (ids(workshop), find_held(workshop.ledger, stream)) == ([1, 4, 5], None), "1 rejected row, and not 3"
    append(workshop, -2, 8, 700, first=7)
    workshop.run(stream, is_recorded=True)
    assert held_of(workshop, stream).failed == {"main": {"price_is_usual": 1}, "quarantine": {"max_rejected": 2}}

    plan = plan_decision(workshop.ledger, workshop.stream(stream), OperationVerb.SEPARATE_BATCH)
    assert "The rows that break price_is_usual (1) go to the quarantine" in plan.steps[1].sentence
    choose(workshop, stream, OperationVerb.SEPARATE_BATCH)
    workshop.run(stream, is_recorded=True)

    assert (ids(workshop), find_held(workshop.ledger, stream)) == ([1, 4, 5, 8], None)
    reasons = [row["reason"].removeprefix("the row breaks a rule: ") for row in workshop.rows(f"quarantine.{stream}")]
    assert sorted(reasons) == ["price_is_positive"] * 2 + ["price_is_usual"] * 3
    recorded = {one.key.batch: one for one in recent_batches(workshop.ledger, stream, limit=9)}
    assert [recorded[number].refused_rows for number in range(3)] == [2, 1, 2]
    assert all(one.snapshot_ids.keys() == {"main", "quarantine"} for one in recorded.values()), "recovered ones too"


@pytest.mark.full
def test_the_share_is_that_of_the_rows_that_were_read(workshop: Workshop, tmp_path: Path) -> None:
    """The transformation leaves most of them out, so that what is written says nothing; a file without a good record is
    held as well."""
    workshop = with_folder(workshop, tmp_path)
    workshop.declare_table("target", COLUMNS)
    stream = f"s{workshop.namespace}"
    columns = [{"name": "id", "type": "long", "required": True}, {"name": "price", "type": "long"}]
    source = {"connection": "folder", "path": "in", "format": "json", "columns": columns, "on_malformed": "quarantine"}
    workshop.declare_stream(
        stream,
        sql="SELECT id, price FROM r WHERE id < 2",
        inputs={"r": {"stream": {"files": source}}},
        outputs={"main": {"iceberg": {"table": workshop.table_name("target")}}},
        quarantine=True,
        supervision={"max_rejected": {"share": 0.3, "action": "hold"}},
    )
    (tmp_path / "in").mkdir()
    records = [f'{{"id": {number}}}' for number in range(1, 10)]
    (tmp_path / "in" / "good.json").write_text("\n".join([*records, "cut", "cut"]))
    workshop.run(stream, is_recorded=True)
    assert (ids(workshop), find_held(workshop.ledger, stream)) == ([1], None), "2 of 11, and not 2 of 3"

    (tmp_path / "in" / "bad.json").write_text("cut\n" * 4)
    workshop.run(stream, is_recorded=True)

    held = held_of(workshop, stream)
    assert held.reason.startswith("max_rejected by 6 rejected rows of 15 since ")
    assert (held.rows, len(workshop.rows(f"quarantine.{stream}"))) == ({"main": 0, "quarantine": 4}, 2)
