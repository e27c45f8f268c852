"""Look at a checkpoint folder: what lies there, and the text of the few files by which it is judged."""

from __future__ import annotations

from sluice.checkpoints.checkpoint_files import CheckpointFiles
from sluice.checkpoints.checkpoint_layout import COMMITS, OFFSETS, log_files, paths_to_read
from sluice.ledger.records.checkpoint_check import CheckpointContents


def observe_checkpoint(checkpoint: CheckpointFiles) -> CheckpointContents:
    """Look at a checkpoint that a driver may be writing meanwhile.

    Three looks in this order: the offset log, the commit log, everything. A batch that is planned in the first and not
    committed in the second really is not, and what is committed in the second has its offsets in the third.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    planned = log_files(checkpoint.list_files(OFFSETS), OFFSETS)
    committed = checkpoint.list_files(COMMITS)
    others = [seen for seen in checkpoint.list_files() if not seen.path.startswith(f"{COMMITS}/")]
    files = tuple(sorted([*committed, *others], key=lambda seen: seen.path))
    texts = {path: text for path in paths_to_read(files) if (text := checkpoint.read_text(path)) is not None}
    return CheckpointContents(
        location=checkpoint.location, files=files, newest_planned_batch=max(planned, default=None), texts=texts
    )
