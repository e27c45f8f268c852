"""Evidence of an event in the form in which it is stored: bounded, and without secrets. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import to_jsonable_python

LONGEST_TEXT = 1_000
"""Characters of one text. A sentence for a person is shorter; what is longer is the output of a library."""

MOST_ITEMS = 50
"""Entries of one mapping or list: as many partitions as a person reads. What is left out is counted."""

LARGEST_EVIDENCE_BYTES = 8_192
"""The size of the evidence of one event as JSON. A year of a busy stream (an event a minute) stays below 5 GB even if
every event is that large; typical ones have 200 bytes."""

HIDDEN = "***"

_SECRET_NAME = re.compile(
    r"secret|passw(or)?d|credential|access[-_.]?key|api[-_.]?key|authorization|signature|jaas", re.I
)
"""Names whose values are never stored. `token` is not among them: the fencing token of a lease is evidence."""

_USER_IN_URL = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^\s/@]+@", re.I)
_SECRET_IN_TEXT = re.compile(
    r"(?P<name>\b[\w.-]*(?:secret|passw(?:or)?d|access[-_.]?key|api[-_.]?key)[\w.-]*\s*[=:]\s*)(?P<value>\"[^\"]*\"|\S+)",
    re.I,
)


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
    storable = text.encode(errors="replace").decode().replace("\x00", "")
    clean = _USER_IN_URL.sub(rf"\g<scheme>{HIDDEN}@", storable)
    clean = _SECRET_IN_TEXT.sub(rf"\g<name>{HIDDEN}", clean)
    return clean if len(clean) <= LONGEST_TEXT else clean[: LONGEST_TEXT - 1] + "…"


def _bounded(value: Any) -> Any:
    if isinstance(value, str):
        return stored_text(value)
    if isinstance(value, Mapping):
        kept = {
            stored_text(name): HIDDEN if _SECRET_NAME.search(name) else _bounded(one)
            for name, one in list(value.items())[:MOST_ITEMS]
        }
        return kept | ({"left_out": len(value) - MOST_ITEMS} if len(value) > MOST_ITEMS else {})
    if isinstance(value, Sequence):
        left_out = [f"… and {len(value) - MOST_ITEMS} more"] if len(value) > MOST_ITEMS else []
        return [*(_bounded(one) for one in value[:MOST_ITEMS]), *left_out]
    return value
