"""A checkpoint follows the changes of a declaration that it can follow, and refuses the others before Spark sees it."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from tests.fixtures.workshop import Workshop

from sluice.errors import CheckpointError
from sluice.ledger.generations import find_generation
from sluice.ledger.runs import newest_run

HOURLY = (
    "SELECT window(at, '1 hour').start AS hour, {carrier} AS carrier, count(*) AS n "
    "FROM rows GROUP BY window(at, '1 hour'){group}"
)
ROW = {"id": 1, "at": datetime(2026, 1, 1, tzinfo=UTC), "carrier": "AA"}


def declare_counting(
    workshop: Workshop, name: str, *, by_carrier: bool = False, source: str = "source", description: str = ""
) -> None:
    """A stream that counts the rows of each hour."""
    workshop.declare_stream(
        name,
        sql=HOURLY.format(carrier="carrier" if by_carrier else "'all'", group=", carrier" if by_carrier else ""),
        inputs={
            "rows": {
                "stream": {"iceberg": {"table": workshop.table_name(source)}},
                "watermark": {"column": "at", "delay": "1 hour"},
            }
        },
        outputs={"counts": {"iceberg": {"table": workshop.table_name("counts"), "mode": "append"}}},
        description=description or "Counts",
    )


def test_a_stateful_checkpoint_is_bound_to_its_sources_operators_and_keys(workshop: Workshop) -> None:
    name = f"s{workshop.namespace}"
    for table in ("source", "elsewhere"):
        workshop.declare_table(table, {"id": "long", "at": "timestamptz", "carrier": "string"})
    workshop.declare_table("counts", {"hour": "timestamptz", "carrier": "string", "n": "long"})
    declare_counting(workshop, name)
    workshop.append("source", [ROW])
    workshop.run(name)
    bound = find_generation(workshop.ledger, name)
    assert bound is not None
    assert bound.fingerprint["state operators"].startswith("Aggregate window")
    assert "#" not in bound.fingerprint["state operators"]
    assert bound.fingerprint["sources of the query"] == "rows"

    workshop.append("source", [ROW])
    workshop.run(name)  # nothing has changed: what Spark numbers anew is not compared

    declare_counting(workshop, name, by_carrier=True)
    with pytest.raises(CheckpointError, match=r"cannot follow: state operators was `Aggregate window.*carrier"):
        workshop.run(name)
    declare_counting(workshop, name, source="elsewhere")
    with pytest.raises(CheckpointError, match=r"input rows was `iceberg table=.*source` and is now `.*elsewhere`"):
        workshop.run(name)
    refused = newest_run(workshop.ledger, name)
    assert refused is not None
    assert str(refused.reason).startswith("CheckpointError: The checkpoint of stream")
    assert find_generation(workshop.ledger, name) == bound
    declare_counting(workshop, name, description="Other words")
    workshop.run(name)
