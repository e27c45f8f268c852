"""What a person may change in a declaration when a sender has changed its schema, as a patch in YAML.

Nothing is changed by itself: the patch says what would take the new schema in, for a person to accept. It is made of
the changes that were seen and of the declaration as it is now. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from sluice.declarations.input_declaration import InputDeclaration
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.declarations.value_declaration import Column
from sluice.ledger.source_schemas import FieldChange, SourceSchema, input_of
from sluice.messages.message_parts import one_line

_TYPES = {
    "bool": "boolean",
    "int8": "int",
    "int16": "int",
    "int32": "int",
    "int64": "long",
    "float": "float",
    "double": "double",
    "string": "string",
    "large_string": "string",
    "text": "string",
    "binary": "binary",
    "large_binary": "binary",
    "date32[day]": "date",
    "an instant in microseconds": "timestamptz",
    "an instant in milliseconds": "timestamptz",
    "a time without a zone in microseconds": "timestamp",
    "a time without a zone in milliseconds": "timestamp",
}
"""The type of a column by that of a field in the words of files; what is not here is a type of columns or unknown."""

_OF_COLUMNS = re.compile(r"(boolean|int|long|float|double|date|timestamp|timestamptz|string|uuid|binary|fixed\[\d+\])")
_DECIMAL = re.compile(r"decimal(?:128|256)?\((\d+), ?(-?\d+)\)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_PREFIX = re.compile(r"^(required|optional) ")
_ID = re.compile(r", id \d+$")

MOST_CHANGES = 50
"""How many changes a patch has lines for; the others are counted."""


def patches_of(declaration: StreamDeclaration, schemas: Sequence[SourceSchema]) -> Mapping[str, str]:
    """The patches for the newest changes of the inputs of a stream, by the names under which their schemas are kept."""
    found = {one.input: patch_of(declaration, one.input, one.changes) for one in schemas}
    return {name: patch for name, patch in found.items() if patch}


def patch_of(declaration: StreamDeclaration, name: str, changes: Sequence[FieldChange]) -> str:
    """The patch of a stream's declaration for changes of the schema of an input; empty without a change.

    Parameters
    ----------
    name: the input, as its schema is kept.
    """
    declared = declaration.inputs.get(input_of(name))
    if not changes or declared is None:
        return ""
    lines = [f"# {declaration.stream}.stream.yaml: accept what is right, and delete the rest"]
    lines += _patch(declaration, declared, input_of(name), is_of_values=name != input_of(name), changes=changes)
    return "\n".join(map(one_line, lines))


def _patch(
    declaration: StreamDeclaration,
    declared: InputDeclaration,
    name: str,
    *,
    is_of_values: bool,
    changes: Sequence[FieldChange],
) -> Iterator[str]:
    source = declared.declared_source
    # A table with values has a schema of its own, which no declaration repeats.
    value = None if isinstance(source.source, IcebergSource) and not is_of_values else source.value
    holder = value if value is not None else source.files
    if holder is None:
        yield f"# The input {name} has no columns of its own: those of its source are read when a run starts."
        yield from _comments(changes)
    elif holder.schema_file is not None:
        yield f"# Put the sender's schema into {holder.schema_file}, which the input {name} is read with."
        yield from _comments(changes)
    elif value is not None and value.subject is not None:
        version = "the newest version" if value.version is None else f"version {value.version}"
        yield f"# The input {name} is read with {version} of {value.subject} since the run began."
        yield from _comments(changes)
    else:
        yield "inputs:"
        yield f"  {name}:"
        yield f"    {'stream' if declared.stream is not None else 'static'}:"
        yield f"      {source.kind}:"
        margin = "        "
        if value is not None:
            yield f"{margin}value:"
            margin += "  "
        yield f"{margin}columns:"
        yield from (f"{margin}  {line}" for line in _columns(holder.columns, changes))
    if any(not one.was for one in changes):
        yield f"# A new column is published once the transformation selects it and {_tables(declaration)} has it."


def _tables(declaration: StreamDeclaration) -> str:
    return " or ".join(declaration.tables_written) or "the output"


def _comments(changes: Sequence[FieldChange]) -> Iterator[str]:
    yield from (f"# {change}" for change in changes[:MOST_CHANGES])
    yield from _rest(changes)


def _rest(changes: Sequence[FieldChange]) -> Iterator[str]:
    if len(changes) > MOST_CHANGES:
        yield f"# and {len(changes) - MOST_CHANGES:,} more changes"


def _columns(columns: Sequence[Column], changes: Sequence[FieldChange]) -> Iterator[str]:
    known = {column.name.lower(): column for column in columns}
    for change in changes[:MOST_CHANGES]:
        column, found = known.get(change.field.lower()), type_of(change.now)
        if "." in change.field:
            yield f"# {change}: it lies in a column of which the type is to be changed"
        elif not change.now and column is None:
            yield f"# {change}, and was not declared"
        elif not change.now:
            is_required = column is not None and column.required
            why = "a record without it is rejected: leave `required` out" if is_required else "it is null from now on"
            yield f"# {change}: {why}, or delete the column"
        elif found is None:
            yield f"# {change}: no single column has this type"
        elif _NAME.fullmatch(change.field) is None:
            yield f"# {change}: it is no name of a column, which may take it by `field`"
        elif column is not None and column.type == found:
            yield f"# {change}: the declared {found} stays"
        else:
            yield f"- {{name: {change.field}, type: {found}}}  # {_evidence(change)}"
    yield from _rest(changes)


def _evidence(change: FieldChange) -> str:
    return f"was {change.was}, is {change.now}" if change.was else f"new: {change.now}"


def type_of(words: str) -> str | None:
    """The type of a column that takes a field of a type in words; none when no single one does."""
    plain = _ID.sub("", _PREFIX.sub("", words))
    if (found := _TYPES.get(plain)) is not None:
        return found
    if (decimal := _DECIMAL.fullmatch(plain)) is not None:
        return f'"decimal({decimal[1]}, {decimal[2]})"'
    return plain if _OF_COLUMNS.fullmatch(plain) else None
