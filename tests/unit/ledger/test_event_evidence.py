"""Evidence as it is stored: bounded, as JSON, and without secrets."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.ledger.events import (
    LARGEST_EVIDENCE_BYTES,
    LONGEST_TEXT,
    MOST_ITEMS,
    EventAction,
    stored_evidence,
    stored_text,
)
from sluice.messages import HIDDEN

_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=40,
)


@given(st.dictionaries(st.text(), _VALUES))
def test_any_evidence_is_bounded_json(evidence: dict[str, Any]) -> None:
    stored = stored_evidence(evidence)

    assert len(json.dumps(stored).encode()) <= LARGEST_EVIDENCE_BYTES
    assert "\\u0000" not in json.dumps(stored), "PostgreSQL refuses it"


def test_facts_that_do_not_fit_are_counted() -> None:
    long = {f"fact_{number:02}": "x" * 900 for number in range(20)}

    stored = stored_evidence(long)

    assert stored["left_out"] == 20 - (len(stored) - 1)
    assert next(iter(stored)) == "fact_00"


def test_long_texts_mappings_and_lists_are_cut() -> None:
    stored = stored_evidence(
        {"text": "x" * 5_000, "list": list(range(60)), "map": {str(number): number for number in range(60)}}
    )

    assert len(stored["text"]) == LONGEST_TEXT
    assert stored["list"][-1] == "… and 10 more"
    assert (len(stored["map"]), stored["map"]["left_out"]) == (MOST_ITEMS + 1, 10)


def test_values_become_plain_json() -> None:
    at = datetime(2026, 1, 31, 8, tzinfo=UTC)

    assert stored_evidence(
        {"at": at, "action": EventAction.LAUNCH, "path": Path("/a"), "not a number": float("nan")}
    ) == {
        "at": "2026-01-31T08:00:00Z",
        "action": "launch",
        "path": "/a",
        "not a number": None,
    }


@pytest.mark.parametrize(
    "name", ["password", "aws_secret_access_key", "sasl.jaas.config", "Authorization", "api-key", "session_token"]
)
def test_the_value_of_a_secret_is_hidden_at_any_depth(name: str) -> None:
    assert stored_evidence({"options": [{name: "hunter2"}]}) == {"options": [{name: HIDDEN}]}


def test_the_token_of_a_lease_is_evidence() -> None:
    assert stored_evidence({"token": 7}) == {"token": 7}


@pytest.mark.parametrize(
    ("text", "stored"),
    [
        (
            "postgresql+psycopg://ann:hunter2@db:5432/ledger does not answer",
            f"postgresql+psycopg://ann:{HIDDEN}@db:5432/ledger does not answer",
        ),
        ("refused: password=hunter2, user=ann", f"refused: password={HIDDEN}, user=ann"),
        ('fs.s3a.secret.key: "a b" is wrong', f"fs.s3a.secret.key: {HIDDEN} is wrong"),
        ("sent Authorization: Bearer eyJhbGciOi.eyJzdWIiOi", f"sent Authorization: {HIDDEN} {HIDDEN}"),
        ("line\x00end", "line\\x00end"),
    ],
)
def test_secrets_in_a_text_are_hidden(text: str, stored: str) -> None:
    assert stored_text(text) == stored
