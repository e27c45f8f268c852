"""Holds a batch with which a stream rejects more rows than it may, before anything of the batch is visible.

What is counted, and why: decision 0096.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.declarations.supervision_declaration import RejectionLimit
from sluice.ledger.batch_findings import MAX_REJECTED, RuleCount, RuleResult, separated_rows
from sluice.ledger.batches import BatchObservation, PublicationKey, recorded_among
from sluice.ledger.connection import Ledger
from sluice.ledger.held_batches import rejected_within
from sluice_spark.query.rejected_records import rows_read

_MOST_UNKNOWN = 100
"""Of how many batches without rejected rows it is not asked yet whether the ledger has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """The rows of a batch that the ledger may not have yet."""

    rejected: int
    read: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectionHold:
    """The limit of a stream that holds batches beyond it.

    query_name: of the query whose inputs count their rows. quarantine: the table of the rejected rows.
    """

    spark: SparkSession
    query_name: str
    ledger: Ledger
    limit: RejectionLimit
    quarantine: str
    _own: dict[PublicationKey, _Rows] = field(default_factory=dict)

    def take_up(self, batches: Iterable[BatchObservation]) -> None:
        """Count the batches that earlier runs have staged, until the ledger has them."""
        self._own.update(
            {
                one.key: _Rows(rejected=one.refused_rows - separated_rows(one.rule_results), read=one.input_rows)
                for one in batches
            }
        )

    def judge(self, key: PublicationKey, *, rejected: int, written: int) -> RuleResult | None:
        """What holds a batch that was just computed; none where it stays within the limit, or rejects nothing.

        Parameters
        ----------
        rejected: its rejected rows. written: those of its outputs; they count where what was read is not counted.

        Raises
        ------
        LedgerError: when the ledger does not say what was rejected before: the run ends, and the batch comes again.
        """
        own = rows_read(self.spark, self.query_name)
        self._own[key] = _Rows(rejected=rejected, read=rejected + written if own is None else own)
        if not rejected and len(self._own) <= _MOST_UNKNOWN:
            return None
        self._forget_recorded(key)
        if not rejected:
            return None
        before = rejected_within(self.ledger, {key.stream: self.limit.window})[key.stream]
        read = before.read + sum(one.read for one in self._own.values())
        total = before.rows + sum(one.rejected for one in self._own.values())
        if not self.limit.is_exceeded(rejected=total, read=read):
            return None
        found = RuleCount(
            counted=read,
            failed=total,
            on_failure="hold",
            is_broken=True,
            observed=f"since {before.since:%Y-%m-%d %H:%M} UTC",
        )
        return RuleResult(
            stream=key.stream,
            generation=key.generation,
            batch=key.batch,
            output=QUARANTINE_OUTPUT,
            table=self.quarantine,
            rows=rejected,
            rules={MAX_REJECTED: found},
        )

    def _forget_recorded(self, judged: PublicationKey) -> None:
        """Leave out what the ledger has. Asked before the ledger's sums: a batch that is recorded in between counts
        twice then, and never not at all."""
        numbers = [key.batch for key in self._own if key.generation == judged.generation and key != judged]
        if not numbers:
            return
        recorded = recorded_among(self.ledger, judged.stream, generation=judged.generation, batches=numbers)
        for key in [key for key in self._own if key != judged and key.batch in recorded]:
            del self._own[key]
