"""Looks whether the source tables of a stream still lead on from where it stands: main was rolled back, or expired."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pyiceberg.catalog import Catalog

from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.positions.stream_position import MovedSource, StreamPosition
from sluice.publication.marks import rolled_back_marks
from sluice.sources.iceberg_positions import stream_offset_of
from sluice.sources.input_gap import find_branch, find_gap
from sluice.tables.declared_tables import load_table


def find_moved_sources(catalog: Catalog, declaration: StreamDeclaration, seen: StreamPosition) -> Iterator[MovedSource]:
    """The source tables whose main does not lead on from the end of the newest batch that every output has.

    A table that is another one by its id is not among them.

    Raises
    ------
    LakehouseError: when the catalog does not answer, or earlier metadata cannot be read.
    DeliveryError: when a mark on such a table cannot be read.
    """
    done = seen.batches.get(seen.done) if seen.done is not None else None
    ends = json.loads(done.ends) if done is not None else {}
    for name, declared in declaration.inputs.items():
        source = declared.declared_source.source if declared.is_stream else None
        position = stream_offset_of(json.dumps(ends.get(name))) if isinstance(source, IcebergSource) else None
        if not isinstance(source, IcebergSource) or position is None:
            continue
        table = None if _is_replaced(seen, source.table) else load_table(catalog, source.table)
        if table is None:
            continue
        branch = find_branch(table, name=source.table, position=position.snapshot_id)
        gap = None if branch else find_gap(table, name=source.table, position=position.snapshot_id)
        if branch is None and gap is None:
            continue
        waits = source.table if rolled_back_marks(table) else ""
        yield MovedSource(input=name, is_expired=branch is None, sentence=str(branch or gap), waits=waits)


def _is_replaced(seen: StreamPosition, table: str) -> bool:
    return any(one.is_input_table(table) for one in seen.replaced)
