"""Holds a batch with which a stream rejects more rows than it may, before anything of the batch is visible.

What is counted, and why: decision 0096.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import SparkSession

from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.declarations.supervision_declaration import RejectionLimit
from sluice.ledger.batch_rules import MAX_REJECTED, RuleCount, RuleResult
from sluice.ledger.batches import PublicationKey
from sluice.ledger.connection import Ledger
from sluice.ledger.recent_rejections import rejected_within
from sluice_spark.query.rejected_records import rows_read


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

    def judge(self, key: PublicationKey, *, rejected: int, written: int) -> RuleResult | None:
        """What holds a batch that was just computed; none where it stays within the limit, or rejects nothing.

        Parameters
        ----------
        rejected: its rejected rows. written: those of its outputs; they count where what was read is not counted.

        Raises
        ------
        LedgerError: when the ledger does not say what was rejected before: the run ends, and the batch comes again.
        """
        if not rejected:
            return None
        before = rejected_within(self.ledger, {key.stream: self.limit.window})[key.stream]
        own = rows_read(self.spark, self.query_name)
        read = before.read + (rejected + written if own is None else own)
        total = before.rows + rejected
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
