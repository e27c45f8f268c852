"""Looks by their checkpoints for generations that the ledger does not know, where no table has a mark for them."""

from __future__ import annotations

from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import BEGUN
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import CheckpointError, DivergedError
from sluice.ledger.generations import GenerationObservation, checkpoint_of
from sluice.positions.stream_position import Witness
from sluice.publication.undeclared_outputs import has_unmarked_outputs
from sluice.settings import Settings

_LOOKED_FOR = 4
"""How many checkpoints behind the newest one are looked for. A generation that was reset before its start has none."""


def newest_begun(stream: str, generation: int, settings: Settings) -> int:
    """The newest generation whose checkpoint a run has begun with, from one on that the ledger knows.

    Raises
    ------
    CheckpointStorageError: when the storage does not answer.
    """
    newest, number = generation, generation + 1
    while number <= newest + _LOOKED_FOR:
        location = checkpoint_of(stream, number, checkpoints_root=settings.checkpoints)
        try:
            files = open_checkpoint_files(location, settings.object_store)
        except CheckpointError:  # a file system that only Spark can read
            return newest
        if files.read_text(BEGUN) is not None:
            newest = number
        number += 1
    return newest


def observe_newest_begun(
    generation: GenerationObservation | None,
    declaration: StreamDeclaration,
    settings: Settings,
    unknown: dict[Witness, str],
) -> int:
    """The newest generation that has begun; 0 where marks show it, there is none, or the storage does not answer, which
    is added to what is unknown."""
    if not has_unmarked_outputs(declaration):
        return 0
    try:
        return newest_begun(declaration.stream, 0 if generation is None else generation.generation, settings)
    except CheckpointError as error:
        unknown[Witness.CHECKPOINT] = str(error)
        return 0


def require_newest_generation(
    generation: GenerationObservation, declaration: StreamDeclaration, settings: Settings
) -> None:
    """Require that no later generation has begun, where an output has no mark that would show it.

    Raises
    ------
    DivergedError: when the ledger is an older copy.
    CheckpointStorageError: when the storage does not answer.
    """
    known = generation.generation
    begun = newest_begun(generation.stream, known, settings) if has_unmarked_outputs(declaration) else known
    if begun > known:
        raise DivergedError(
            f"Generation {begun} of {generation.stream} has begun, and the ledger knows none behind "
            f"{known}: it is an older copy.",
            next_step=f"`sluice stream repair {generation.stream} --dry-run` shows what writes the ledger back.",
        )
