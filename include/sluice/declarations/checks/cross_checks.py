"""Checks what one file alone cannot show: names across files, tables and columns, the transformation's file, and the
connections of a deployment."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice

from sluice.declarations.checks.backfill_checks import backfill_problems, unfollowable_sources
from sluice.declarations.checks.combinations import forbidden_combinations, refused_parts, unobservable_limits
from sluice.declarations.checks.rule_checks import (
    referenced_problems,
    rule_problems,
    unknown_expected_columns,
    unknown_masked_columns,
)
from sluice.declarations.checks.shared_places import (
    circles,
    files_read_again,
    folders_that_meet,
    outputs_that_meet,
    readers_of_rewritten_tables,
    replaced_rows,
    self_triggers,
)
from sluice.declarations.checks.transformation_files import TransformationFiles
from sluice.declarations.column_types import holds_map, kind_of
from sluice.declarations.declaration_files import KeyPath
from sluice.declarations.error_messages import MOST_PROBLEMS, did_you_mean, key_text
from sluice.declarations.loaded_declarations import (
    STREAM_SUFFIX,
    TABLE_SUFFIX,
    LoadedStream,
    LoadedTable,
    declared_name,
)
from sluice.declarations.output_declaration import IcebergOutput
from sluice.declarations.scalar_types import listed
from sluice.declarations.source_declarations import IcebergSource
from sluice.errors import DeclarationError

PLATFORM_NAMESPACES = frozenset({"backfill_staging", "choose_tables", "quarantine", "staging"})
"""Tables here belong to streams and come with them; a declaration of their own would fight the platform's. The name
`choose_tables` is that of a task beside the groups of tasks, one for each namespace, in the DAGs of the platform."""

_EVENT_TIME_TYPES = ("timestamp", "timestamptz")


def find_problems(
    *,
    streams: Sequence[LoadedStream],
    tables: Sequence[LoadedTable],
    table_names: Collection[str],
    unreadable: Collection[str] = (),
) -> list[DeclarationError]:
    """What is wrong between declarations that are each well formed.

    Parameters
    ----------
    streams, tables: the well-formed declarations.
    table_names: the names of all tables that have a file; of one that is not in `tables` only the name is known.
    unreadable: those of them whose file may have rules that cannot be read.
    """
    by_name = {table.name: table for table in tables}
    known = {*table_names, *by_name, *(s.declaration.quarantine_table for s in streams if s.declaration.quarantine)}
    files = TransformationFiles()
    return [
        *_names_differ_from_files(streams, key="stream", suffix=STREAM_SUFFIX),
        *_names_differ_from_files(tables, key="table", suffix=TABLE_SUFFIX),
        *_duplicates(streams, key="stream"),
        *_duplicates(tables, key="table"),
        *_platform_tables(tables),
        *readers_of_rewritten_tables(streams),
        *unfollowable_sources(streams),
        *circles(streams),
        *replaced_rows(streams),
        *(problem for stream in streams for problem in (*self_triggers(stream), *files_read_again(stream))),
        *(problem for table in tables for problem in islice(unknown_expected_columns(table), MOST_PROBLEMS)),
        *(problem for stream in streams for problem in islice(refused_parts(stream.document), MOST_PROBLEMS)),
        *(problem for table in tables for problem in islice(refused_parts(table.document), MOST_PROBLEMS)),
        *(problem for stream in streams for problem in islice(forbidden_combinations(stream), MOST_PROBLEMS)),
        *(problem for stream in streams for problem in islice(unobservable_limits(stream), MOST_PROBLEMS)),
        *(problem for stream in streams for problem in islice(_unknown_tables(stream, known), MOST_PROBLEMS)),
        *(problem for stream in streams for problem in islice(outputs_that_meet(stream), MOST_PROBLEMS)),
        *(problem for stream in streams for problem in islice(folders_that_meet(stream), MOST_PROBLEMS)),
        *(problem for stream in streams for problem in islice(_unknown_columns(stream, by_name), MOST_PROBLEMS)),
        *(found for stream in streams for found in islice(rule_problems(stream, by_name, unreadable), MOST_PROBLEMS)),
        *(found for one in streams for found in islice(referenced_problems(one, by_name, known), MOST_PROBLEMS)),
        *(found for one in tables for found in islice(referenced_problems(one, by_name, known), MOST_PROBLEMS)),
        *(found for stream in streams for found in islice(unknown_masked_columns(stream, by_name), MOST_PROBLEMS)),
        *(problem for stream in streams for problem in _undecodable_columns(stream, by_name)),
        *(problem for stream in streams for problem in islice(backfill_problems(stream, by_name), MOST_PROBLEMS)),
        *(problem for stream in streams for problem in islice(files.problems(stream), MOST_PROBLEMS)),
    ]


def _names_differ_from_files(
    loaded: Iterable[LoadedStream | LoadedTable], *, key: str, suffix: str
) -> Iterator[DeclarationError]:
    for one in loaded:
        if one.name != declared_name(one.file):
            yield _problem(
                one,
                (key,),
                f"the name is the file's name, got {one.name!r} in {one.file.name}.",
                next_step=f"Rename the file to {one.name}{suffix}, or correct the name.",
            )


def _duplicates(loaded: Iterable[LoadedStream | LoadedTable], *, key: str) -> Iterator[DeclarationError]:
    by_name: Mapping[str, list[LoadedStream | LoadedTable]] = defaultdict(list)
    for one in loaded:
        if one.name == declared_name(one.file):  # a file that names another one's stream is wrong by itself
            by_name[one.name].append(one)
    for name, group in by_name.items():
        for one in group if len(group) > 1 else ():
            others = ", ".join(str(other.location((key,))) for other in group if other is not one)
            yield _problem(
                one,
                (key,),
                f"{name} is also declared in {others}.",
                next_step="Keep one of them, or give them different names.",
            )


def _platform_tables(tables: Iterable[LoadedTable]) -> Iterator[DeclarationError]:
    for table in tables:
        if table.declaration.namespace in PLATFORM_NAMESPACES:
            yield _problem(
                table,
                ("table",),
                f"tables in {table.declaration.namespace} are the platform's and come with their streams.",
                next_step="Use another namespace.",
            )


def _unknown_tables(stream: LoadedStream, known: Collection[str]) -> Iterator[DeclarationError]:
    for path, table in _named_tables(stream):
        if path[0] == "outputs" and table.partition(".")[0] in PLATFORM_NAMESPACES:
            yield _problem(stream, path, f"{table} is the platform's; a stream writes into tables of its own.")
        elif table not in known:
            yield _problem(
                stream,
                path,
                f"no file declares the table {table}.",
                next_step=did_you_mean(table, known) or f"Declare it in {table}{TABLE_SUFFIX}.",
            )


def _named_tables(stream: LoadedStream) -> Iterator[tuple[KeyPath, str]]:
    declaration = stream.declaration
    for name, declared in declaration.inputs.items():
        source = declared.declared_source.source
        if isinstance(source, IcebergSource):
            yield ("inputs", name, "stream" if declared.is_stream else "static", "iceberg", "table"), source.table
    for name, output in _iceberg_outputs(stream):
        yield ("outputs", name, "iceberg", "table"), output.table
    if declaration.schedule is not None:
        for index, table in enumerate(declaration.schedule.tables):
            yield ("schedule", "tables", index), table


def _iceberg_outputs(stream: LoadedStream) -> Iterator[tuple[str, IcebergOutput]]:
    for name, declared in stream.declaration.outputs.items():
        if isinstance(declared.output, IcebergOutput):
            yield name, declared.output


def _unknown_columns(stream: LoadedStream, tables: Mapping[str, LoadedTable]) -> Iterator[DeclarationError]:
    for name, output in _iceberg_outputs(stream):
        table = tables.get(output.table)
        if table is None:
            continue  # it is unknown or broken, which is another problem's business
        for path, column in _named_columns(output):
            found = table.declaration.column(column)
            if found is None:
                yield _no_such_column(stream, ("outputs", name, "iceberg", *path), column, table)
            elif holds_map(found.column_type):
                at: KeyPath = ("outputs", name, "iceberg", *path)
                yield _problem(stream, at, f"{column} is a {found.type}, and maps are not compared with each other.")
        if output.operation_column is not None and table.declaration.column(output.operation_column) is not None:
            yield _problem(
                stream,
                ("outputs", name, "iceberg", "operation_column"),
                f"{output.operation_column} is a column of {table.name}, and the operation is never published.",
                next_step="Give the operation another name in the transformation.",
            )
    for name, declared in stream.declaration.inputs.items():
        source = declared.declared_source.source
        table = tables.get(source.table) if isinstance(source, IcebergSource) else None
        if table is not None and declared.watermark is not None:
            yield from _watermark_problems(stream, name, declared.watermark.column, table)


def _named_columns(output: IcebergOutput) -> Iterator[tuple[KeyPath, str]]:
    yield from ((("keys", index), key) for index, key in enumerate(output.keys))
    if output.ordering_column is not None:
        yield ("ordering_column",), output.ordering_column
    yield from ((("ordering_columns", index), column) for index, column in enumerate(output.ordering_columns))


def _watermark_problems(
    stream: LoadedStream, input_name: str, column_name: str, table: LoadedTable
) -> Iterator[DeclarationError]:
    path: KeyPath = ("inputs", input_name, "watermark", "column")
    column = table.declaration.column(column_name)
    if column is None:
        yield _no_such_column(stream, path, column_name, table)
    elif kind_of(column.column_type) not in _EVENT_TIME_TYPES:
        yield _problem(
            stream, path, f"event time is a {' or '.join(_EVENT_TIME_TYPES)}, and {column_name} is a {column.type}."
        )


def _undecodable_columns(stream: LoadedStream, tables: Mapping[str, LoadedTable]) -> Iterator[DeclarationError]:
    """Each column of a declared table that an input cannot decode. A table without a file is checked at the start."""
    for name, declared in stream.declaration.inputs.items():
        source = declared.declared_source.iceberg
        if source is None or source.value is None or source.table not in tables:
            continue
        kinds = {column.name: kind_of(column.column_type) for column in tables[source.table].declaration.columns}
        fit = ("binary", "string") if source.value.format == "json" else ("binary",)
        meant = "" if source.value_column in kinds else did_you_mean(source.value_column, kinds)
        if (kind := kinds.get(source.value_column)) is None:
            problem = f"{source.table} has no column {source.value_column}; it has {listed(kinds)}."
        elif kind not in fit:
            problem = (
                f"{source.value.format} is in a column of {' or '.join(fit)}, and {source.value_column} is {kind}."
            )
        else:
            continue
        place: KeyPath = ("inputs", name, "stream", "iceberg", "value_column")
        yield _problem(stream, place, problem, next_step=meant or "Name the column that holds the values.")


def _no_such_column(stream: LoadedStream, path: KeyPath, column: str, table: LoadedTable) -> DeclarationError:
    known = [declared.name for declared in table.declaration.columns]
    return _problem(
        stream,
        path,
        f"{table.name} has no column {column}; it has {listed(known)}.",
        next_step=did_you_mean(column, known),
    )


def _problem(
    loaded: LoadedStream | LoadedTable, path: KeyPath, sentence: str, *, next_step: str = ""
) -> DeclarationError:
    return DeclarationError(f"`{key_text(path)}`: {sentence}", location=loaded.location(path), next_step=next_step)


_KINDS: Mapping[str, str] = {"kafka": "kafka", "files": "files", "delta": "files", "jdbc": "jdbc"}
"""The kind of connection that a source or output needs, by its own kind."""


def unknown_connections(
    streams: Iterable[LoadedStream], connections: Mapping[str, str]
) -> tuple[DeclarationError, ...]:
    """The connections that streams name and the deployment does not have, or has as another kind.

    Parameters
    ----------
    streams: the declarations.
    connections: the kind of each connection of the deployment, by name.
    """
    return tuple(problem for stream in streams for problem in _problems(stream, connections))


def _problems(stream: LoadedStream, connections: Mapping[str, str]) -> Iterator[DeclarationError]:
    for path, name, kind in _named_connections(stream):
        if name not in connections:
            yield DeclarationError(
                f"`{key_text(path)}`: the deployment has no connection {name}; "
                f"it has {', '.join(sorted(connections)) or 'none'}.",
                location=stream.location(path),
                next_step=did_you_mean(name, connections)
                or f"Set SLUICE_CONNECTIONS__{name.upper()}__KIND and the rest.",
            )
        elif connections[name] != _KINDS.get(kind, kind):
            yield DeclarationError(
                f"`{key_text(path)}`: the connection {name} is of kind {connections[name]}, "
                f"and {kind} needs one of kind {_KINDS.get(kind, kind)}.",
                location=stream.location(path),
            )


def _named_connections(stream: LoadedStream) -> Iterator[tuple[KeyPath, str, str]]:
    for name, declared in stream.declaration.inputs.items():
        way = "stream" if declared.is_stream else "static"
        kind = declared.declared_source.kind
        value = declared.declared_source.value
        if value is not None and value.registry is not None:
            yield ("inputs", name, way, kind, "value", "registry"), value.registry, "schema_registry"
        if (connection := getattr(declared.declared_source.source, "connection", None)) is not None:
            yield ("inputs", name, way, kind, "connection"), connection, kind
    for name, output in stream.declaration.outputs.items():
        if (connection := getattr(output.output, "connection", None)) is not None:
            yield ("outputs", name, output.kind, "connection"), connection, output.kind
