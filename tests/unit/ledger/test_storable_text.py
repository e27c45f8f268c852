"""What the ledger makes of text that PostgreSQL refuses."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime

import pytest

from sluice.ledger.stored_values import storable_json, storable_text


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("the key \0\x01 twice", "the key \\x00\x01 twice"),
        ("half a pair: \ud83d", "half a pair: \\ud83d"),
        ("Zürich 🙂", "Zürich 🙂"),
    ],
)
def test_text_that_postgresql_refuses_is_spelled_out(given: str, stored: str) -> None:
    assert storable_text(given) == stored
    assert json.loads(storable_json({given: [{"in": given}]})) == {stored: [{"in": stored}]}


def test_values_that_json_lacks_become_text_or_null() -> None:
    at = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    assert json.loads(storable_json({"at": at, "share": math.nan, "slots": range(2), "n": 2**62})) == {
        "at": "2026-10-25T01:30:00Z",
        "share": None,
        "slots": "range(0, 2)",
        "n": 2**62,
    }
