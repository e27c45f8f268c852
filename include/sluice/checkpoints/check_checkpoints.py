"""Checks the checkpoints of streams: observes, judges and records them. For the DAG `checkpoint_health` and the CLI."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from sluice.checkpoints.checkpoint_files import CheckpointFiles, open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import COMMITS, OFFSETS, CheckpointContents, log_files, paths_to_read
from sluice.checkpoints.health_decision import CheckpointExpectation, judge_checkpoint
from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import CheckpointError
from sluice.ledger.batches import newest_batch
from sluice.ledger.checkpoint_checks import (
    CheckpointFinding,
    CheckpointObservation,
    CheckpointProperty,
    record_checkpoint_check,
)
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.generations import find_generation
from sluice.ledger.runs import newest_run
from sluice.settings import Settings

STUCK_AFTER_TRIGGERS = 20
"""A batch that takes as long as this many triggers is stuck, unless the declaration says `stall_after`."""

SHORTEST_STUCK_SECONDS = 300.0
"""No batch counts as stuck before this: a short trigger does not limit how long a large batch may take."""


def check_checkpoints(
    ledger: Ledger, declarations: Declarations, settings: Settings, *, streams: Sequence[str] = ()
) -> tuple[CheckpointObservation, ...]:
    """Check the checkpoints of streams and record what was found.

    Parameters
    ----------
    streams: the streams to check; every declared one when empty.

    Returns
    -------
    One observation for each stream that has been started; a stream without a generation has no checkpoint to check.

    Raises
    ------
    UsageError: when a stream is not declared.
    LedgerError: when the ledger cannot be reached. A storage that does not answer is a finding of its stream.
    """
    names = streams or tuple(declarations.streams)
    checked = []
    for declaration in [declarations.stream(name).declaration for name in names]:
        check = _check(ledger, declaration, settings, now=database_time(ledger))
        if check is not None:
            record_checkpoint_check(ledger, check)
            checked.append(check)
    return tuple(checked)


def _check(
    ledger: Ledger, stream: StreamDeclaration, settings: Settings, *, now: datetime
) -> CheckpointObservation | None:
    generation = find_generation(ledger, stream.stream)
    if generation is None:
        return None
    batch, run = newest_batch(ledger, stream.stream), newest_run(ledger, stream.stream)
    expected = CheckpointExpectation(
        stream=stream.stream,
        generation=generation.generation,
        query_id=generation.query_id,
        has_batches=batch is not None and batch.key.generation == generation.generation,
        is_live=run is not None and run.is_live,
        longest_batch_seconds=longest_batch_seconds(stream),
    )
    try:
        seen = observe_checkpoint(open_checkpoint_files(generation.checkpoint, settings.object_store))
    except CheckpointError as error:
        return CheckpointObservation(
            stream=stream.stream,
            generation=generation.generation,
            location=generation.checkpoint,
            checked_at=now,
            findings=(CheckpointFinding(name=CheckpointProperty.EXISTS, healthy=False, message=str(error)),),
            newest_batch=None,
            newest_commit_age_seconds=None,
        )
    return judge_checkpoint(expected=expected, seen=seen, now=now)


def longest_batch_seconds(stream: StreamDeclaration) -> float:
    """How long a batch of a stream may take before it counts as stuck: as declared, else by its own trigger."""
    if stream.supervision.stall_after is not None:
        return stream.supervision.stall_after.total_seconds()
    interval = stream.trigger.processing_time if stream.trigger is not None else None
    return max(STUCK_AFTER_TRIGGERS * interval.total_seconds() if interval else 0.0, SHORTEST_STUCK_SECONDS)


def observe_checkpoint(checkpoint: CheckpointFiles) -> CheckpointContents:
    """Observe a checkpoint that a driver may be writing meanwhile.

    It lists the offset log, then the commit log, then everything. A batch that the first listing has and the second has
    not is really uncommitted, and a batch of the second listing has its offsets in the third.

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
