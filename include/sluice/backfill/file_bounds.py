"""Decides which files a backfill reads: those that the stream had read, by the log of its checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

from sluice.backfill.read_bounds import FilesBound
from sluice.checkpoints.checkpoint_files import open_checkpoint_files
from sluice.declarations.source_declarations import FilesSource
from sluice.settings import ObjectStoreSettings
from sluice.sources.unread_input import files_read_up_to, present_files

_MOST_NAMED = 3
"""How many files a message names."""


def bound_of_files(
    offset: object,
    source: FilesSource,
    *,
    input_name: str,
    column: str | None,
    root: str,
    checkpoint: str,
    object_store: ObjectStoreSettings,
) -> FilesBound:
    """The files that a stream has read, from its end offset. A file that was replaced under its name is read as it is
    now; one that is gone is a problem, because its rows would be missing.

    Parameters
    ----------
    offset: of the newest published batch, as Spark's source writes it. root: the folder of the connection.
    checkpoint: of the generation of that batch.

    Raises
    ------
    CheckpointError: when a storage does not answer.
    """

    def without(problem: str) -> FilesBound:
        return FilesBound(input=input_name, column=column, problem=problem)

    newest = offset.get("logOffset") if isinstance(offset, Mapping) else None
    if newest is None or int(newest) < 0:
        return without("the stream has read no file yet.")
    read = files_read_up_to(int(newest), open_checkpoint_files(checkpoint, object_store))
    if read is None:
        return without(f"the checkpoint {checkpoint} does not list the files of the newest published batch.")
    gone = sorted(read - present_files(source, root=root, object_store=object_store))
    if gone:
        named, more = ", ".join(gone[:_MOST_NAMED]), f" and {len(gone) - _MOST_NAMED} more"
        return FilesBound(
            input=input_name,
            column=column,
            problem=f"of the files that the stream has read, {len(gone)} are gone: {named}"
            f"{more if len(gone) > _MOST_NAMED else ''}.",
            is_gone=True,
            way_out="Put them back under the same names; their rows would be missing.",
        )
    return FilesBound(input=input_name, column=column, paths=tuple(sorted(read)))
