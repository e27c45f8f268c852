"""Source offsets as text that is the same whenever they are the same: what the chain of batches is checked by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def canonical_offsets(offsets: Mapping[str, Any]) -> str:
    """The offsets of all inputs as one JSON text.

    Parameters
    ----------
    offsets: by input name, as the sources write them: JSON text (`{"topic":{"0":5}}`), a value, or none before
        the first batch. JSON text is read, so that the order of its keys and its spaces do not matter.
    """
    plain = {name: _read(value) for name, value in offsets.items()}
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def offsets_digest(canonical: str) -> str:
    """A short text that stands for canonical offsets in a mark, where a property must stay small."""
    return hashlib.sha256(canonical.encode()).hexdigest()


def _read(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:  # the offset of a source that does not write JSON
        return value
