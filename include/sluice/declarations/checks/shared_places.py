"""Checks what meets in one table or folder: streams with each other and with themselves, and the retention of a table.

Rows would come back to the stream that wrote them, be missing or taken away where another one reads or writes, or stop
a reader.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from sluice.declarations.declaration_files import KeyPath
from sluice.declarations.error_messages import key_text
from sluice.declarations.loaded_declarations import LoadedStream, LoadedTable
from sluice.declarations.maintenance_policy import LoadedPolicy, PolicyOrigin
from sluice.declarations.output_declaration import IcebergOutput
from sluice.declarations.source_declarations import FilesSource, IcebergSource
from sluice.errors import DeclarationError

_LONGEST_CIRCLE = 10
"""How many streams of a circle are named."""

_REWRITING_MODES = frozenset({"merge", "complete", "overwrite_partitions"})
_RETENTION: KeyPath = ("maintenance", "retention")


def circles(streams: Sequence[LoadedStream]) -> Iterator[DeclarationError]:
    """Streams whose rows come back to them through Iceberg tables: they would work for ever, and multiply their rows.

    All streams of a circle are refused: which of them is the mistake, only a person can say.
    """
    readers: dict[str, list[str]] = {}
    for stream in streams:
        for _, table in _tables_streamed(stream):
            readers.setdefault(table, []).append(stream.name)
    followers = {
        stream.name: [reader for table in stream.declaration.tables_written for reader in readers.get(table, ())]
        for stream in streams
    }
    for stream in streams:
        way = _way_back(stream.name, followers)
        if way:
            path = next(path for path, table in _tables_streamed(stream) if _is_written(table, way[-1], streams))
            passed = " → ".join([stream.name, *way[:_LONGEST_CIRCLE], *(["…"] if len(way) > _LONGEST_CIRCLE else [])])
            yield _problem(
                stream,
                path,
                f"its own rows come back to it: {passed}{'' if way[-1] == stream.name else f' → {stream.name}'}.",
                next_step="Write into a table that is not read here, or read it as a static input.",
            )


def _tables_streamed(stream: LoadedStream) -> Iterator[tuple[KeyPath, str]]:
    for name, declared in stream.declaration.inputs.items():
        source = declared.declared_source.source
        if declared.is_stream and isinstance(source, IcebergSource):
            yield ("inputs", name, "stream", "iceberg", "table"), source.table


def _is_written(table: str, writer: str, streams: Sequence[LoadedStream]) -> bool:
    return any(stream.name == writer and table in stream.declaration.tables_written for stream in streams)


def _way_back(start: str, followers: Mapping[str, Sequence[str]]) -> list[str]:
    """The streams from `start` to the one that feeds it, the shortest way; empty when its rows do not come back."""
    came_from: dict[str, str | None] = {start: None}
    waiting = [start]
    for current in waiting:  # it grows while it is walked through
        for follower in followers.get(current, ()):
            if follower == start:
                return _back(current, came_from)
            if follower not in came_from:
                came_from[follower] = current
                waiting.append(follower)
    return []


def _back(last: str, came_from: Mapping[str, str | None]) -> list[str]:
    way: list[str] = []
    current: str | None = last
    while current is not None:
        way.append(current)
        current = came_from[current]
    return way[-2::-1] or way


def self_triggers(stream: LoadedStream) -> Iterator[DeclarationError]:
    """A schedule that waits for the stream's own output: each run would start the next."""
    schedule = stream.declaration.schedule
    for index, table in enumerate(schedule.tables if schedule is not None else ()):
        if table in stream.declaration.tables_written:
            yield _problem(
                stream,
                ("schedule", "tables", index),
                f"the stream itself writes {table}, so that each run would start the next.",
                next_step="Name the tables that it reads.",
            )


def files_read_again(stream: LoadedStream) -> Iterator[DeclarationError]:
    """Files that are written into a folder which the same stream reads."""
    for name, declared in stream.declaration.inputs.items():
        source = declared.declared_source.source
        if not declared.is_stream or not isinstance(source, FilesSource):
            continue
        for output_name, output in stream.declaration.outputs.items():
            files = output.files
            if files is not None and files.connection == source.connection and _meet(source.path, files.path):
                yield _problem(
                    stream,
                    ("outputs", output_name, "files", "path"),
                    f"the input {name} reads this folder, so that the stream would read what it writes.",
                    next_step="Write into a folder of its own.",
                )


def _meet(one: str, other: str) -> bool:
    """Whether one of two paths lies in the other; a `*` stands for any name."""
    first, second = PurePosixPath(one.partition("*")[0]), PurePosixPath(other)
    return first.is_relative_to(second) or second.is_relative_to(first)


def replaced_rows(streams: Sequence[LoadedStream]) -> Iterator[DeclarationError]:
    """Streams that replace all rows of a table (`complete`) into which another stream writes, too."""
    writers: dict[str, list[LoadedStream]] = {}
    for stream in streams:
        for table in dict.fromkeys(stream.declaration.tables_written):
            writers.setdefault(table, []).append(stream)
    for stream in streams:
        for name, declared in stream.declaration.outputs.items():
            output = declared.iceberg
            if output is None or output.mode != "complete":
                continue
            others = [writer.name for writer in writers[output.table] if writer is not stream]
            if others:
                yield _problem(
                    stream,
                    ("outputs", name, "iceberg", "mode"),
                    f"`complete` replaces all rows of {output.table} with each batch, and {others[0]} writes, too.",
                    next_step="Write into a table of its own.",
                )


def readers_of_rewritten_tables(streams: Iterable[LoadedStream]) -> Iterator[DeclarationError]:
    """A merge rewrites rows, and Iceberg's stream reader either stops at it or leaves out what it inserted."""
    rewriting = {
        output.table: (stream.name, output.mode)
        for stream in streams
        for declared in stream.declaration.outputs.values()
        if (output := declared.iceberg) is not None and output.mode in _REWRITING_MODES
    }
    for stream in streams:
        for name, declared in stream.declaration.inputs.items():
            source = declared.declared_source.source
            if declared.is_stream and isinstance(source, IcebergSource) and source.table in rewriting:
                writer, mode = rewriting[source.table]
                yield _problem(
                    stream,
                    ("inputs", name, "stream", "iceberg", "table"),
                    f"{writer} writes {source.table} in mode {mode}, which rewrites rows, and a stream reads only rows "
                    "that are appended: it would stop there, or leave new rows out.",
                    next_step="Read the table as a static input, or read the table it is made from.",
                )


def outputs_that_meet(stream: LoadedStream) -> Iterator[DeclarationError]:
    """Outputs of one stream into one table."""
    first_by_table: dict[str, str] = {}
    for name, declared in stream.declaration.outputs.items():
        output = declared.iceberg
        if output is None:
            continue
        first = first_by_table.setdefault(output.table, name)
        if first != name:
            yield _problem(
                stream,
                ("outputs", name, "iceberg", "table"),
                f"the output {first} already writes into {output.table}, and a batch marks a table once.",
                next_step="Unite the rows in the transformation.",
            )


def folders_that_meet(stream: LoadedStream) -> Iterator[DeclarationError]:
    """A batch has one folder below the path of an output, which is complete when the first output has written it."""
    first_by_place: dict[tuple[str, str], str] = {}
    for name, declared in stream.declaration.outputs.items():
        output = declared.files if declared.files is not None else declared.delta
        if output is None:
            continue
        first = first_by_place.setdefault((output.connection, output.path.strip("/")), name)
        if first != name:
            yield _problem(
                stream,
                ("outputs", name, declared.kind, "path"),
                f"the output {first} already writes into the folder {output.path} of {output.connection}.",
                next_step="Give each output a folder of its own, or unite the rows in the transformation.",
            )


def _problem(stream: LoadedStream, path: KeyPath, sentence: str, *, next_step: str) -> DeclarationError:
    return DeclarationError(f"`{key_text(path)}`: {sentence}", location=stream.location(path), next_step=next_step)


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
            for problem, way_out in (*_returning_writers(streams, table), *_stopped_readers(streams, table)):
                said = f"the rows of {table.name} cannot go: {problem}."
                yield table.name, _retention_problem(table, policy, said, way_out)
        elif table.own.declared.retention is not None:
            key = "older_than" if retention.older_than is None else "column"
            said = f"{key} is needed: neither the table nor maintenance.yaml declares it."
            yield table.name, _retention_problem(table, policy, said, "")


def _stopped_readers(streams: Iterable[LoadedStream], table: LoadedTable) -> Iterator[tuple[str, str]]:
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


def _returning_writers(streams: Iterable[LoadedStream], table: LoadedTable) -> Iterator[tuple[str, str]]:
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


def _retention_problem(table: LoadedTable, policy: LoadedPolicy, problem: str, way_out: str) -> DeclarationError:
    """A problem at the place that declares the retention: of one that is inherited, in `maintenance.yaml`."""
    values = [one for one in policy.values_of(table.own) if one.key.startswith("retention.") and one.place is not None]
    is_own = any(one.origin is PolicyOrigin.TABLE for one in values)
    shared = next((one.place for one in values if one.place is not None), None)
    location = table.location(_RETENTION) if is_own or shared is None else shared
    return DeclarationError(f"`{key_text(_RETENTION)}`: {problem}", location=location, next_step=way_out)
