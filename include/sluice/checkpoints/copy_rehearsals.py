"""What came of putting copies of checkpoints back on trial: kept beside the copy, as `CLOCK.rehearsed`."""

from __future__ import annotations

import logging

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

from sluice.checkpoints.checkpoint_copies import REHEARSED, CheckpointCopy, folder_beside
from sluice.checkpoints.checkpoint_files import CheckpointFiles
from sluice.declarations.stream_declaration import StreamDeclaration

_REHEARSALS = ".rehearsals"

_log = logging.getLogger(__name__)


class Rehearsal(BaseModel):
    """What came of putting a copy back on trial.

    batch: the batch that was run again on it. seconds: how long that took, from the first file to the state that was
    compared. problem: why the copy, or what the batch reads, does not do; empty where the state came out equal.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rehearsed_at: AwareDatetime
    batch: int
    seconds: float
    problem: str = ""


def rehearsal_location(checkpoint: str) -> str:
    """Where a copy of the checkpoint of a generation is put back on trial."""
    return folder_beside(checkpoint, _REHEARSALS)


def why_not_rehearsed(stream: StreamDeclaration) -> str:
    """Why no batch of a stream can be run again to compare its state, for half a sentence; empty where one can."""
    for name, declared in sorted(stream.inputs.items()):
        if declared.puts_files_away:
            return f"the files of its input {name} are put away once they are read"
        if not declared.is_stream:
            return f"each batch reads its input {name} as it is then"
    return ""


def record_rehearsal(store: CheckpointFiles, copy: CheckpointCopy, rehearsal: Rehearsal) -> None:
    """Keep what came of a rehearsal beside its copy.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    store.write_text(f"{copy.clock}{REHEARSED}", rehearsal.model_dump_json())


def find_rehearsal(store: CheckpointFiles, copy: CheckpointCopy) -> Rehearsal | None:
    """The newest rehearsal of a copy; none when there was none, or when what is kept of it cannot be read.

    Raises
    ------
    CheckpointError: when the storage does not answer.
    """
    path = f"{copy.clock}{REHEARSED}"
    try:
        text = store.read_text(path)
        return None if text is None else Rehearsal.model_validate_json(text)
    except ValidationError as error:
        _log.warning("%s of %s says nothing of a rehearsal: %s", path, store.location, error)
        return None
