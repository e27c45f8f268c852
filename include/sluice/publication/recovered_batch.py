"""The record of a batch whose driver died before it wrote one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sluice.declarations.stream_declaration import QUARANTINE_OUTPUT
from sluice.ledger.batches import BatchObservation
from sluice.publication.staged_batch import StagedBatch


def recovered_observation(batch: Mapping[str, StagedBatch]) -> BatchObservation:
    """What the snapshots of a batch hold of it.

    Parameters
    ----------
    batch: its staged snapshots, by output.
    """
    summaries = [staged.summary for staged in batch.values()]
    rows = {summary.output: summary.rows or 0 for summary in summaries}
    return BatchObservation(
        key=summaries[0].key,
        run_id=summaries[0].run_id,
        started_at=min(staged.staged_at for staged in batch.values()),
        duration_ms=0,
        input_rows=sum(rows.values()),
        published_rows={output: count for output, count in rows.items() if output != QUARANTINE_OUTPUT},
        refused_rows=rows.get(QUARANTINE_OUTPUT, 0),
        late_rows=0,
        duplicate_rows=0,
        watermark=summaries[0].watermark,
        start_offsets=_by_input(summaries[0].start_offsets),
        end_offsets=_by_input(summaries[0].end_offsets),
        snapshot_ids={},
        durations_ms={},
    )


def _by_input(offsets: str) -> dict[str, Any]:
    """The offsets by input. Spark's log repeats those of a source for each place where the plan reads it, under a name
    that no input has; its report of a batch, from which all other records come, has them once.
    """
    return {name: value for name, value in json.loads(offsets).items() if " " not in name}
