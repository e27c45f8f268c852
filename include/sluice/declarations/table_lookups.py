"""Finds the declared streams that look a table up."""

from __future__ import annotations

from collections.abc import Iterator

from sluice.declarations.loaded_declarations import Declarations
from sluice.declarations.source_declarations import IcebergSource


def lookups_of(declarations: Declarations, table: str) -> Iterator[str]:
    """The declared streams that look a table up as it is at each batch. Not those that look up a fixed state of it."""
    for name, stream in sorted(declarations.streams.items()):
        looked_up = [one.declared_source.source for one in stream.declaration.inputs.values() if not one.is_stream]
        tables = [one for one in looked_up if isinstance(one, IcebergSource) and one.table == table]
        if any(not one.is_fixed for one in tables):
            yield name
