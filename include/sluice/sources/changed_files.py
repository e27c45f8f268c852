"""Checks at the start of a run that no file was written again after it was read.

Spark knows a file by its path alone: what a second upload under the same name brings is never read. How a file was when
it was read, its log says by the time of its last change.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from sluice.declarations.source_declarations import FilesSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.errors import CheckpointError, InputReplacedError
from sluice.settings import FilesConnection, Settings
from sluice.sources.unread_input import observe_folder

_log = logging.getLogger(__name__)

_MOST_NAMED = 3
"""How many files a message names."""

RESTORE_FILES = (
    "Put the new content there under another name and restore the file with its time of last change (an object store "
    "cannot)"
)
"""The beginning of what can be done about files that were written again."""


def changed_phrase(changed: Collection[str]) -> str:
    """A phrase for files that were written again after they were read."""
    what = "file was" if len(changed) == 1 else "files were"
    return f"{len(changed)} {what} written again after being read: {_named(changed)}"


def gone_phrase(gone: Collection[str]) -> str:
    """A phrase for files that are not there any more."""
    return f"of the files that the stream has read, {len(gone)} are gone: {_named(gone)}"


def _named(paths: Collection[str]) -> str:
    more = f" and {len(paths) - _MOST_NAMED} more" if len(paths) > _MOST_NAMED else ""
    return f"{', '.join(sorted(paths)[:_MOST_NAMED])}{more}"


def require_unchanged_files(declaration: StreamDeclaration, settings: Settings, *, checkpoint: str) -> None:
    """Check the folders of a stream. With `on_changed: ignore` a change is logged.

    Raises
    ------
    InputReplacedError: when a file was written again after it was read.
    SettingsError: when the deployment does not have a connection.
    """
    for name, declared in declaration.inputs.items():
        source = declared.declared_source.source
        if not declared.is_stream or not isinstance(source, FilesSource):
            continue
        root = settings.connection(source.connection, FilesConnection).root
        try:
            seen = observe_folder(
                source, root=root, checkpoint=checkpoint, object_store=settings.object_store, skips_closed=True
            )
        except CheckpointError as error:  # only Spark reads it, or its storage is away
            _log.warning("input %s: whether files were written again is unknown: %s", name, error)
            continue
        if not seen.changed:
            continue
        if source.on_changed == "ignore":
            _log.warning("input %s: %s; the new content is not read", name, changed_phrase(seen.changed))
            continue
        raise InputReplacedError(
            f"Stream {declaration.stream}, input {name}: {changed_phrase(seen.changed)}.",
            next_step=f"{RESTORE_FILES}, or remove the file; with `on_changed: ignore` the stream continues without "
            "the new content.",
        )
