"""What is declared about the quarantined records of a stream: which columns they can have, and which are masked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sluice.declarations.column_types import PrimitiveType, StructType
from sluice.declarations.input_declaration import SourceDeclaration
from sluice.declarations.loaded_declarations import LoadedTable
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.declarations.value_declaration import Column, ValueColumn

_NOTHING = StructType(())


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordMasks:
    """The masks of a stream.

    masked: the columns that are masked, as names and paths. inputs: the columns of the values of each input that is
    read as a stream; none are known of records that are not decoded. feed: the columns of changes for a table, which
    are rejected as whole rows.
    """

    masked: tuple[str, ...]
    inputs: Mapping[str, StructType]
    feed: StructType = _NOTHING

    def columns_of(self, source: str) -> StructType:
        """The columns of a record. source: the name of its input; empty when it is unknown which it was."""
        return self.inputs.get(source, self.feed if not source else _NOTHING)


def record_masks_of(declaration: StreamDeclaration, tables: Mapping[str, LoadedTable]) -> RecordMasks | None:
    """The masks of a stream; none when it declares none. Pure.

    Parameters
    ----------
    tables: the declared tables, by name.
    """
    if not declaration.masked_columns:
        return None
    inputs = {
        name: _columns_of_source(declared.declared_source, tables)
        for name, declared in declaration.inputs.items()
        if declared.is_stream
    }
    return RecordMasks(masked=declaration.masked_columns, inputs=inputs, feed=_feed_of(declaration, tables))


def _columns_of_source(declared: SourceDeclaration, tables: Mapping[str, LoadedTable]) -> StructType:
    if declared.value is not None:
        return _as_struct(declared.value.columns)
    if declared.files is not None:
        return _as_struct(declared.files.columns)
    source = declared.source
    if isinstance(source, IcebergSource) and source.table in tables:
        return _as_struct(tables[source.table].declaration.columns)
    return _NOTHING


def _feed_of(declaration: StreamDeclaration, tables: Mapping[str, LoadedTable]) -> StructType:
    """The columns of the changes of the only feed; of several it is unknown to which a change belongs."""
    feeds = [
        output.iceberg
        for output in declaration.outputs.values()
        if output.iceberg is not None and output.iceberg.operation_column is not None
    ]
    if len(feeds) != 1 or feeds[0].table not in tables:
        return _NOTHING
    columns = _as_struct(tables[feeds[0].table].declaration.columns).fields
    return StructType((*columns, (str(feeds[0].operation_column), PrimitiveType("string"))))


def _as_struct(columns: Iterable[Column]) -> StructType:
    """The columns as one type; a time that is sent as a number that counts from 1970 is a number."""
    return StructType(
        tuple(
            (
                column.name,
                PrimitiveType("long") if isinstance(column, ValueColumn) and column.unit else column.column_type,
            )
            for column in columns
        )
    )
