"""How far the checkpoint of a stream goes, as far as publication compares it with marks and staged batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sluice.ledger.batches import PublicationKey
from sluice.publication.staged_batch import BatchSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPosition:
    """The batches of a generation that its checkpoint has planned and committed.

    newest_planned, newest_committed: -1 when there is none.
    end_offsets: from `canonical_offsets`, by the number of the batch; Spark keeps those of the newest batches only.
    """

    generation: int
    newest_planned: int
    newest_committed: int
    end_offsets: Mapping[int, str] = field(default_factory=dict, hash=False)

    def has_committed(self, key: PublicationKey) -> bool:
        """Whether the checkpoint has committed a batch of its generation, so that Spark does not run it again."""
        return key.batch <= self.newest_committed

    def has_planned(self, batch: BatchSummary) -> bool:
        """Whether this checkpoint has planned a batch with these end offsets. A batch whose offsets Spark no longer
        keeps was planned long ago, so that its number decides. Batches of other generations have other checkpoints.
        """
        key = batch.key
        if key.generation != self.generation:
            return True
        same_end = self.end_offsets.get(key.batch, batch.end_offsets) == batch.end_offsets
        return key.batch <= self.newest_planned and same_end
