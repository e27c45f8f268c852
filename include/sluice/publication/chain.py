"""Decides which staged batches are published next and which never, from the staged batches, mark and checkpoint alone.

A batch follows only the batch whose end offsets are its start offsets, and the fencing tokens never fall in the order
of staging. Batches outside this chain were staged by a driver that had lost its stream; they are abandoned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from sluice.errors import DivergedError, MarkError, StagingError, StaleTokenError
from sluice.ledger.batches import PublicationKey
from sluice.publication.staged_batch import (
    BatchSummary,
    PlannedBatch,
    StagedBatch,
    offsets_digest,
)


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

    def runs_again(self, key: PublicationKey) -> bool:
        """Whether Spark runs a batch again: one of this generation that the checkpoint has not committed."""
        return key.generation == self.generation and key.batch > self.newest_committed

    def has_planned(self, batch: BatchSummary) -> bool:
        """Whether this checkpoint has planned a batch with these end offsets. A batch whose offsets Spark no longer
        keeps was planned long ago, so that its number decides. Batches of other generations have other checkpoints.
        """
        key = batch.key
        if key.generation != self.generation:
            return True
        same_end = self.end_offsets.get(key.batch, batch.end_offsets) == batch.end_offsets
        return key.batch <= self.newest_planned and same_end


BEFORE_THE_FIRST_BATCH = -1
"""The batch number of an opening mark of a generation that starts with batch 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkPosition:
    """How far an output is published; a mark without the snapshot that sets it.

    generation, batch: the newest published batch; the next one is `batch + 1` of the same generation.
    token: the highest fencing token that was ever admitted.
    end_offsets_digest: `offsets_digest` of the end offsets of that batch; unset when any offset may follow.
    """

    generation: int
    batch: int
    token: int
    end_offsets_digest: str | None


class AbandonReason(StrEnum):
    """Why a staged batch is never published.

    STALE_TOKEN: it was staged after a newer run had begun. OTHER_GENERATION: its generation is not the open one.
    STAGED_TWICE: another snapshot of the same batch counts. OUT_OF_CHAIN: it does not start at the offsets where the
    previous batch ends. NOT_PLANNED: the checkpoint has not planned it, or has planned other offsets under its
    number; its input is read again. UNDECLARED: its output is no longer declared, and a person has abandoned it.
    LEFT_BEHIND: a person has reset the stream to a new generation (`sluice stream reset`).
    """

    STALE_TOKEN = "stale_token"  # noqa: S105  # a fencing token is not a secret
    OTHER_GENERATION = "other_generation"
    STAGED_TWICE = "staged_twice"
    OUT_OF_CHAIN = "out_of_chain"
    NOT_PLANNED = "not_planned"
    UNDECLARED = "undeclared"
    LEFT_BEHIND = "left_behind"


@dataclass(frozen=True, slots=True, kw_only=True)
class AbandonedBatch:
    """A staged batch that is never published, and why."""

    batch: StagedBatch
    reason: AbandonReason


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationPlan:
    """What to do with everything that is staged for an output.

    position: how far the output is published.
    ready: the chain of batches to publish next, in order.
    published: the batches at or below the mark that became visible; they only have to be cleared.
    abandoned: batches that are never published; those at or below the mark are cleared with the others.
    """

    position: MarkPosition
    ready: tuple[StagedBatch, ...]
    published: tuple[StagedBatch, ...]
    abandoned: tuple[AbandonedBatch, ...]

    @property
    def newest_waiting(self) -> int:
        """The newest batch of the generation that is visible or waits in the chain."""
        return max((self.position.batch, *(batch.summary.key.batch for batch in self.ready)))

    @property
    def reached(self) -> tuple[int, int]:
        """Generation and number of the newest visible batch."""
        return (self.position.generation, self.position.batch)


def plan_publication(
    position: MarkPosition, staged: Sequence[StagedBatch], *, checkpoint: CheckpointPosition | None = None
) -> PublicationPlan:
    """Decide for each staged batch whether it is published next, is published already, or is abandoned.

    Parameters
    ----------
    position: how far the output is published.
    staged: from `staged_batches`, in the order of staging.
    checkpoint: the one that the stream continues from. A batch that it has not planned is not published, because its
        input is read again; unset where the checkpoint is not known.
    """
    behind = [batch for batch in staged if is_behind(batch, position)]
    ahead = [batch for batch in staged if batch not in behind]
    published = _published(position, behind)
    planned = [batch for batch in ahead if checkpoint is None or checkpoint.has_planned(batch.summary)]
    chain = _chain(position, [batch for batch in planned if not batch.is_overtaken])
    kept = {batch.snapshot_id for batch in (*published, *chain)}
    abandoned = tuple(
        AbandonedBatch(batch=batch, reason=_reason(batch, position, kept=(*published, *chain), planned=planned))
        for batch in staged
        if batch.snapshot_id not in kept
    )
    return PublicationPlan(position=position, ready=tuple(chain), published=published, abandoned=abandoned)


def whole_batches(plans: Sequence[PublicationPlan]) -> tuple[Mapping[str, StagedBatch], ...]:
    """The batches of a stream of which every output is staged or visible, in order, each by output.

    A batch that lacks an output ends the list, so that all outputs of a stream stay at the same batch.

    Parameters
    ----------
    plans: one for each output of the stream.
    """
    by_position: dict[tuple[int, int], dict[str, StagedBatch]] = {}
    for plan in plans:
        for batch in (*plan.published, *plan.ready):
            by_position.setdefault(batch.position, {})[batch.summary.output] = batch
    end = min(max((plan.reached, *(batch.position for batch in plan.ready))) for plan in plans)
    return tuple(by_output for position, by_output in sorted(by_position.items()) if position <= end)


def is_behind(batch: StagedBatch, position: MarkPosition) -> bool:
    """Whether a staged batch lies at or below the mark: it is visible, or another one of its number is.

    No generation opens while batches of the previous one are staged. An overtaken batch of an older generation was
    staged after that and was never published.
    """
    is_left_over = batch.is_overtaken and batch.summary.key.generation < position.generation
    return batch.position <= (position.generation, position.batch) and not is_left_over


def counting_twin(twins: Sequence[StagedBatch]) -> StagedBatch:
    """Of several snapshots of one batch the one that is published, whoever asks: the newest run's, and of that run's
    the one without the rows that a person had taken out, and, after a lost answer, the first. A newer run computed its
    next batches after its own snapshot.

    Parameters
    ----------
    twins: at least one, in the order of staging; none of them is overtaken.
    """

    def rank(twin: StagedBatch) -> tuple[int, bool]:
        return twin.summary.token, twin.summary.is_separated

    return max(twins, key=rank)  # the first of those that are equal


def batches_to_publish(
    position: MarkPosition, batches: Sequence[StagedBatch], *, token: int, target: str
) -> tuple[StagedBatch, ...]:
    """Select the batches of a run that are not published yet; none when all of them are.

    Parameters
    ----------
    position: how far the output is published.
    batches: in order.
    token: the fencing token of the run that publishes.
    target: the table's name, for messages.

    Raises
    ------
    StaleTokenError: when a newer run has taken over.
    DivergedError: when another batch was published under the same number, or a batch does not start at the offsets
        where the previous one ends.
    MarkError: when the generation of a batch was never opened.
    StagingError: when a batch in between is missing.
    """
    refuse_stale_token(position, token, target=target)
    admitted = []
    for batch in batches:
        if _is_next(position, batch.summary, target=target):
            admitted.append(batch)
            position = position_after(batch.summary, token=token)
    return tuple(admitted)


def is_visible(position: MarkPosition, batch: PlannedBatch, *, target: str) -> bool:
    """Whether a batch that Spark runs again is published already.

    Raises
    ------
    DivergedError: when another batch was published under its number, or later ones, whose offsets are known.
    """
    key = batch.key
    if (key.generation, key.batch) != (position.generation, position.batch):
        if key.generation == position.generation and key.batch < position.batch and position.end_offsets_digest:
            raise _diverged(f"Batch {key} begins although {target} holds batches up to {position.batch}.", key.stream)
        return (key.generation, key.batch) < (position.generation, position.batch)
    if position.end_offsets_digest not in (None, offsets_digest(batch.end_offsets)):
        raise _diverged_twin(key, target=target)
    return True


def refuse_stale_token(position: MarkPosition, token: int, *, target: str) -> None:
    """Refuse a run whose stream a newer run has taken over.

    Raises
    ------
    StaleTokenError: when the mark has seen a higher token.
    """
    if token < position.token:
        raise StaleTokenError(
            f"This run's token is {token}, and the mark on {target} has seen {position.token}: a newer run has taken "
            "the stream over.",
            next_step="No action is needed: the newer run publishes the staged batches.",
        )


def position_after(batch: BatchSummary, *, token: int) -> MarkPosition:
    """The position after a run with this token has published a batch."""
    return MarkPosition(
        generation=batch.key.generation,
        batch=batch.key.batch,
        token=token,
        end_offsets_digest=offsets_digest(batch.end_offsets),
    )


def _is_next(position: MarkPosition, batch: BatchSummary, *, target: str) -> bool:
    """Whether a batch is the next one; false when it is published already."""
    key = batch.key
    if key.generation > position.generation:
        raise MarkError(
            f"Generation {key.generation} of batch {key} was never opened on {target}; open is {position.generation}.",
            next_step="Start the stream: a run opens its generation before its first batch.",
        )
    if key.generation < position.generation:
        raise _diverged(
            f"Batch {key} belongs to an older generation; {target} is at {position.generation}.", key.stream
        )
    if key.batch < position.batch:
        return False
    if key.batch == position.batch:
        if position.end_offsets_digest not in (None, offsets_digest(batch.end_offsets)):
            raise _diverged_twin(key, target=target)
        return False
    if key.batch > position.batch + 1:
        raise StagingError(
            f"Batch {key} cannot follow batch {position.batch} on {target}: the batches in between are not staged.",
            next_step=_ways_out(key.stream),
        )
    if position.end_offsets_digest not in (None, offsets_digest(batch.start_offsets)):
        raise _diverged(
            f"Batch {key} does not start at the offsets where {target}'s newest published batch ends.",
            key.stream,
        )
    return True


def _diverged_twin(key: PublicationKey, *, target: str) -> DivergedError:
    return _diverged(f"Another batch is published on {target} as {key}: its end offsets differ.", key.stream)


def _diverged(what: str, stream: str) -> DivergedError:
    return DivergedError(
        f"{what} The checkpoint and the table have diverged.",
        next_step=_ways_out(stream),
    )


def _ways_out(stream: str) -> str:
    return f"`sluice stream repair {stream} --dry-run` shows who disagrees, and what writes it back."


def _published(position: MarkPosition, behind: Sequence[StagedBatch]) -> tuple[StagedBatch, ...]:
    """The batches at or below the mark that became visible, one for each number, in order.

    What was staged after a newer run had begun was never published. Of the others the offsets decide: the newest batch
    ends where the mark says, and each one ends where the next one starts.
    """
    found: list[StagedBatch] = []
    follower = (position.generation, position.batch + 1)
    ends = position.end_offsets_digest
    for place in sorted({batch.position for batch in behind}, reverse=True):
        if place != (follower[0], follower[1] - 1):  # those in between are cleared
            ends = None
        twins = [batch for batch in behind if batch.position == place and not batch.is_overtaken]
        fitting = [twin for twin in twins if ends in (None, offsets_digest(twin.summary.end_offsets))]
        follower, ends = place, None
        if fitting:
            found.append(counting_twin(fitting))
            ends = offsets_digest(found[-1].summary.start_offsets)
    return tuple(reversed(found))


def _chain(position: MarkPosition, ahead: Sequence[StagedBatch]) -> list[StagedBatch]:
    chain: list[StagedBatch] = []
    while following := [batch for batch in ahead if _follows(position, batch)]:
        chosen = counting_twin(following)
        chain.append(chosen)
        position = position_after(chosen.summary, token=chosen.summary.token)
    return chain


def _follows(position: MarkPosition, batch: StagedBatch) -> bool:
    begins = offsets_digest(batch.summary.start_offsets)
    return batch.position == (position.generation, position.batch + 1) and position.end_offsets_digest in (None, begins)


def _reason(
    batch: StagedBatch, position: MarkPosition, *, kept: Sequence[StagedBatch], planned: Sequence[StagedBatch]
) -> AbandonReason:
    has_twin = any(batch.position == one.position for one in kept)
    if batch.summary.key.generation != position.generation and not has_twin:
        return AbandonReason.OTHER_GENERATION
    if batch.is_overtaken:
        return AbandonReason.STALE_TOKEN
    if has_twin:
        return AbandonReason.STAGED_TWICE
    if batch not in planned and not is_behind(batch, position):
        return AbandonReason.NOT_PLANNED
    return AbandonReason.OUT_OF_CHAIN
