"""What a stream that reads a refreshed table gets: each new row once, whenever the refresh comes.

Every test run takes a refresh back (`test_refreshes.py`), and knows on real tables what readers would get a second time
(`test_repeated_rows.py`).
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.fixtures.refreshes import ROWS, refresh, right, run_wrong_copy, take_it_back, wrong
from tests.fixtures.workshop import Workshop

from sluice.errors import UnpublishableError

COPY = "SELECT id, word FROM rows"
READ = {"id": 801, "word": "read"}
UNREAD = {"id": 802, "word": "unread"}


def declare_reader(workshop: Workshop) -> str:
    """A stream that copies what is appended to the target."""
    name = f"r{workshop.namespace}"
    workshop.declare_table("gold", {"id": "long", "word": "string"})
    source = {"table": workshop.table_name("target"), "on_overwrite": "skip"}
    workshop.declare_stream(
        name,
        sql=COPY,
        inputs={"rows": {"stream": {"iceberg": source}}},
        outputs={"main": {"iceberg": {"table": workshop.table_name("gold")}}},
    )
    return name


def new_rows(workshop: Workshop, table: str) -> list[int]:
    """The ids of the rows that came after the first ones."""
    return [int(row["id"]) for row in workshop.rows(table) if int(row["id"]) > len(ROWS)]


def appended(workshop: Workshop, name: str, row: dict[str, Any]) -> None:
    """A row comes, and the stream reads it."""
    workshop.append("source", [row])
    workshop.run_supervised(name)


@pytest.mark.full
def test_rows_that_the_stream_had_not_read_before_the_refresh_come_as_new_afterwards(workshop: Workshop) -> None:
    name, reader = run_wrong_copy(workshop), declare_reader(workshop)
    workshop.run_supervised(reader)
    appended(workshop, name, READ)
    workshop.append("source", [UNREAD])

    refresh(workshop, name)

    assert workshop.rows("target") == right([*ROWS, READ]), "exactly what the stream had read"
    workshop.run_supervised(name)
    workshop.run_supervised(reader)
    assert workshop.rows("target") == right([*ROWS, READ, UNREAD])
    assert (new_rows(workshop, "target"), new_rows(workshop, "gold")) == ([801, 802], [801, 802])


@pytest.mark.full
def test_a_refresh_is_taken_back_under_its_readers_only_with_the_word_of_a_person(workshop: Workshop) -> None:
    name, reader = run_wrong_copy(workshop), declare_reader(workshop)
    workshop.run_supervised(reader)
    refresh(workshop, name)
    appended(workshop, name, READ)
    workshop.run_supervised(reader)
    assert new_rows(workshop, "gold") == [801]

    names = rf"1 rows .* {reader} \(input rows\) gets them a second time"
    with pytest.raises(UnpublishableError, match=names) as refused:
        take_it_back(workshop, name)

    assert "`--allow-repeated`" in (refused.value.next_step or "")
    assert workshop.rows("target") == right([*ROWS, READ])
    take_it_back(workshop, name, allows_repeated=True)
    workshop.run_supervised(name)
    workshop.run_supervised(reader)
    assert workshop.rows("target") == [*wrong(ROWS), *right([READ])]
    assert new_rows(workshop, "gold") == [801, 801], "as the plan said"
