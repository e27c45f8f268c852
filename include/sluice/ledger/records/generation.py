"""A generation in the ledger: one checkpoint lineage of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationObservation:
    """One checkpoint lineage.

    checkpoint: the URI of the checkpoint folder.
    fingerprint: what of the declaration the checkpoint is bound to; empty before the first start.
    query_id: the id that Spark wrote into the checkpoint; unset before the first start. It never changes.
    opened_by: who left the generation before it behind; empty for the first, which the stream's first run opens.
    """

    stream: str
    generation: int
    checkpoint: str
    opened_at: datetime
    query_id: str | None = None
    opened_by: str = ""
    fingerprint: Mapping[str, str] = field(default_factory=dict, hash=False)
