"""Limits of a batch that a stream would ignore: refused, because a declaration says nothing that has no effect.

An increment that reads an Iceberg table plans one batch over everything that is there (Spark's trigger `once`), because
its source cannot be read with `availableNow` (apache/iceberg#18000). Spark ignores the limits of every input then.
"""

from __future__ import annotations

from collections.abc import Iterator

from sluice.declarations.error_messages import key_text
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.source_declarations import IcebergSource
from sluice.errors import DeclarationError

_LIMITS = (
    "max_offsets_per_batch",
    "min_offsets_per_batch",
    "max_records_per_batch",
    "max_files_per_batch",
    "max_rows_per_batch",
)


def ignored_limits(stream: LoadedStream) -> Iterator[DeclarationError]:
    """The limits of an incremental stream that reads an Iceberg table, each with its line."""
    declaration = stream.declaration
    sources = {name: given.declared_source for name, given in declaration.inputs.items() if given.is_stream}
    if declaration.mode != "incremental":
        return
    if not any(isinstance(declared.source, IcebergSource) for declared in sources.values()):
        return
    for name, declared in sources.items():
        for limit in _LIMITS:
            if getattr(declared.source, limit, None) is not None:
                path = ("inputs", name, "stream", declared.kind, limit)
                yield DeclarationError(
                    f"`{key_text(path)}`: an increment that reads an Iceberg table is one batch over all that is "
                    "there, so the limit would be ignored.",
                    location=stream.location(path),
                    next_step="Leave it out, or declare the stream continuous.",
                )
