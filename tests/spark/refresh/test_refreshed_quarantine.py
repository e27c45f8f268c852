"""A refresh of a stream that rejects rows: its quarantine is replaced with its table, each record once.

Every test run replaces a table (`test_refreshes.py`) and rejects rows (`test_row_rules.py`); both together are here.
"""

from __future__ import annotations

import pytest
from pyiceberg.expressions import EqualTo
from tests.fixtures.refreshes import at_step, refresh, rows_by_duckdb, shadow_tables, take_it_back
from tests.fixtures.replays import discard
from tests.fixtures.stack import Stack
from tests.fixtures.work import applications_of, ask_for, await_killed, start, waited_for
from tests.fixtures.workshop import Workshop

from sluice.ledger.batches import totals
from sluice.ledger.refreshes import RefreshState, newest_refresh
from sluice.ledger.runs import newest_run
from sluice.publication.command_runs import end_if_vacated
from sluice.publication.crash_points import CrashPoint
from sluice.work.requests import RefreshTable

COLUMNS = {"id": "long", "word": "string"}
DIVIDING = """
    from pyspark.sql import functions as fn

    def transform(rows):
        rejected = rows.where("id < {limit}")
        return {{
            "main": rows.where("id >= {limit}"),
            "quarantine": rejected.select(
                fn.lit("id below {limit}").alias("reason"),
                fn.to_json(fn.struct("id")).alias("position"),
                fn.col("word").alias("payload"),
            ),
        }}
"""
ROWS = [{"id": number, "word": f"w{number}"} for number in (-7, 1, 2, 3)]


@pytest.fixture
def dividing(workshop: Workshop) -> Workshop:
    """A stream that has rejected a row too many in its first batch, and whose code is right now."""
    for table in ("source", "target"):
        workshop.declare_table(table, COLUMNS)
    declare(workshop, limit=2)
    workshop.append("source", ROWS)
    workshop.run_supervised(name_in(workshop))
    assert (ids(workshop), rejected(workshop)) == ([2, 3], ['{"id":-7}', '{"id":1}'])
    declare(workshop, limit=0)
    return workshop


def name_in(workshop: Workshop) -> str:
    """The stream of the test."""
    return f"s{workshop.namespace}"


def declare(workshop: Workshop, *, limit: int, quarantine: bool = True) -> None:
    """Declare the stream, which rejects what is below a limit."""
    source = {"table": workshop.table_name("source"), "on_overwrite": "skip"}
    workshop.declare_stream(
        name_in(workshop),
        python=DIVIDING.format(limit=limit),
        inputs={"rows": {"stream": {"iceberg": source}}},
        outputs={"main": {"iceberg": {"table": workshop.table_name("target")}}},
        quarantine=quarantine,
    )


def ids(workshop: Workshop) -> list[int]:
    """What the target holds."""
    return [int(row["id"]) for row in workshop.rows("target")]


def rejected(workshop: Workshop) -> list[str]:
    """The positions of what the quarantine holds."""
    return sorted(str(row["position"]) for row in workshop.rows(f"quarantine.{name_in(workshop)}"))


def resolutions(workshop: Workshop) -> dict[str, str | None]:
    """How each record of the quarantine was resolved."""
    return {str(row["position"]): row["resolution"] for row in workshop.rows(f"quarantine.{name_in(workshop)}")}


def appended(workshop: Workshop, *numbers: int) -> None:
    """Rows come, and the stream reads them."""
    workshop.append("source", [{"id": number, "word": "new"} for number in numbers])
    workshop.run_supervised(name_in(workshop))


@pytest.mark.full
def test_the_quarantine_holds_what_the_corrected_code_rejects(dividing: Workshop) -> None:
    name = name_in(dividing)

    refresh(dividing, name)

    assert (ids(dividing), rejected(dividing)) == ([1, 2, 3], ['{"id":-7}'])
    (record,) = dividing.rows(f"quarantine.{name}")
    assert (record["stream"], record["generation"], record["reason"]) == (name, 2, "id below 0")
    assert shadow_tables(dividing, name) == []
    assert (totals(dividing.ledger, name).input_rows, totals(dividing.ledger, name).refused_rows) == (8, 2 + 1)
    appended(dividing, -8, 4)
    assert (ids(dividing), rejected(dividing)) == ([1, 2, 3, 4], ['{"id":-7}', '{"id":-8}'])


@pytest.mark.full  # every run takes a table back (`test_refreshes.py`)
def test_the_quarantine_returns_with_the_table(dividing: Workshop) -> None:
    name = name_in(dividing)
    refresh(dividing, name)
    appended(dividing, -8, 4)

    take_it_back(dividing, name)

    assert (ids(dividing), rejected(dividing)) == ([2, 3], ['{"id":-7}', '{"id":1}'])
    dividing.run_supervised(name)
    assert (ids(dividing), rejected(dividing)) == ([2, 3, 4], ['{"id":-7}', '{"id":-8}', '{"id":1}'])


@pytest.mark.full
def test_what_a_refresh_has_exchanged_returns_whatever_is_declared_since(dividing: Workshop) -> None:
    name = name_in(dividing)
    refresh(dividing, name)
    declare(dividing, limit=0, quarantine=False)

    take_it_back(dividing, name)

    assert (ids(dividing), rejected(dividing)) == ([2, 3], ['{"id":-7}', '{"id":1}'])


@pytest.mark.full
def test_what_a_person_has_discarded_stays_so_after_a_refresh_and_after_its_way_back(dividing: Workshop) -> None:
    name = name_in(dividing)
    discard(dividing, '{"id":-7}')

    refresh(dividing, name)
    assert resolutions(dividing) == {'{"id":-7}': "discarded"}
    appended(dividing, -8)
    discard(dividing, '{"id":-8}')
    take_it_back(dividing, name)

    assert resolutions(dividing) == {'{"id":-7}': "discarded", '{"id":1}': None}


@pytest.mark.drill
def test_a_refresh_that_was_killed_between_its_two_tables_is_completed(dividing: Workshop, services: Stack) -> None:
    name = name_in(dividing)
    request = RefreshTable(stream=name, keep_days="7")
    item = ask_for(dividing, request)
    dies_at = (CrashPoint.FIRST_OUTPUT_PUBLISHED, 1)
    with waited_for(dividing, [item]), applications_of(dividing, services.environment(), dies_at=dies_at) as launcher:
        await_killed(dividing, start(dividing, item, request, launcher))
    assert (rows_by_duckdb(dividing), rejected(dividing)) == (ROWS[1:], ['{"id":-7}', '{"id":1}'])

    assert refresh(dividing, name).state is RefreshState.SWAPPED

    assert (rows_by_duckdb(dividing), rejected(dividing)) == (ROWS[1:], ['{"id":-7}'])
    left = newest_run(dividing.ledger, name)
    if left is not None and left.is_live:  # as a supervisor does
        assert end_if_vacated(dividing.ledger, left, launched_by="a test")
    appended(dividing, -8, 4)
    assert (ids(dividing), rejected(dividing)) == ([1, 2, 3, 4], ['{"id":-7}', '{"id":-8}'])


@pytest.mark.full
def test_a_refresh_that_ended_between_its_two_tables_is_completed_by_the_next_run(dividing: Workshop) -> None:
    name = name_in(dividing)
    dividing.table("source").delete(EqualTo(term="id", value=3))  # the shadow begins with a scan, planned as one batch

    def fail() -> None:
        raise OSError("it fails here")

    with pytest.raises(OSError, match="fails here"):
        refresh(dividing, name, reached=at_step(CrashPoint.FIRST_OUTPUT_PUBLISHED, fail))
    assert (ids(dividing), rejected(dividing)) == ([1, 2], ['{"id":-7}', '{"id":1}'])

    appended(dividing, -8, 4)

    assert (ids(dividing), rejected(dividing)) == ([1, 2, 4], ['{"id":-7}', '{"id":-8}'])
    newest = newest_refresh(dividing.ledger, name)
    assert newest is not None
    assert newest.state is RefreshState.SWAPPED
    with pytest.raises(OSError, match="fails here"):
        take_it_back(dividing, name, reached=at_step(CrashPoint.FIRST_OUTPUT_PUBLISHED, fail))
    assert (ids(dividing), rejected(dividing)) == ([2, 3], ['{"id":-7}', '{"id":-8}'])
    assert take_it_back(dividing, name).state is RefreshState.TAKEN_BACK
    assert rejected(dividing) == ['{"id":-7}', '{"id":1}']
