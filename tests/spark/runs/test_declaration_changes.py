"""A checkpoint follows the changes of a declaration that it can follow, and refuses the others before Spark sees it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.fixtures.streams_of_tables import reading, writing
from tests.fixtures.workshop import Workshop

from sluice.errors import CheckpointError, DeclarationError
from sluice.ledger.generations import find_generation
from sluice.ledger.runs import newest_run
from sluice_spark.session.state_settings import WATERMARK_POLICY

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


@pytest.mark.full
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


SUMS = (
    "SELECT window(at, '1 hour').start AS hour, {first} AS first, {second} AS second "
    "FROM rows GROUP BY window(at, '1 hour')"
)


def declare_sums(workshop: Workshop, name: str, first: str, second: str, **parts: Any) -> None:
    """A stream that adds two columns up, hour by hour."""
    workshop.declare_stream(
        name,
        sql=SUMS.format(first=first, second=second),
        inputs={
            "rows": {
                "stream": {"iceberg": {"table": workshop.table_name("source")}},
                "watermark": {"column": "at", "delay": "1 hour"},
            }
        },
        outputs={"sums": {"iceberg": {"table": workshop.table_name("sums")}}},
        **parts,
    )


@pytest.mark.full
def test_a_checkpoint_is_bound_to_what_its_state_means(workshop: Workshop) -> None:
    """Two sums that change places have the same types: Spark would go on with each other's totals."""
    name = f"s{workshop.namespace}"
    workshop.declare_table("source", {"at": "timestamptz", "a": "long", "b": "long"})
    workshop.declare_table("sums", {"hour": "timestamptz", "first": "long", "second": "long"})
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    declare_sums(workshop, name, "sum(a)", "sum(b)")
    workshop.append("source", [{"at": noon, "a": 100, "b": 1}])
    workshop.run(name)

    workshop.append("source", [{"at": noon, "a": 100, "b": 1}])
    workshop.run(name)

    bound = find_generation(workshop.ledger, name)
    assert bound is not None
    assert bound.fingerprint["meaning of the state"] == (
        "Aggregate by window struct<start:timestamp,end:timestamp>: sum(a) bigint, sum(b) bigint"
    )
    assert bound.fingerprint["state version"] == "1"
    declare_sums(workshop, name, "sum(b)", "sum(a)")
    with pytest.raises(CheckpointError, match=r"meaning of the state was `.*sum\(a\) bigint, sum\(b\) bigint` and is"):
        workshop.run(name)
    declare_sums(workshop, name, "sum(a)", "sum(b)", state={"version": 2})
    with pytest.raises(CheckpointError, match="state version was `1` and is now `2`"):
        workshop.run(name)
    declare_sums(workshop, name, "sum(a)", "sum(b)", engine={"options": {WATERMARK_POLICY: "max"}})
    with pytest.raises(DeclarationError, match=rf"`engine\.options\.{WATERMARK_POLICY}`: max is declared, but"):
        workshop.run(name)

    declare_sums(workshop, name, "sum(a) + 0", "sum(b) * 10")  # what is kept stays the same
    for hours in (5, 6):  # a window closes in the batch after the one that moved the watermark
        workshop.append("source", [{"at": noon + timedelta(hours=hours), "a": 0, "b": 0}])
        workshop.run(name)
    assert [(row["first"], row["second"]) for row in workshop.rows("sums")] == [(200, 20)]


TOTALS = "SELECT window(at, '1 hour').start AS hour, sum(a) AS total FROM ({below}) GROUP BY window(at, '1 hour')"


def test_filters_columns_and_delays_below_the_state_may_change(workshop: Workshop) -> None:
    """The sum of an hour has the rows from before and after the changes."""
    name = f"s{workshop.namespace}"
    workshop.declare_table("source", {"at": "timestamptz", "a": "long"})
    workshop.declare_table("sums", {"hour": "timestamptz", "total": "long"})
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)

    def run(below: str, delay: str, row: dict[str, Any]) -> None:
        workshop.declare_stream(
            name,
            sql=TOTALS.format(below=below),
            inputs={
                "rows": {
                    "stream": {"iceberg": {"table": workshop.table_name("source")}},
                    "watermark": {"column": "at", "delay": delay},
                }
            },
            outputs={"sums": {"iceberg": {"table": workshop.table_name("sums")}}},
        )
        workshop.append("source", [row])
        workshop.run(name)

    run("SELECT at, a FROM rows", "1 hour", {"at": noon, "a": 1})
    run("SELECT at, a, a * 2 AS twice FROM rows WHERE a < 100", "90 minutes", {"at": noon, "a": 20})
    for hours in (5, 6):  # a window closes in the batch after the one that moved the watermark
        run("SELECT at, a FROM rows", "90 minutes", {"at": noon + timedelta(hours=hours), "a": 0})

    assert [row["total"] for row in workshop.rows("sums")] == [21]


@pytest.mark.full  # every run has the rule (`test_compatibility.py`), and two other kinds of state here
def test_a_limit_is_state(workshop: Workshop) -> None:
    name = f"s{workshop.namespace}"
    columns = {"id": "long"}
    source, target = workshop.declare_table("source", columns), workshop.declare_table("target", columns)

    def declare(limit: int) -> None:
        python = f"def transform(records):\n    return records.limit({limit})\n"
        workshop.declare_stream(name, python=python, inputs=reading(source), outputs=writing(target))

    declare(3)
    for start in (0, 2):
        workshop.append("source", [{"id": start}, {"id": start + 1}])
        workshop.run(name)
    workshop.forget_last_commit(name)
    workshop.append("source", [{"id": 4}])
    workshop.run(name)  # the batch runs again and moves the state again

    assert len(workshop.rows("target")) == 3
    declare(4)
    with pytest.raises(CheckpointError, match="meaning of the state was `GlobalLimit 3` and is now `GlobalLimit 4`"):
        workshop.run(name)


JOINED = """
    SELECT a.id, {left} AS l, {right} AS r FROM lefts a JOIN rights b
    ON a.id = b.id AND b.at BETWEEN a.at AND a.at + INTERVAL {hours} HOUR
"""


@pytest.mark.full  # every run has the rule (`test_compatibility.py`)
def test_a_join_is_bound_to_its_condition_and_to_the_columns_that_it_keeps(workshop: Workshop) -> None:
    name = f"s{workshop.namespace}"
    columns = {"id": "long", "at": "timestamptz", "word": "string", "other": "string"}
    for table in ("lefts", "rights"):
        workshop.declare_table(table, columns)
    workshop.declare_table("joined", {"id": "long", "l": "string", "r": "string"})
    inputs = {
        table: {
            "stream": {"iceberg": {"table": workshop.table_name(table)}},
            "watermark": {"column": "at", "delay": "1 hour"},
        }
        for table in ("lefts", "rights")
    }

    def declare(left: str, right: str, *, hours: int = 1) -> None:
        outputs = {"joined": {"iceberg": {"table": workshop.table_name("joined")}}}
        sql = JOINED.format(left=left, right=right, hours=hours)
        workshop.declare_stream(name, sql=sql, inputs=inputs, outputs=outputs)

    declare("a.word", "b.word")
    noon = datetime(2026, 1, 1, 12, tzinfo=UTC)
    workshop.append("lefts", [{"id": 1, "at": noon, "word": "left", "other": "not kept"}])
    workshop.run(name)
    workshop.declare_table("lefts", columns | {"more": "string"})  # nothing uses it, so the join does not keep it
    workshop.append("rights", [{"id": 1, "at": noon, "word": "right", "other": "x"}])
    workshop.run(name)
    assert workshop.rows("joined") == [{"id": 1, "l": "left", "r": "right"}]

    declare("a.other", "b.word")
    with pytest.raises(CheckpointError, match=r"meaning of the state was .*word string.* and is now .*other string"):
        workshop.run(name)
    declare("a.word", "b.word", hours=2)
    with pytest.raises(CheckpointError, match=r"meaning of the state was `Join Inner .*'01'.* and is now .*'02'"):
        workshop.run(name)
