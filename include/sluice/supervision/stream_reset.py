"""`sluice stream reset`: leaves a stream's checkpoint and begins a new generation, by a plan that is shown first.

Only the ledger is changed, in one transaction. The next run finds the new generation and begins with an empty
checkpoint; it abandons what the old generation had staged (`sluice.publication.mark_moves`). The old checkpoint,
its row and its batches stay; a batch's key contains its generation, so batches of two generations never collide.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.checkpoints.compatibility import STATE_OPERATORS
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.errors import CheckpointError, RolledBackError, RunAlreadyLiveError, SluiceError, UsageError
from sluice.ledger.batches import BatchObservation, newest_batch, rejections_of
from sluice.ledger.connection import Ledger, database_time
from sluice.ledger.events import EventAction
from sluice.ledger.generations import GenerationObservation, checkpoint_of, find_generation
from sluice.ledger.next_generation import open_next_generation, require_at_rest
from sluice.operations import OperationPlan, OperationVerb, Refusal, RefusalReason, Stake, steps_of
from sluice.publication.batch_rejection import returning_sentence
from sluice.publication.batch_views import BatchState, BatchView, observe_batches
from sluice.settings import Settings
from sluice.sources.table_starts import observe_starts
from sluice.supervision.reset_effects import describe_inputs, describe_outputs
from sluice.supervision.supervision_values import command_event
from sluice.tables.catalog import open_catalog

_WAITING = (BatchState.STAGED, BatchState.PARTLY_STAGED, BatchState.UNDECLARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationChange:
    """What a reset leaves behind.

    leaves, opens: the generation that is left, and the one that begins. checkpoint: of the latter.
    newest_batch: the last one recorded of the former; unset when it has none. end_offsets: where that one ends.
    staged_batches, staged_rows: what is staged and never becomes visible; unset when the tables cannot be read.
    """

    leaves: int
    opens: int
    checkpoint: str
    newest_batch: int | None = None
    end_offsets: Mapping[str, Any] = field(default_factory=dict, hash=False)
    staged_batches: int | None = None
    staged_rows: int | None = None


def plan_reset(
    ledger: Ledger, wanted: LoadedStream, settings: Settings, *, only_shows: bool = False
) -> OperationPlan[GenerationChange]:
    """What `reset_stream` would do now. Nothing is changed.

    Parameters
    ----------
    only_shows: whether the plan is only looked at: that the stream runs is then a refusal in it.

    Raises
    ------
    RunAlreadyLiveError: when a run of the stream lives.
    UsageError: when the stream is to run, or has no generation yet.
    RolledBackError: when a target was rolled back behind its mark: every start of the new generation would be refused.
    CheckpointError: when the folder of the new checkpoint is not empty, or its storage does not answer.
    """
    refusals = tuple(_not_at_rest(ledger, wanted.name)) if only_shows else ()
    if not only_shows:
        require_at_rest(ledger, wanted.name)
    left = find_generation(ledger, wanted.name)
    if left is None:
        raise UsageError(
            f"The ledger knows no generation of {wanted.name} that could be left: it has never been started, or the "
            "ledger is an older copy.",
            next_step=_forgotten(wanted.name),
        )
    opens = left.generation + 1
    checkpoint = checkpoint_of(wanted.name, opens, checkpoints_root=settings.checkpoints)
    is_checked = _require_empty(wanted.name, checkpoint, settings)
    batch = newest_batch(ledger, wanted.name, generation=left.generation)
    keeps_state = bool(left.fingerprint.get(STATE_OPERATORS))
    waiting, unknown = _staged(ledger, wanted, settings)
    change = _change(left.generation, checkpoint, batch, waiting)
    sentences = (
        _leaving(left, batch, settings, keeps_state=keeps_state),
        unknown or _discarding(change, wanted),
        _opening(opens, checkpoint, is_checked=is_checked),
        *describe_inputs(wanted.declaration, observe_starts(wanted.declaration, settings, now=database_time(ledger))),
        *filter(None, [returning_sentence(rejections_of(ledger, wanted.name))]),
        *describe_outputs(wanted.declaration, generation=opens, keeps_state=keeps_state),
        f"{wanted.name} stays stopped until it is started.",
    )
    return OperationPlan(
        verb=OperationVerb.RESET,
        subject=wanted.name,
        seen=change,
        steps=steps_of(*sentences),
        refusals=refusals,
        at_stake=Stake.CHECKPOINT,
        rows=change.staged_rows,
        evidence=asdict(change),
    )


def _not_at_rest(ledger: Ledger, stream: str) -> Iterator[Refusal]:
    try:
        require_at_rest(ledger, stream)
    except (RunAlreadyLiveError, UsageError) as refused:
        yield Refusal(
            reason=RefusalReason.NOT_AT_REST,
            sentence=refused.message,
            next_step=refused.next_step or f"Stop it first: `sluice stream stop {stream}`.",
        )


def _change(
    leaves: int, checkpoint: str, newest: BatchObservation | None, waiting: Sequence[BatchView] | None
) -> GenerationChange:
    return GenerationChange(
        leaves=leaves,
        opens=leaves + 1,
        checkpoint=checkpoint,
        newest_batch=None if newest is None else newest.key.batch,
        end_offsets={} if newest is None else newest.end_offsets,
        staged_batches=None if waiting is None else len(waiting),
        staged_rows=None if waiting is None else sum(sum(sight.rows.values()) for sight in waiting),
    )


def reset_stream(
    ledger: Ledger, wanted: LoadedStream, settings: Settings, *, planned: str | None = None, asked_by: str
) -> GenerationObservation:
    """Leave the generation of a stream and open the next one.

    Parameters
    ----------
    planned: the digest of the plan that a person agreed to; unset: what there is now.
    asked_by: the person or program that asks, for messages.

    Raises
    ------
    UsageError: when another generation, or more of it, would be left than was planned; nothing is changed.
    RunAlreadyLiveError, UsageError, CheckpointError, LedgerError: as `plan_reset`.
    """
    plan = plan_reset(ledger, wanted, settings)
    plan.require_same(planned)
    change = plan.seen
    event = command_event(
        EventAction.RESET,
        wanted.name,
        by=asked_by,
        explanation=f"Leave generation {change.leaves}, and open generation {change.opens} with an empty checkpoint.",
        evidence=plan.evidence,
    )
    return open_next_generation(
        ledger,
        wanted.name,
        leaving=change.leaves,
        checkpoints_root=settings.checkpoints,
        opened_by=asked_by,
        event=event,
    )


def _is_there(checkpoint: str, settings: Settings) -> bool | None:
    """Whether a checkpoint has files; unset when only Spark can read its storage."""
    try:
        return bool(open_checkpoint_files(checkpoint, settings.object_store).list_files())
    except CheckpointError:
        return None


def _leaving(
    left: GenerationObservation, batch: BatchObservation | None, settings: Settings, *, keeps_state: bool
) -> str:
    what = "its offsets and its state" if keeps_state else "its offsets"
    ends = "It has no recorded batch."
    if batch is not None:
        offsets = json.dumps(dict(batch.end_offsets), sort_keys=True)
        ends = f"Its newest batch is {batch.key.batch}, which ends at {offsets}; recorded batches stay recorded."
    is_gone = _is_there(left.checkpoint, settings) is False
    kept = "is not there any more" if is_gone else f"is kept for {settings.leftovers_kept_days} days"
    return f"Leave generation {left.generation}, {what}. {ends} Its checkpoint {left.checkpoint} {kept}."


def _opening(opens: int, checkpoint: str, *, is_checked: bool) -> str:
    unseen = "" if is_checked else " Only Spark can read that storage: check first that the folder is empty."
    return f"Open generation {opens} with the empty checkpoint {checkpoint}; its batches are counted from 0.{unseen}"


def _staged(ledger: Ledger, wanted: LoadedStream, settings: Settings) -> tuple[Sequence[BatchView] | None, str]:
    """The batches that wait; none, and a sentence that says so, when the tables cannot be read."""
    try:
        sights = observe_batches(open_catalog(settings), ledger, wanted.declaration, limit=1)
    except RolledBackError as error:
        raise RolledBackError(
            f"{error.message} A reset would not help: the next start would be refused for the same reason.",
            next_step=error.next_step,
        ) from error
    except SluiceError as error:
        return None, f"Staged batches are never published; how many they are is unknown: {error.message}"
    return [sight for sight in sights if sight.state in _WAITING], ""


def _discarding(change: GenerationChange, wanted: LoadedStream) -> str:
    if not change.staged_batches:
        return "No batch is staged."
    return (
        f"{change.staged_batches} staged batches with {change.staged_rows:,} rows are never published. To have them "
        f"published first, start {wanted.name} once more."
    )


def _forgotten(stream: str) -> str:
    return f"If it is, write the generation back first: `sluice stream repair {stream} --dry-run`."


def _require_empty(stream: str, checkpoint: str, settings: Settings) -> bool:
    """Require that the folder of a checkpoint is empty. Returns whether its storage can be read from this process."""
    try:
        folder = open_checkpoint_files(checkpoint, settings.object_store)
    except CheckpointError:  # a file system that only Spark can read: the plan says so
        return False
    if found := folder.list_files():
        raise CheckpointError(
            f"{checkpoint}, the folder of the new checkpoint, contains {found[0].path} already: it would be taken for "
            "the stream's own. It may be that of a generation that the ledger does not know, as an older copy.",
            next_step=f"{_forgotten(stream)} If a continuation died here, `sluice stream continue {stream}` completes "
            "it; then reset the stream. Otherwise find out whose it is, and move it away.",
        )
    return True
