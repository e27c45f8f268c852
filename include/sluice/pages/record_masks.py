"""Which columns are masked in the quarantined records of a stream: those declared, and beside them each of bytes.

A column of bytes is Base64 in a record that is written as JSON, so that a masked field may lie in it unseen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sluice.declarations.column_types import ColumnType, FixedType, ListType, MapType, PrimitiveType, StructType
from sluice.declarations.input_declaration import SourceDeclaration
from sluice.declarations.loaded_declarations import LoadedTable
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration

_BYTES_OF_RECORDS = {"kafka": ("key", "value", "headers"), "kinesis": ("data",)}
"""The columns of bytes of a record whose value is not decoded, by the kind of the source."""


def masked_columns_of(declaration: StreamDeclaration, tables: Mapping[str, LoadedTable]) -> tuple[str, ...]:
    """The columns that are masked, as names and paths; none when the stream declares none. Pure.

    Parameters
    ----------
    tables: the declared tables, by name.
    """
    if not declaration.masked_columns:
        return ()
    found = [
        path
        for declared in declaration.inputs.values()
        if declared.is_stream
        for path in _bytes_of_source(declared.declared_source, tables)
    ]
    for output in declaration.outputs.values():
        if output.iceberg is not None and output.iceberg.operation_column is not None:
            found += _bytes_of_table(output.iceberg.table, tables)
    return tuple(dict.fromkeys((*declaration.masked_columns, *found)))


def _bytes_of_source(declared: SourceDeclaration, tables: Mapping[str, LoadedTable]) -> Iterator[str]:
    source = declared.source
    if isinstance(source, IcebergSource):
        yield from _bytes_of_table(source.table, tables)
    elif declared.value is None:
        yield from _BYTES_OF_RECORDS.get(declared.kind, ())
    columns = declared.value.columns if declared.value is not None else ()
    for column in declared.files.columns if declared.files is not None else columns:
        yield from _bytes_in(column.column_type, column.name)


def _bytes_of_table(name: str, tables: Mapping[str, LoadedTable]) -> Iterator[str]:
    if name in tables:
        for column in tables[name].declaration.columns:
            yield from _bytes_in(column.column_type, column.name)


def _bytes_in(kind: ColumnType, path: str) -> Iterator[str]:
    """The paths within a value that lead to bytes; a map with bytes is masked as a whole."""
    match kind:
        case PrimitiveType("binary") | FixedType():
            yield path
        case ListType(element):
            yield from _bytes_in(element, path)
        case MapType(value=value) if any(_bytes_in(value, path)):
            yield path
        case StructType(fields):
            for name, inner in fields:
                yield from _bytes_in(inner, f"{path}.{name}")
