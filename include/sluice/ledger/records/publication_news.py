"""What has become visible in a table since somebody was last told."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sluice.ledger.records.batch import PublicationKey


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationNews:
    """The batches of one stream that became visible in one table since the last announcement.

    newest: the newest of them. batches, rows: how many they are, and how many rows they brought together.
    snapshot_id: of the newest. watermark: of the newest; unset without one.
    """

    table: str
    newest: PublicationKey
    batches: int
    rows: int
    snapshot_id: int
    watermark: datetime | None = None
