"""Checks that a table has the column whose values an input decodes. A table without a file is checked at the start."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from sluice.declarations.column_types import kind_of
from sluice.declarations.error_messages import did_you_mean, key_text
from sluice.declarations.loaded_declarations import LoadedStream, LoadedTable
from sluice.declarations.scalar_types import listed
from sluice.declarations.yaml_document import KeyPath
from sluice.errors import DeclarationError


def undecodable_columns(stream: LoadedStream, tables: Mapping[str, LoadedTable]) -> Iterator[DeclarationError]:
    """Each column of a declared table that an input cannot decode, with its line.

    Parameters
    ----------
    tables: the declared tables, by name.
    """
    for name, declared in stream.declaration.inputs.items():
        source = declared.declared_source.iceberg
        if source is None or source.value is None or source.table not in tables:
            continue
        kinds = {column.name: kind_of(column.column_type) for column in tables[source.table].declaration.columns}
        fit = ("binary", "string") if source.value.format == "json" else ("binary",)
        place: KeyPath = ("inputs", name, "stream", "iceberg", "value_column")
        meant = "" if source.value_column in kinds else did_you_mean(source.value_column, kinds)
        if (kind := kinds.get(source.value_column)) is None:
            problem = f"{source.table} has no column {source.value_column}; it has {listed(kinds)}"
        elif kind not in fit:
            problem = f"{source.value.format} is in a column of {' or '.join(fit)}, and {source.value_column} is {kind}"
        else:
            continue
        yield DeclarationError(
            f"`{key_text(place)}`: {problem}.",
            location=stream.location(place),
            next_step=meant or "Name the column that holds the values.",
        )
