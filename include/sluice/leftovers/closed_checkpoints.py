"""Which checkpoints nothing can go back to, by what the ledger says alone.

A checkpoint is its folder and not a generation: a refresh hands the folder of its shadow to the stream, and its way
back hands that of an earlier generation to a later one. A folder is closed when every generation that has it is.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from sluice.ledger.generations import GenerationObservation, checkpoint_of
from sluice.ledger.refreshes import OPEN_STATES, RefreshObservation, RefreshState


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedCheckpoint:
    """A checkpoint that no run continues and no command goes back to.

    stream, generation: whose it was last; of an abandoned refresh its stream, and no generation.
    of: the same for a person. path: of the folder, below the root of the checkpoints.
    closed_at: since when it is not needed: the next generation was opened, or a refresh cannot be taken back any more.
    """

    stream: str
    generation: int | None
    of: str
    checkpoint: str
    path: str
    closed_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownCheckpoints:
    """What the ledger knows of checkpoints.

    generations: by stream, oldest first. live: stream and generation of each live run.
    begun: the streams whose newest generation has recorded a batch: from then on the tables say where it stands.
    abandoned_at: when refreshes were given up, by number, as far as that is kept.
    """

    generations: Sequence[GenerationObservation]
    refreshes: Sequence[RefreshObservation]
    live: Collection[tuple[str, int]]
    begun: Collection[str]
    abandoned_at: Mapping[int, datetime] = field(default_factory=dict)


def newest_generations(generations: Sequence[GenerationObservation]) -> dict[str, GenerationObservation]:
    """The newest generation of each stream. generations: by stream, oldest first."""
    return {one.stream: one for one in generations}


def closed_checkpoints(known: KnownCheckpoints) -> Iterator[ClosedCheckpoint]:
    """The checkpoints that nothing needs, each folder once, whether or not there still is one."""
    shadows = {one.shadow: one for one in known.refreshes}
    of_folder: dict[str, list[ClosedCheckpoint | None]] = {}
    for generation in known.generations:
        refresh = shadows.get(generation.stream)
        if refresh is not None and refresh.state in (RefreshState.SWAPPED, RefreshState.TAKEN_BACK):
            continue  # its stream has the folder since, as a generation of its own
        closed = _closed(generation, known) if refresh is None else _abandoned(generation, refresh, known)
        of_folder.setdefault(generation.checkpoint, []).append(closed)
    for found in of_folder.values():
        closed_ones = [one for one in found if one is not None]
        if len(closed_ones) == len(found):
            yield max(closed_ones, key=lambda one: one.closed_at)


def _abandoned(
    generation: GenerationObservation, refresh: RefreshObservation, known: KnownCheckpoints
) -> ClosedCheckpoint | None:
    """The checkpoint of a shadow; none while the refresh is open. When its end was noted says nothing: that may have
    been long after it was given up. Where that time is not kept any more, the newest change of a file counts."""
    if refresh.state in OPEN_STATES or (generation.stream, generation.generation) in known.live:
        return None
    return ClosedCheckpoint(
        stream=refresh.stream,
        generation=None,
        of=f"refresh {refresh.number}, {refresh.state}",
        checkpoint=generation.checkpoint,
        path=_path(generation.stream, generation.generation),
        closed_at=known.abandoned_at.get(refresh.number, refresh.began_at),
    )


def _closed(generation: GenerationObservation, known: KnownCheckpoints) -> ClosedCheckpoint | None:
    """The checkpoint of a generation; none while something runs in it, may go back to it, or has not replaced it."""
    stream, number = generation.stream, generation.generation
    later = [one for one in known.generations if one.stream == stream and one.generation > number]
    refreshes = [one for one in known.refreshes if one.stream == stream]
    is_open = any(one.state in OPEN_STATES for one in refreshes)
    if not later or is_open or stream not in known.begun or (stream, number) in known.live:
        return None
    kept = [one.keeps_until for one in refreshes if one.leaves == number and one.keeps_until is not None]
    return ClosedCheckpoint(
        stream=stream,
        generation=number,
        of=f"generation {number}",
        checkpoint=generation.checkpoint,
        path=_placed(generation, known),
        closed_at=max([later[0].opened_at, *kept]),
    )


def _placed(generation: GenerationObservation, known: KnownCheckpoints) -> str:
    """The path of the folder of a generation: its own, or that of the generation from which it was handed over."""
    alike = (one for one in known.generations if one.checkpoint == generation.checkpoint)
    paths = (_path(one.stream, one.generation) for one in alike)
    return next(
        (path for path in paths if generation.checkpoint.endswith(f"/{path}")),
        _path(generation.stream, generation.generation),
    )


def _path(stream: str, generation: int) -> str:
    return checkpoint_of(stream, generation, checkpoints_root="").removeprefix("/")
