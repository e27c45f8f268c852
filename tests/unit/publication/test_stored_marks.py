"""What can stand in the table property of a mark."""

from __future__ import annotations

import json

import pytest

from sluice.errors import MarkError
from sluice.publication.marks import parse_mark

FIRST = {"generation": 1, "batch": -1, "token": 0, "snapshot-id": 7, "sequence-number": 1}
"""The lowest that there is: nothing is published yet."""


def test_a_mark_is_read_as_it_was_stored() -> None:
    found = parse_mark(json.dumps(FIRST), name="sluice.mark.s.main", table="a.b")

    assert (found.position, found.token, found.end_offsets_digest) == ((1, -1), 0, None)
    assert json.loads(found.text()) == FIRST | {"end-offsets-digest": None}


@pytest.mark.parametrize("wrong", [{"generation": 0}, {"batch": -2}, {"token": -1}, {"snapshot-id": None}], ids=str)
def test_what_is_no_mark_is_refused(wrong: dict[str, int | None]) -> None:
    with pytest.raises(MarkError, match=r"sluice\.mark\.s\.main of a\.b is not a mark"):
        parse_mark(json.dumps(FIRST | wrong), name="sluice.mark.s.main", table="a.b")
