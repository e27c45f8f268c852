"""Checks that a masked column exists: a misspelt name would mask nothing.

The columns are known where a stream decodes its inputs itself, and where a query reads files or declared tables. A
Python function may put any text into the quarantine, and bytes that are not decoded have any fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from sluice.declarations.column_types import ColumnType, ListType, MapType, PrimitiveType, StructType
from sluice.declarations.error_messages import did_you_mean, key_text
from sluice.declarations.input_declaration import SourceDeclaration
from sluice.declarations.loaded_declarations import LoadedStream, LoadedTable
from sluice.declarations.scalar_types import listed
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.value_declaration import Column
from sluice.errors import DeclarationError


def unknown_masked_columns(stream: LoadedStream, tables: Mapping[str, LoadedTable]) -> Iterator[DeclarationError]:
    """The masked columns that no quarantined record of a stream can have, each with its line.

    Parameters
    ----------
    tables: the declared tables, by name.
    """
    known = _columns_of(stream, tables)
    if known is None:
        return
    for index, path in enumerate(stream.declaration.masked_columns):
        problem = _problem(path.split("."), StructType(tuple(known.items())), of="")
        if problem is not None:
            sentence, allowed, given = problem
            place = ("masked_columns", index)
            yield DeclarationError(
                f"`{key_text(place)}`: {sentence}.",
                location=stream.location(place),
                next_step=did_you_mean(given, allowed),
            )


def _columns_of(stream: LoadedStream, tables: Mapping[str, LoadedTable]) -> dict[str, ColumnType] | None:
    """The columns that quarantined records can have; none when they are not all known."""
    declaration, known = stream.declaration, dict[str, ColumnType]()
    for declared in declaration.inputs.values():
        if declared.is_stream:
            is_query = declaration.transformation.sql is not None
            columns = _columns_of_source(declared.declared_source, tables, is_query=is_query)
            if columns is None:
                return None
            known |= {column.name: column.column_type for column in columns}
    for output in declaration.outputs.values():
        feed = output.iceberg
        if feed is not None and feed.operation_column is not None:  # the whole change is put into the quarantine
            if feed.table not in tables:
                return None
            known |= {column.name: column.column_type for column in tables[feed.table].declaration.columns}
            known[feed.operation_column] = PrimitiveType("string")
    return known


def _columns_of_source(
    declared: SourceDeclaration, tables: Mapping[str, LoadedTable], *, is_query: bool
) -> Sequence[Column] | None:
    if declared.value is not None:
        return declared.value.columns or None
    if declared.files is not None and (is_query or declared.files.on_malformed == "quarantine"):
        return declared.files.columns or None
    source = declared.source
    if is_query and isinstance(source, IcebergSource) and source.table in tables:
        return tables[source.table].declaration.columns
    return None


def _problem(names: Sequence[str], kind: ColumnType, *, of: str) -> tuple[str, Sequence[str], str] | None:
    """What is wrong with a path, what is allowed in the place of which name; None when it leads somewhere.

    Parameters
    ----------
    names: the rest of the path, within a value of this type. of: the column or field with the value; empty at first.
    """
    if not names:
        return None
    match kind:
        case ListType(element):
            return _problem(names, element, of=of)
        case MapType(value=value):
            return _problem(names[1:], value, of=f"{of}.{names[0]}")
        case StructType(fields):
            known = dict(fields)
            if names[0] not in known:
                has = f"the field {of} has no field {names[0]}" if of else f"no input has a column {names[0]}"
                return f"{has}; {'it has' if of else 'there are'} {listed(known)}", list(known), names[0]
            return _problem(names[1:], known[names[0]], of=f"{of}.{names[0]}".removeprefix("."))
        case PrimitiveType("string"):
            return None  # it may be JSON itself
    return f"{of} has no fields, so that it is masked by its own name alone", [], names[0]
