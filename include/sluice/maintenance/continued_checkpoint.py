"""Writes the checkpoint with which a new generation continues another one: its newest batch, with moved offsets.

The files of the old checkpoint are copied, its state at the version behind that batch included. The offsets of some
sources are moved in the entry of the batch; a batch that reads exactly up to given offsets is planned as the next one,
and Spark runs a planned batch as it is. All other sources stand still in it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sluice.checkpoints.checkpoint_files import CheckpointFiles, copy_files, state_files
from sluice.checkpoints.checkpoint_layout import FileObservation
from sluice.errors import CheckpointError
from sluice.maintenance.reading_position import ReadingPosition

_EMPTY_COMMIT = 'v1\n{"nextBatchWatermarkMs":0}'
"""What Spark writes into the commit log for a batch of a query without event time."""

_WATERMARK, _NEXT_WATERMARK = "batchWatermarkMs", "nextBatchWatermarkMs"
"""The watermark of a batch in the offset log, and the one behind it in the commit log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinuedCheckpoint:
    """The contents of the new checkpoint.

    texts: the files that are written, by path.
    state: the files of the old checkpoint that are copied.
    """

    texts: Mapping[str, str]
    state: tuple[FileObservation, ...]

    @property
    def state_bytes(self) -> int:
        """The size of the copied state."""
        return sum(seen.size_bytes for seen in self.state)


def plan_checkpoint(
    old: CheckpointFiles,
    position: ReadingPosition,
    *,
    starts: Mapping[int, str],
    ends: Mapping[int, str],
) -> ContinuedCheckpoint:
    """The checkpoint that continues behind a batch. Nothing is written.

    Parameters
    ----------
    starts: by line of the batch's entry, the offset at which the next batch starts to read. ends: at which it ends;
        none leaves the next batch to Spark, and otherwise sources without one stand still in it.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    texts = {seen.path: old.read_text(seen.path) for seen in old.list_files("sources")}
    texts["metadata"] = old.read_text("metadata")
    commit = old.read_text(f"commits/{position.batch}") or _EMPTY_COMMIT
    texts |= _before(old, position)
    texts[f"offsets/{position.batch}"] = position.moved_to(starts)
    texts[f"commits/{position.batch}"] = commit
    if ends:
        metadata = next_batch_metadata(position.metadata, commit)
        texts[f"offsets/{position.batch + 1}"] = position.moved_to({**starts, **ends}, metadata=metadata)
    return ContinuedCheckpoint(
        texts={path: text for path, text in texts.items() if text is not None and not path.endswith(".crc")},
        state=state_files(old, version=position.batch + 1),
    )


def _before(old: CheckpointFiles, position: ReadingPosition) -> dict[str, str | None]:
    """The batch before the newest one that is done. Spark reads its entry at each start behind batch 0, and refuses a
    checkpoint without one; it is taken for the start of nothing, so the newest one's will do where it was removed.

    Source: `MicroBatchExecution.populateStartOffsets` of Spark 4.1.
    """
    if position.batch == 0:
        return {}
    before = position.batch - 1
    return {
        f"offsets/{before}": old.read_text(f"offsets/{before}") or position.offsets,
        f"commits/{before}": old.read_text(f"commits/{before}") or _EMPTY_COMMIT,
    }


def write_checkpoint(old: CheckpointFiles, new: CheckpointFiles, content: ContinuedCheckpoint) -> None:
    """Write a planned checkpoint. A second try completes a first one.

    Raises
    ------
    CheckpointError: when the folder has files of another origin, or a storage does not answer.
    """
    own = {*content.texts, *(seen.path for seen in content.state)}
    if foreign := [seen.path for seen in new.list_files() if seen.path not in own]:
        raise CheckpointError(
            f"{new.location}, the folder of the new checkpoint, contains {foreign[0]} already.",
            next_step="Find out whose it is, and move it away.",
        )
    copy_files(old, new, content.state)
    for path, text in content.texts.items():
        new.write_text(path, text)


def next_batch_metadata(metadata: str, commit: str) -> str:
    """The metadata of the next batch: Spark takes the watermark of a planned batch from there, and not from the commit
    before it."""
    content = json.loads(metadata)
    behind = json.loads(_lines(commit)[-1]).get(_NEXT_WATERMARK, 0)
    content[_WATERMARK] = max(content.get(_WATERMARK, 0), behind)
    return json.dumps(content, separators=(",", ":"))


def commit_behind(metadata: str) -> str:
    """The entry of the commit log for a batch that leaves the watermark where it was, by the batch's metadata."""
    return "v1\n" + json.dumps({_NEXT_WATERMARK: json.loads(metadata).get(_WATERMARK, 0)}, separators=(",", ":"))


def _lines(text: str) -> Sequence[str]:
    return text.strip().splitlines()
