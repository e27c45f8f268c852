"""Checks the key `backfill`: its columns exist, and the stream is one whose interval can be replaced exactly."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from sluice.declarations.column_types import kind_of
from sluice.declarations.declaration_files import KeyPath
from sluice.declarations.error_messages import did_you_mean, key_text
from sluice.declarations.loaded_declarations import LoadedStream, LoadedTable
from sluice.declarations.output_declaration import IcebergOutput
from sluice.declarations.scalar_types import listed
from sluice.declarations.source_declarations import (
    RECORD_TIME,
    AnySource,
    Column,
    FilesSource,
    IcebergSource,
    KafkaSource,
)
from sluice.declarations.table_declaration import is_partition_aligned
from sluice.declarations.transformation_declaration import BackfillDeclaration
from sluice.errors import DeclarationError, NotYetError

TIME_TYPES = ("date", "timestamp", "timestamptz")
"""The types of a column by which an interval is replaced or read."""

_READ_AGAIN = (IcebergSource, KafkaSource, FilesSource)
_KEEP_THEM = "Keep the records in a table of their own and backfill the stream that reads it."

_RECORD_TIME = Column(name=RECORD_TIME, type="timestamptz")

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
    yield from _refused_outputs(stream, backfill, tables)
    yield from _refused_inputs(stream, backfill)
    yield from _column_problems(stream, backfill, tables)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnfitOutput:
    """Why no interval of an output can be replaced yet, and what a person can do. path: of the key that says so."""

    path: KeyPath
    reason: str
    instead: str


def unfit_outputs(stream: LoadedStream) -> Iterator[UnfitOutput]:
    """The outputs of a stream that no backfill handles yet, whether it declares one or not."""
    outputs = stream.declaration.outputs
    if len(outputs) > 1:
        reason = f"a backfill replaces the rows of one output, and there are {', '.join(outputs)}"
        yield UnfitOutput(path=("outputs",), reason=reason, instead="Make several streams of it, one for each output.")
    for name, declared in outputs.items():
        path: KeyPath = ("outputs", name, declared.kind)
        if declared.iceberg is None:
            reason = f"a backfill replaces rows of an Iceberg table, not of {declared.kind}"
            yield UnfitOutput(path=path, reason=reason, instead="Leave `backfill` out.")
        else:
            yield from _unfit_table(stream.name, path, declared.iceberg)


def _unfit_table(stream: str, path: KeyPath, output: IcebergOutput) -> Iterator[UnfitOutput]:
    if output.is_direct:
        reason = "with delivery `direct` the table does not say how far its sources were read"
        yield UnfitOutput(
            path=(*path, "delivery"), reason=f"a backfill of this output: {reason}", instead="Write `staged`."
        )
    if output.mode == "complete":
        yield UnfitOutput(
            path=(*path, "mode"),
            reason="a backfill of mode complete: the next batch of the stream replaces the interval again",
            instead=f"Leave `backfill` out. `sluice stream reset {stream} --dry-run` shows how the whole table is "
            "computed again.",
        )
    if output.operation_column is not None:
        yield UnfitOutput(
            path=(*path, "operation_column"),
            reason="a backfill of a change feed: the rows of an interval depend on changes before it",
            instead=f"Leave `backfill` out. `sluice stream refresh {stream}` builds the whole table again.",
        )


def _refused_outputs(
    stream: LoadedStream, backfill: BackfillDeclaration, tables: Mapping[str, LoadedTable]
) -> Iterator[DeclarationError]:
    for unfit in unfit_outputs(stream):
        yield _not_yet(stream, unfit.path, unfit.reason, unfit.instead)
    for name, declared in stream.declaration.outputs.items():
        if declared.iceberg is not None:
            yield from _refused_table(stream, backfill, name, declared.iceberg, tables)


def _refused_table(
    stream: LoadedStream,
    backfill: BackfillDeclaration,
    name: str,
    output: IcebergOutput,
    tables: Mapping[str, LoadedTable],
) -> Iterator[DeclarationError]:
    path: KeyPath = ("outputs", name, "iceberg")
    if output.mode == "overwrite_partitions" and output.table in tables:
        yield from _partitions_beyond(stream, backfill, (*path, "mode"), tables[output.table])
    if output.operation_column is None and output.mode == "merge" and backfill.column not in output.keys:
        yield _problem(
            stream,
            ("backfill", "column"),
            f"a merged row belongs to one interval only when its key says which: {backfill.column} is not one of the "
            f"keys {', '.join(output.keys)}.",
        )


def _partitions_beyond(
    stream: LoadedStream, backfill: BackfillDeclaration, path: KeyPath, table: LoadedTable
) -> Iterator[DeclarationError]:
    """A batch of the stream replaces whole partitions: one that holds rows of two intervals would lose those of one."""
    if not is_partition_aligned(table.declaration, backfill.column, backfill.interval):
        sentence = (
            f"a batch of the stream replaces whole partitions of {table.name}, and none of them holds rows of one "
            f"{backfill.interval} of {backfill.column} alone."
        )
        way_out = (
            f"Partition {table.name} by the {backfill.interval} of {backfill.column}, or choose a longer interval."
        )
        yield _problem(stream, path, sentence, next_step=way_out)


def _refused_inputs(stream: LoadedStream, backfill: BackfillDeclaration) -> Iterator[DeclarationError]:
    inputs = stream.declaration.inputs
    for name, declared in inputs.items():
        source = declared.declared_source
        if declared.is_stream and not isinstance(source.source, _READ_AGAIN):
            reason = f"a backfill reads Iceberg tables, Kafka and files, not {source.kind}"
            yield _not_yet(stream, ("inputs", name, "stream", source.kind), reason, _KEEP_THEM)
    yield from _refused_files(stream)
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


def _refused_files(stream: LoadedStream) -> Iterator[DeclarationError]:
    """Inputs of files that are not kept when they were read, or may be those of another input."""
    inputs = {name: one.stream.files for name, one in stream.declaration.inputs.items() if one.stream is not None}
    folders = {name: files for name, files in inputs.items() if files is not None}
    for place, (name, files) in enumerate(folders.items()):
        path: KeyPath = ("inputs", name, "stream", "files")
        if files.afterwards != "keep":
            reason = "a backfill reads the files again that the stream has read, and they are not kept"
            yield _not_yet(stream, (*path, "afterwards"), reason, "Write `keep`.")
        if place > 0:
            reason = "a backfill of two inputs of files: the checkpoint does not name the input of a file"
            yield _not_yet(stream, path, reason, _KEEP_THEM)


def _inputs_not_followed(stream: LoadedStream, backfill: BackfillDeclaration) -> Iterator[DeclarationError]:
    for place, name in enumerate(backfill.follows):
        declared = stream.declaration.inputs.get(name)
        if declared is not None and not isinstance(declared.declared_source.source, IcebergSource):
            sentence = f"{name} is no Iceberg table, and no stream replaces intervals of it."
            yield _problem(stream, ("backfill", "follows", place), sentence, next_step="Leave it out.")
            continue
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
            columns = table.declaration.columns
            yield from _time_column(stream, backfill, ("backfill", "column"), backfill.column, table.name, columns)
    for name, column in backfill.reads.items():
        declared = stream.declaration.inputs.get(name)
        found = _columns_of(name, declared.declared_source.source, tables) if declared is not None else None
        if found is not None:
            yield from _time_column(stream, backfill, ("backfill", "reads", name), column, *found)


def _columns_of(
    name: str, source: AnySource, tables: Mapping[str, LoadedTable]
) -> tuple[str, tuple[Column, ...]] | None:
    """What has the columns of an input, and the columns; none when only a schema registry knows them."""
    match source:
        case IcebergSource():
            return (source.table, tables[source.table].declaration.columns) if source.table in tables else None
        case FilesSource():
            return f"the input {name}", source.columns
        case KafkaSource():
            declared = source.value.columns if source.value is not None else ()
            is_known = source.value is None or bool(declared)
            return (f"the input {name}", (*declared, _RECORD_TIME)) if is_known else None
    return None


def _time_column(
    stream: LoadedStream,
    backfill: BackfillDeclaration,
    path: KeyPath,
    name: str,
    owner: str,
    columns: Sequence[Column],
) -> Iterator[DeclarationError]:
    column = next((one for one in columns if one.name == name), None)
    if column is None:
        known = [declared.name for declared in columns]
        sentence = f"{owner} has no column {name}; it has {listed(known)}."
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
