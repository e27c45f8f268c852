"""What a batch says of itself in the summary of its snapshots: the staged one and the one that publishes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from sluice.errors import DeliveryError
from sluice.ledger.records.batch import PUBLICATION_KEY, PublicationKey

OUTPUT = "sluice.output"
RUN_ID = "sluice.run-id"
TOKEN = "sluice.token"  # noqa: S105  # the fencing token: a number that everybody may know
START_OFFSETS = "sluice.start-offsets"
END_OFFSETS = "sluice.end-offsets"
WATERMARK = "sluice.watermark"
ROWS = "sluice.rows"
FIRST_BATCH = "sluice.first-batch"
"""In a publication of several batches: the number of the first; the key names the last."""

_ICEBERG_ADDED_ROWS = "added-records"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSummary:
    """A batch of one output, as its snapshots tell it.

    token: the fencing token of the run that wrote it.
    start_offsets, end_offsets: from `canonical_offsets`.
    watermark: the event-time watermark of the batch; none without one.
    rows: rows of this output; none when the writer did not know, then Iceberg's own count is taken on reading.
    """

    key: PublicationKey
    output: str
    run_id: str
    token: int
    start_offsets: str
    end_offsets: str
    watermark: datetime | None = None
    rows: int | None = None

    def properties(self) -> dict[str, str]:
        """The entries of a snapshot's summary."""
        entries = {
            PUBLICATION_KEY: str(self.key),
            OUTPUT: self.output,
            RUN_ID: self.run_id,
            TOKEN: str(self.token),
            START_OFFSETS: self.start_offsets,
            END_OFFSETS: self.end_offsets,
            WATERMARK: self.watermark.isoformat() if self.watermark is not None else None,
            ROWS: str(self.rows) if self.rows is not None else None,
        }
        return {name: value for name, value in entries.items() if value is not None}


def read_summary(entries: Mapping[str, str]) -> BatchSummary | None:
    """The batch that a snapshot's summary tells of; none when it is not a snapshot of a stream's live batch.

    Raises
    ------
    DeliveryError: when the summary has a publication key and lacks what belongs to it.
    """
    key = read_key(entries.get(PUBLICATION_KEY))
    if key is None or TOKEN not in entries:  # another's snapshot, or one that was not staged
        return None
    try:
        watermark = entries.get(WATERMARK)
        return BatchSummary(
            key=key,
            output=entries[OUTPUT],
            run_id=entries[RUN_ID],
            token=int(entries[TOKEN]),
            start_offsets=entries[START_OFFSETS],
            end_offsets=entries[END_OFFSETS],
            watermark=datetime.fromisoformat(watermark) if watermark else None,
            rows=int(entries.get(ROWS) or entries.get(_ICEBERG_ADDED_ROWS) or 0),
        )
    except (KeyError, ValueError) as error:
        raise DeliveryError(f"The snapshot of batch {key} has a summary that cannot be read: {error!r}.") from error


def read_key(text: str | None) -> PublicationKey | None:
    """The key of a live batch, `<stream>:<generation>:<batch>`; none for anything else, for example a backfill's."""
    parts = text.split(":") if text is not None else []
    if len(parts) != 3 or not all(_is_whole_number(part) for part in parts[1:]):
        return None
    return PublicationKey(stream=parts[0], generation=int(parts[1]), batch=int(parts[2]))


def _is_whole_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def publication_summary(batches: Sequence[BatchSummary]) -> dict[str, str]:
    """The summary of the snapshot that publishes batches: the last one's, over the offsets and rows of all of them.

    Parameters
    ----------
    batches: in order, at least one.
    """
    first, last = batches[0], batches[-1]
    entries = last.properties() | {START_OFFSETS: first.start_offsets}
    entries[ROWS] = str(sum(batch.rows or 0 for batch in batches))
    if len(batches) > 1:
        entries[FIRST_BATCH] = str(first.key.batch)
    return entries
