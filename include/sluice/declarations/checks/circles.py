"""Streams that feed themselves, and streams that take each other's rows away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from sluice.declarations.declaration_files import KeyPath
from sluice.declarations.error_messages import key_text
from sluice.declarations.loaded_declarations import LoadedStream
from sluice.declarations.source_declarations import FilesSource, IcebergSource
from sluice.errors import DeclarationError

_LONGEST_CIRCLE = 10
"""How many streams of a circle are named."""


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


def _meet(one: str, other: str) -> bool:
    """Whether one of two paths lies in the other; a `*` stands for any name."""
    first, second = PurePosixPath(one.partition("*")[0]), PurePosixPath(other)
    return first.is_relative_to(second) or second.is_relative_to(first)


def _problem(stream: LoadedStream, path: KeyPath, sentence: str, *, next_step: str) -> DeclarationError:
    return DeclarationError(f"`{key_text(path)}`: {sentence}", location=stream.location(path), next_step=next_step)
