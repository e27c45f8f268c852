"""Checks the key `backfill`: its columns exist, and the stream is one whose interval can be replaced exactly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from sluice.declarations.column_types import kind_of
from sluice.declarations.error_messages import did_you_mean, key_text
from sluice.declarations.iceberg_output import IcebergOutput
from sluice.declarations.loaded_declarations import LoadedStream, LoadedTable
from sluice.declarations.scalar_types import listed
from sluice.declarations.source_declarations import IcebergSource
from sluice.declarations.transformation_declaration import BackfillDeclaration
from sluice.declarations.yaml_document import KeyPath
from sluice.errors import DeclarationError, NotYetError

TIME_TYPES = ("date", "timestamp", "timestamptz")
"""The types of a column by which an interval is replaced or read."""

_LENGTHS = ("hour", "day", "month")
"""The lengths of an interval, shortest first."""


def backfill_problems(stream: LoadedStream, tables: Mapping[str, LoadedTable]) -> Iterator[DeclarationError]:
    """What keeps a declared backfill from being exact, each with its line.

    Parameters
    ----------
    tables: the declared tables by name; a table that is not among them is reported elsewhere.
    """
    backfill = stream.declaration.backfill
    if backfill is None:
        return
    yield from _refused_outputs(stream, backfill)
    yield from _refused_inputs(stream, backfill)
    yield from _column_problems(stream, backfill, tables)


def _refused_outputs(stream: LoadedStream, backfill: BackfillDeclaration) -> Iterator[DeclarationError]:
    outputs = stream.declaration.outputs
    if len(outputs) > 1:
        yield _not_yet(
            stream, ("outputs",), "a backfill replaces the rows of one output", "Make several streams of it."
        )
    for name, declared in outputs.items():
        if declared.iceberg is None:
            reason = f"a backfill replaces rows of an Iceberg table, not of {declared.kind}"
            yield _not_yet(stream, ("outputs", name, declared.kind), reason, "Leave `backfill` out.")
        else:
            yield from _refused_table(stream, backfill, name, declared.iceberg)


def _refused_table(
    stream: LoadedStream, backfill: BackfillDeclaration, name: str, output: IcebergOutput
) -> Iterator[DeclarationError]:
    path: KeyPath = ("outputs", name, "iceberg")
    if output.is_direct:
        reason = "with delivery `direct` the table does not say how far its sources were read"
        yield _not_yet(stream, (*path, "delivery"), f"a backfill of this output: {reason}", "Write `staged`.")
    if output.mode in ("complete", "overwrite_partitions"):
        reason = f"a backfill of mode {output.mode}: the next batch of the stream may replace the interval again"
        yield _not_yet(stream, (*path, "mode"), reason, "Leave `backfill` out.")
    if output.operation_column is not None:
        reason = "a backfill of a change feed: the rows of an interval depend on changes before it"
        yield _not_yet(stream, (*path, "operation_column"), reason, "Leave `backfill` out.")
    if output.ordering:
        reason = "a backfill of ordered merges: which row of a key counts depends on the batches that brought them"
        key = "ordering_columns" if output.ordering_columns else "ordering_column"
        yield _not_yet(stream, (*path, key), reason, "Leave `backfill` out.")
    if output.operation_column is None and output.mode == "merge" and backfill.column not in output.keys:
        yield _problem(
            stream,
            ("backfill", "column"),
            f"a merged row belongs to one interval only when its key says which: {backfill.column} is not one of the "
            f"keys {', '.join(output.keys)}.",
        )


def _refused_inputs(stream: LoadedStream, backfill: BackfillDeclaration) -> Iterator[DeclarationError]:
    inputs = stream.declaration.inputs
    for name, declared in inputs.items():
        source = declared.declared_source
        if declared.is_stream and source.iceberg is None:
            reason = f"a backfill reads Iceberg tables, not {source.kind}"
            instead = "Keep the records in a table of their own and backfill the stream that reads it."
            yield _not_yet(stream, ("inputs", name, "stream", source.kind), reason, instead)
    yield from _inputs_not_followed(stream, backfill)
    for name in backfill.reads:
        if name not in inputs:
            yield _problem(
                stream,
                ("backfill", "reads", name),
                f"there is no input {name}; there is {', '.join(inputs)}.",
                next_step=did_you_mean(name, inputs),
            )
        elif not inputs[name].is_stream:
            yield _problem(stream, ("backfill", "reads", name), f"{name} is static, and a static input is read whole.")


def _inputs_not_followed(stream: LoadedStream, backfill: BackfillDeclaration) -> Iterator[DeclarationError]:
    for place, name in enumerate(backfill.follows):
        if name not in backfill.reads:
            sentence = (
                f"the intervals that follow those of {name} are found by its column, which `reads` does not name."
            )
            yield _problem(
                stream, ("backfill", "follows", place), sentence, next_step=f"Write `reads: {{{name}: …}}` too."
            )


def unfollowable_sources(streams: Iterable[LoadedStream]) -> Iterator[DeclarationError]:
    """The inputs whose backfills cannot be followed: the intervals of the stream that writes the table are others."""
    everyone = tuple(streams)
    for stream in everyone:
        backfill = stream.declaration.backfill
        for place, name in enumerate(backfill.follows if backfill is not None else ()):
            declared = stream.declaration.inputs.get(name)
            source = declared.declared_source.source if declared is not None else None
            if backfill is None or not isinstance(source, IcebergSource) or name not in backfill.reads:
                continue
            for writer in everyone:
                if writer is not stream and source.table in writer.declaration.tables_written:
                    yield from _unlike_intervals(stream, backfill, writer, name=name, place=place)


def _unlike_intervals(
    stream: LoadedStream, backfill: BackfillDeclaration, writer: LoadedStream, *, name: str, place: int
) -> Iterator[DeclarationError]:
    path: KeyPath = ("backfill", "follows", place)
    followed = writer.declaration.backfill
    if followed is None:
        sentence = f"{writer.name}, which writes the table of {name}, declares no backfill that could be followed."
        yield _problem(stream, path, sentence, next_step=f"Declare `backfill` in {writer.file.name}.")
        return
    if followed.column != backfill.reads[name]:
        read = backfill.reads[name]
        sentence = f"{writer.name} replaces intervals of {followed.column}, and `reads` names {read} for {name}."
        yield _problem(stream, path, sentence, next_step="Name the same column in both.")
    if _LENGTHS.index(backfill.interval) > _LENGTHS.index(followed.interval):
        sentence = f"this stream is backfilled by the {backfill.interval}, {writer.name} by the {followed.interval}."
        yield _problem(stream, path, sentence, next_step=f"Write `interval: {followed.interval}` or a shorter one.")


def _column_problems(
    stream: LoadedStream, backfill: BackfillDeclaration, tables: Mapping[str, LoadedTable]
) -> Iterator[DeclarationError]:
    for table_name in stream.declaration.tables_written:
        if (table := tables.get(table_name)) is not None:
            yield from _time_column(stream, backfill, ("backfill", "column"), backfill.column, table)
    for name, column in backfill.reads.items():
        declared = stream.declaration.inputs.get(name)
        source = declared.declared_source.source if declared is not None else None
        table = tables.get(source.table) if isinstance(source, IcebergSource) else None
        if table is not None:
            yield from _time_column(stream, backfill, ("backfill", "reads", name), column, table)


def _time_column(
    stream: LoadedStream, backfill: BackfillDeclaration, path: KeyPath, name: str, table: LoadedTable
) -> Iterator[DeclarationError]:
    column = table.declaration.column(name)
    if column is None:
        known = [declared.name for declared in table.declaration.columns]
        sentence = f"{table.name} has no column {name}; it has {listed(known)}."
        yield _problem(stream, path, sentence, next_step=did_you_mean(name, known))
        return
    kind = kind_of(column.column_type)
    if kind not in TIME_TYPES:
        yield _problem(stream, path, f"an interval is one of {', '.join(TIME_TYPES)}, and {name} is a {column.type}.")
    elif kind == "date" and backfill.interval == "hour":
        yield _problem(stream, path, f"{name} is a date, which has no hours: write `interval: day` or `month`.")


def _not_yet(stream: LoadedStream, path: KeyPath, reason: str, instead: str) -> DeclarationError:
    sentence = f"`{key_text(path)}`: `backfill` does not work with this yet: {reason}."
    return NotYetError(sentence, location=stream.location(path), next_step=instead)


def _problem(stream: LoadedStream, path: KeyPath, sentence: str, *, next_step: str = "") -> DeclarationError:
    return DeclarationError(f"`{key_text(path)}`: {sentence}", location=stream.location(path), next_step=next_step)
