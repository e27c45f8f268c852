"""Checks the maintenance of tables: their retention against the streams that write and read them, and the columns that
`maintenance.yaml` names against the tables that it is for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence

from sluice.declarations.declaration_files import KeyPath
from sluice.declarations.error_messages import did_you_mean, key_text
from sluice.declarations.loaded_declarations import LoadedStream, LoadedTable
from sluice.declarations.maintenance_declaration import MaintenanceDeclaration
from sluice.declarations.maintenance_policy import LoadedPolicy, PolicyOrigin
from sluice.declarations.output_declaration import IcebergOutput
from sluice.declarations.source_declarations import IcebergSource
from sluice.errors import DeclarationError

_AT: KeyPath = ("maintenance", "retention")


def retention_problems(
    streams: Sequence[LoadedStream], tables: Iterable[LoadedTable], policy: LoadedPolicy
) -> Iterator[tuple[str, DeclarationError]]:
    """What is wrong with the retention of tables, in the file that declares it, with the name of the table.

    Parameters
    ----------
    streams, tables: the well-formed declarations, tables with what they inherit. policy: of the deployment.
    """
    for table in tables:
        retention = table.declaration.maintenance.retention
        if retention is None:
            continue
        if retention.is_whole:
            for problem, way_out in (*_writers(streams, table), *_readers(streams, table)):
                said = f"the rows of {table.name} cannot go: {problem}."
                yield table.name, _problem(table, policy, said, way_out)
        elif table.own.declared.retention is not None:
            key = "older_than" if retention.older_than is None else "column"
            said = f"{key} is needed: neither the table nor maintenance.yaml declares it."
            yield table.name, _problem(table, policy, said, "")


def _readers(streams: Iterable[LoadedStream], table: LoadedTable) -> Iterator[tuple[str, str]]:
    """The streams that would stop where rows go."""
    for stream in streams:
        for name, declared in stream.declaration.inputs.items():
            source = declared.declared_source.source
            if not declared.is_stream or not isinstance(source, IcebergSource) or source.table != table.name:
                continue
            if source.on_delete == "fail":
                yield (
                    f"{stream.name} (input {name}) reads it as a stream, and stops where rows are deleted",
                    f"Declare `on_delete: skip` for that input, or turn the retention of {table.name} off.",
                )


def _writers(streams: Iterable[LoadedStream], table: LoadedTable) -> Iterator[tuple[str, str]]:
    """The streams that would bring back what went."""
    for stream in streams:
        for declared in stream.declaration.outputs.values():
            output = declared.iceberg
            if output is None or output.table != table.name:
                continue
            if output.mode == "complete":
                problem = f"each batch of {stream.name} replaces all rows, and brings them back"
                yield problem, "Leave old rows out in the transformation, or turn the retention off."
            elif (column := _newer_by(output, table)) is not None:
                yield (
                    f"{stream.name} knows a newer row by {column}, so that an older one of the same keys could take "
                    "the place of one that went",
                    f"Declare `column: {column}`, or turn the retention of {table.name} off.",
                )


def _newer_by(output: IcebergOutput, table: LoadedTable) -> str | None:
    """The column that says which row of a merge is newer, when it is another one than the retention's."""
    retention = table.declaration.maintenance.retention
    first = next(iter(output.ordering), None)
    return first if retention is not None and first not in (None, retention.column) else None


def _problem(table: LoadedTable, policy: LoadedPolicy, problem: str, way_out: str) -> DeclarationError:
    """A problem at the place that declares the retention: of one that is inherited, in `maintenance.yaml`."""
    values = [one for one in policy.values_of(table.own) if one.key.startswith("retention.") and one.place is not None]
    is_own = any(one.origin is PolicyOrigin.TABLE for one in values)
    shared = next((one.place for one in values if one.place is not None), None)
    location = table.location(_AT) if is_own or shared is None else shared
    return DeclarationError(f"`{key_text(_AT)}`: {problem}", location=location, next_step=way_out)


def shared_column_problems(policy: LoadedPolicy, tables: Sequence[LoadedTable]) -> Iterator[DeclarationError]:
    """The columns that fit no table: what is said of them would silently never hold.

    Parameters
    ----------
    tables: all that are declared.
    """
    for path, declared in _places(policy):
        owns = [one.own for one in tables if path[0] == "all_tables" or one.name.startswith(f"{path[1]}.")]
        retention, compaction = declared.retention, declared.compaction
        if retention is not None and retention.column is not None:
            times = [one.times for one in owns]
            yield from _unfit(policy, (*path, "retention", "column"), [retention.column], times, "is partitioned by")
        if compaction is not None and compaction.z_order:
            columns = [one.z_orderable for one in owns]
            yield from _unfit(
                policy, (*path, "compaction", "z_order"), compaction.z_order, columns, "can be ordered by"
            )


def _places(policy: LoadedPolicy) -> Iterator[tuple[KeyPath, MaintenanceDeclaration]]:
    yield ("all_tables",), policy.declaration.all_tables
    yield from ((("namespaces", name), one) for name, one in policy.declaration.namespaces.items())


def _unfit(
    policy: LoadedPolicy, path: KeyPath, named: Sequence[str], fitting: Sequence[Collection[str]], what: str
) -> Iterator[DeclarationError]:
    """fitting: the columns of each table that it is for, of which one that has all the named ones is enough."""
    if not fitting or policy.document is None or any(set(named) <= set(one) for one in fitting):
        return
    known = sorted(set().union(*fitting))
    wrong = next((name for name in named if name not in known), named[0])
    yield DeclarationError(
        f"`{key_text(path)}`: no table that it is for {what} {', '.join(named)}.",
        location=policy.document.location(path),
        next_step=did_you_mean(wrong, known),
    )
