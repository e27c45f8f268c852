"""Decides how a state that is several batches behind the tables is taken up to them. Pure.

Each batch behind it is run again to exactly the end that it had, by the run that starts next, which publishes nothing
of them (`sluice_spark.run.state_replay`). So each has to be known, and to read again what it has read.

Known limitation: of state that counts in processing time, a batch has the time at which the ledger knows it began.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from sluice.checkpoints.checkpoint_layout import (
    METADATA,
    OFFSETS,
    REPLAY,
    batch_metadata,
    entry_of,
    metadata_of,
    offsets_of,
)
from sluice.positions.log_offsets import canonical_end, source_lines
from sluice.positions.repair_decision import CheckpointRepair, decide_repair
from sluice.positions.stream_position import KnownBatch, StreamPosition


def decide_replay(seen: StreamPosition) -> CheckpointRepair | None:
    """What is written into a checkpoint that stands more than one batch behind the tables; none where a batch is not
    known, or may read something else now.

    Parameters
    ----------
    seen: with a checkpoint whose state is whole at its newest commit.
    """
    stands, done = seen.committed, seen.done
    if done is None or not 0 <= stands < done - 1 or seen.newest_visible > done or _reads_otherwise(seen):
        return None
    behind = [known for number in range(stands + 1, done + 1) if (known := seen.batches.get(number)) is not None]
    if len(behind) < done - stands or not _has_planned(seen, behind[0]):
        return None
    at_state = decide_repair(seen.as_behind(stands))
    entries = dict(_entries(seen, behind))
    if not isinstance(at_state, CheckpointRepair) or at_state.stands_at != stands or len(entries) < len(behind):
        return None
    logs = {path: text for path, text in at_state.writes.items() if path != METADATA}
    newest = max(done, seen.newest_taken_back)
    read = [seen.batches.get(number) for number in range(stands + 1, newest + 1)]
    rows = [None if known is None else known.rows for known in read]
    return replace(
        at_state,
        replays=tuple(known.number for known in behind),
        writes={**logs, **entries},
        reads_from=behind[0].starts or (seen.batches[stands].ends if stands in seen.batches else None),
        reads_until=seen.end_of(newest),
        rows_read_again=None if None in rows else sum(one or 0 for one in rows),
    )


def _reads_otherwise(seen: StreamPosition) -> bool:
    return bool(seen.own_memory) or seen.has_static_inputs or seen.has_other_outputs


def _has_planned(seen: StreamPosition, first: KnownBatch) -> bool:
    """Whether the checkpoint has planned the first of the batches as it was, or not at all."""
    text = seen.contents.texts.get(f"{OFFSETS}/{first.number}") if seen.contents is not None else None
    return text is None or canonical_end(offsets_of(text), _sources(seen, first.ends)) == first.ends


def _sources(seen: StreamPosition, ends: str) -> tuple[str, ...]:
    return seen.sources or tuple(json.loads(ends))


def _entries(seen: StreamPosition, behind: Sequence[KnownBatch]) -> Iterator[tuple[str, str]]:
    texts = seen.contents.texts if seen.contents is not None else {}
    conf = json.loads(metadata_of(texts[f"{OFFSETS}/{seen.committed}"])).get("conf", {})
    for known in behind:
        lines = source_lines(known.ends, _sources(seen, known.ends))
        if lines is not None and known.planned_at is not None:
            metadata = batch_metadata(conf, planned_at=known.planned_at, watermark=known.watermark)
            yield f"{REPLAY}/{known.number}", entry_of(metadata, lines)
