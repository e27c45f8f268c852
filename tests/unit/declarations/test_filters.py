"""The conditions that a table declares are each one condition, and declared once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.unit.declarations.conftest import Folder

TABLE = """\
table: gold.places
description: Places, each once.
owner: me
columns:
  - {name: id, type: long}
filters: %s
"""


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ("[]", ""),
        ('[id = 5, "id > 5 and id < 9"]', ""),
        ("[id = 5, id = 5]", "filters[1]`: this condition is declared twice"),
        ('["id = 5; drop"]', "filters[0]`: the condition holds more than one statement"),
        ('["id = (5"]', ""),
        ('[""]', "filters[0]`"),
    ],
)
def test_conditions_of_a_table(valid: Folder, declared: str, sentence: str) -> None:
    valid.write("gold.places.table.yaml", TABLE % declared)

    found = [problem.partition("yaml:")[2] for problem in valid.problems()]

    assert len(found) == bool(sentence)
    assert all(sentence in one for one in found)
