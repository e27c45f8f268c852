"""A masked column must exist where the columns are known: a misspelt one would mask nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder

STREAM = """\
stream: typed_people
description: typed people
owner: shop
mode: continuous
trigger: {processing_time: 2 seconds}
inputs:
  people:
    stream:
      kafka:
        connection: events
        topics: [people]
        value:
          format: json
          columns:
            - {name: id, type: long}
            - {name: word, type: string}
            - {name: address, type: "struct<street: string, rooms: list<struct<number: int>>>"}
            - {name: notes, type: "map<string, struct<by: string>>"}
transformation: {sql: people.sql}
outputs:
  main:
    iceberg: {table: bronze.people}
quarantine: true
"""
TABLE = """\
table: bronze.people
description: people
owner: shop
columns: [{name: id, type: long}, {name: email, type: string}]
"""


def problems(folder: Folder, masked: str, *, stream: str = STREAM) -> list[str]:
    """What is wrong with a stream that masks some columns, without file, line and key."""
    folder.write("people.sql", "select id from people\n")
    folder.write("people.py", "def typed(people):\n    return people\n")
    folder.write("bronze.people.table.yaml", TABLE)
    folder.write("silver.people.table.yaml", TABLE.replace("bronze", "silver"))
    folder.write("typed_people.stream.yaml", f"{stream}masked_columns: [{masked}]\n")
    return [problem.split("`: ", 1)[-1] for problem in folder.problems()]


@pytest.mark.parametrize(
    "path",
    [
        "id",
        "address",
        "address.street",
        "address.rooms",
        "address.rooms.number",
        "notes.any",
        "notes.any.by",
        "word.x.y",
    ],
)
def test_a_column_or_a_field_of_one_is_masked(folder: Folder, path: str) -> None:
    assert problems(folder, path) == []


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("adress", "no input has a column adress; there are id, word, address, notes. Did you mean `address`?"),
        ("ID", "no input has a column ID; there are id, word, address, notes."),
        ("address.stret", "the field address has no field stret; it has street, rooms. Did you mean `street`?"),
        ("address.rooms.x", "the field address.rooms has no field x; it has number."),
        ("address.rooms.number.x", "address.rooms.number has no fields, so that it is masked by its own name alone."),
        ("notes.any.to", "the field notes.any has no field to; it has by."),
        ("id.x", "id has no fields, so that it is masked by its own name alone."),
    ],
)
def test_one_that_no_record_can_have_is_refused_with_those_that_there_are(
    folder: Folder, path: str, problem: str
) -> None:
    assert problems(folder, path) == [problem]


def test_the_sentence_names_file_and_line(folder: Folder) -> None:
    problems(folder, "id, adress")

    (problem,) = folder.problems()
    assert problem.startswith("typed_people.stream.yaml:24: `masked_columns[1]`: no input has a column adress")


HEAD, TAIL = STREAM.split("      kafka:")[0], STREAM[STREAM.index("transformation") :]
PYTHON = TAIL.replace("{sql: people.sql}", "{python: people.py:typed}")
FEED = "{table: bronze.people, mode: merge, keys: [id], ordering_column: id, operation_column: operation}"
OF_CHANGES = TAIL.replace("{table: bronze.people}", FEED)
FROM_TABLE = f"{HEAD}      iceberg: {{table: silver.people}}\n"


@pytest.mark.parametrize(
    ("stream", "is_known"),
    [
        (STREAM.replace(TAIL, PYTHON), True),
        (f"{HEAD}      kafka: {{connection: events, topics: [people]}}\n{PYTHON}", False),
        (f"{FROM_TABLE}{OF_CHANGES}", True),
        (f"{FROM_TABLE}{PYTHON}", False),
    ],
    ids=["decoded, then Python", "bytes", "a table, by a query", "a table, by Python"],
)
def test_what_is_not_declared_can_have_any_name(folder: Folder, stream: str, is_known: bool) -> None:
    said = problems(folder, "made_up", stream=stream)

    assert any("made_up" in one for one in said) == is_known, said


def test_of_a_change_feed_the_whole_row_can_be_masked(folder: Folder) -> None:
    stream = STREAM.replace(TAIL, OF_CHANGES)

    assert problems(folder, "email, operation, address.street", stream=stream) == []
    assert "there are id, word, address, notes, email, operation." in problems(folder, "else_", stream=stream)[0]
