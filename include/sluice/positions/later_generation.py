"""Looks by their checkpoints for generations that the ledger does not know, where no table has a mark for them."""

from __future__ import annotations

from sluice.checkpoints.checkpoint_files import CheckpointFiles, open_checkpoint_files
from sluice.checkpoints.checkpoint_layout import COMMITS, METADATA, OFFSETS, log_files
from sluice.checkpoints.checkpoint_logs import HEADER_LINES
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import CheckpointError, CheckpointStorageError, DivergedError
from sluice.ledger.generations import GenerationObservation, checkpoint_of
from sluice.positions.repair_decision import query_id_in
from sluice.positions.stream_position import Witness
from sluice.publication.undeclared_outputs import has_unmarked_outputs
from sluice.settings import Settings


def newest_begun(generation: GenerationObservation, settings: Settings) -> int:
    """The newest generation whose checkpoint a run has begun with, from one on that the ledger knows. What a command
    that died has left of a continuation has the same query, and no batch that the one before has not planned.

    Raises
    ------
    CheckpointStorageError: when the storage does not answer.
    """
    newest, stream = generation.generation, generation.stream
    try:
        own = open_checkpoint_files(generation.checkpoint, settings.object_store)
        query_id = generation.query_id or _query_of(own)
        while True:
            location = checkpoint_of(stream, newest + 1, checkpoints_root=settings.checkpoints)
            later = open_checkpoint_files(location, settings.object_store)
            if (found := _query_of(later)) is None or (found == query_id and not _is_ahead(later, own)):
                return newest
            newest, own, query_id = newest + 1, later, found
    except CheckpointError as error:
        if isinstance(error, CheckpointStorageError):
            raise
        return newest  # a file system that only Spark can read


def observe_newest_begun(
    generation: GenerationObservation | None,
    declaration: StreamDeclaration,
    settings: Settings,
    unknown: dict[Witness, str],
) -> int:
    """The newest generation that has begun; 0 where marks show it, there is none, or the storage does not answer, which
    is added to what is unknown."""
    if generation is None or not has_unmarked_outputs(declaration):
        return 0
    try:
        return newest_begun(generation, settings)
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
    begun = newest_begun(generation, settings) if has_unmarked_outputs(declaration) else 0
    if begun > generation.generation:
        raise DivergedError(
            f"Generation {begun} of {generation.stream} has begun, and the ledger knows none behind "
            f"{generation.generation}: it is an older copy.",
            next_step=f"`sluice stream repair {generation.stream} --dry-run` shows what writes the ledger back.",
        )


def _query_of(checkpoint: CheckpointFiles) -> str | None:
    return query_id_in(checkpoint.read_text(METADATA) or "")


def _is_ahead(later: CheckpointFiles, own: CheckpointFiles) -> bool:
    """Whether a checkpoint has a batch that another one of the same query did not plan so."""
    newest = _committed(later)
    return newest > _committed(own) and _plan_of(later, newest) != _plan_of(own, newest)


def _committed(checkpoint: CheckpointFiles) -> int:
    return max(log_files(checkpoint.list_files(COMMITS), COMMITS), default=-1)


def _plan_of(checkpoint: CheckpointFiles, batch: int) -> list[str]:
    """The version and the metadata, with its time, with which a batch was planned; empty where it was not."""
    return (checkpoint.read_text(f"{OFFSETS}/{batch}") or "").splitlines()[:HEADER_LINES]
