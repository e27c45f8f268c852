"""Evidence of an event in the form in which it is stored: bounded, and without secrets. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_jsonable_python

from sluice.ledger.storable_text import storable_text
from sluice.messages.redaction import HIDDEN, SECRET_NAME, redacted

LONGEST_TEXT = 1_000
"""Characters of one text. A sentence for a person is shorter; what is longer is the output of a library."""

MOST_ITEMS = 50
"""Entries of one mapping or list: as many partitions as a person reads. What is left out is counted."""

LARGEST_EVIDENCE_BYTES = 8_192
"""The size of the evidence of one event as JSON. A year of a busy stream (an event a minute) stays below 5 GB even if
every event is that large; typical ones have 200 bytes."""


def stored_evidence(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """The evidence as it is stored. Facts that do not fit are dropped from the end, and counted as `left_out`."""
    bounded: dict[str, Any] = _bounded(to_jsonable_python(dict(evidence), inf_nan_mode="null", fallback=str))
    kept = dict(bounded)
    while len(json.dumps(kept).encode()) > LARGEST_EVIDENCE_BYTES:
        facts = [name for name in kept if name != "left_out"]
        kept.pop(facts[-1])
        kept["left_out"] = len(bounded) - len(facts) + 1
    return kept


def stored_text(text: str) -> str:
    """A text without the secrets that it may repeat, cut to `LONGEST_TEXT` characters."""
    clean = redacted(storable_text(text))
    return clean if len(clean) <= LONGEST_TEXT else clean[: LONGEST_TEXT - 1] + "…"


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        return stored_text(value)
    if isinstance(value, Mapping):
        kept = {
            stored_text(name): HIDDEN if _is_secret(name, one) else _bounded(one)
            for name, one in list(value.items())[:MOST_ITEMS]
        }
        return kept | ({"left_out": len(value) - MOST_ITEMS} if len(value) > MOST_ITEMS else {})
    if isinstance(value, Sequence):
        left_out = [f"… and {len(value) - MOST_ITEMS} more"] if len(value) > MOST_ITEMS else []
        return [*(_bounded(one) for one in value[:MOST_ITEMS]), *left_out]
    return value


def _is_secret(name: str, value: Any) -> bool:
    """Whether a fact is secret by its name. The token of a lease is a number, and evidence."""
    return SECRET_NAME.search(name) is not None and not isinstance(value, int)
