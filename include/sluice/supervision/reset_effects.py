"""Describes what a stream rereads after a reset, and what that does to its outputs. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from sluice.declarations.output_declaration import (
    DeltaOutput,
    FilesOutput,
    IcebergOutput,
    KafkaOutput,
    OutputDeclaration,
)
from sluice.declarations.source_declarations import (
    DeltaSource,
    FilesSource,
    IcebergSource,
    KafkaSource,
    KinesisSource,
    SnapshotStart,
)
from sluice.declarations.stream_declaration import StreamDeclaration
from sluice.sources.table_starts import ObservedStart

_WHAT_COMES = "only what comes after that start; what came since the last batch is never read"
_MEBIBYTE = 1024**2
_TWICE = "what is read again is published again: earlier rows are there twice"
_PARTLY = "what the input no longer contains is missing from the new ones"


def describe_inputs(
    declaration: StreamDeclaration, observed: Mapping[str, ObservedStart] = MappingProxyType({})
) -> Iterator[str]:
    """A sentence for each input from which rows arrive: what the next start reads.

    Parameters
    ----------
    observed: the start of each Iceberg input, as far as it was observed.
    """
    for name, declared in declaration.inputs.items():
        if declared.is_stream:
            source = declared.declared_source.source
            describe = _INPUTS.get(type(source), lambda _: _WHAT_COMES)
            start = observed.get(name)
            if start is not None and start.refusal:
                yield f"The next start is refused because of input {name}: {start.refusal}."
            else:
                yield f"The next start reads from input {name}: {describe(source)}{_amount(start)}."


def _amount(start: ObservedStart | None) -> str:
    if start is None:
        return ""
    if start.amount is None or start.amount.rows is None:
        return f"; how many rows they are is unknown{f': {start.problem}' if start.problem else ''}"
    size = "" if start.amount.data_bytes is None else f" in {_size(start.amount.data_bytes)} of files"
    whole = ", all of them in the first batch, whatever the input's limits" if start.amount.in_one_batch else ""
    missing = f"; {start.missing}" if start.missing else ""
    return f"; now these are {start.amount.rows:,} rows{size}{whole}{missing}"


def _size(data_bytes: int) -> str:
    return f"{data_bytes / _MEBIBYTE:,.1f} MiB" if data_bytes >= _MEBIBYTE else f"{data_bytes:,} bytes"


def describe_outputs(declaration: StreamDeclaration, *, generation: int, keeps_state: bool) -> Iterator[str]:
    """A sentence for each output: what happens to rows that are published already.

    Parameters
    ----------
    generation: the one that is opened.
    keeps_state: whether the stream has state, which begins empty then.
    """
    for name, declared in declaration.outputs.items():
        yield f"Output {name}, {_place(declared)}: {_fate(declared, generation=generation, keeps_state=keeps_state)}."
    if declaration.quarantine:
        yield f"Quarantine, {declaration.quarantine_table}: {_TWICE}."


def _fate(declared: OutputDeclaration, *, generation: int, keeps_state: bool) -> str:
    output, mode = declared.output, declared.declared_mode
    if isinstance(output, FilesOutput):
        return f"{_TWICE}, in folders of generation {generation}"
    if isinstance(output, KafkaOutput):
        return "what is read again is sent again"
    if not isinstance(output, IcebergOutput | DeltaOutput):
        return "it receives what is read again"
    if mode == "merge":
        partly = f"; its state begins empty, so {_PARTLY}" if keeps_state else ""
        return f"what is read again replaces the rows of the same {', '.join(_keys(declared))}{partly}"
    if mode in ("complete", "overwrite"):
        return f"the first batch replaces all rows; {_PARTLY}"
    if mode == "overwrite_partitions":
        return f"each batch replaces the partitions of its rows; {_PARTLY}"
    return _TWICE


def _keys(declared: OutputDeclaration) -> tuple[str, ...]:
    return declared.iceberg.keys if declared.iceberg is not None else ()


def _place(declared: OutputDeclaration) -> str:
    output = declared.output
    if isinstance(output, IcebergOutput):
        return f"table {output.table}, {output.mode}"
    if isinstance(output, DeltaOutput):
        return f"Delta table {output.path}, {output.mode}"
    return declared.kind


def _of_kafka(source: KafkaSource) -> str:
    if source.starting == "earliest":
        return "every record that its topics still contain"
    if source.starting == "latest":
        return _WHAT_COMES
    if isinstance(source.starting, dict):
        return "every record from the declared offsets on"
    return f"every record since {source.starting.isoformat()}"


def _of_kinesis(source: KinesisSource) -> str:
    if isinstance(source.starting, datetime):
        return f"every record since {source.starting.isoformat()}"
    return _WHAT_COMES if source.starting == "latest" else "every record that it still contains"


def _of_files(source: FilesSource) -> str:
    every = f"every file that lies below {source.path or 'its folder'}"
    return every if source.afterwards == "keep" else f"{every}; what was read is gone from there (`afterwards`)"


def _of_iceberg(source: IcebergSource) -> str:
    match source.starting:
        case "table":
            return f"every row of {source.table}, then what is appended"
        case "latest":
            return _WHAT_COMES
        case SnapshotStart(tag=None) as start:
            return f"what was appended to {source.table} after snapshot {start.snapshot_id}"
        case SnapshotStart() as start:
            return f"what was appended to {source.table} after the snapshot with the tag {start.tag}"
        case instant:
            return f"what was appended to {source.table} since {instant.isoformat()}"


def _of_delta(source: DeltaSource) -> str:
    since = "" if source.from_timestamp is None else f" since {source.from_timestamp.isoformat()}"
    return f"every row of {source.path}{since}"


_INPUTS: Mapping[type, Callable[[Any], str]] = {
    KafkaSource: _of_kafka,
    KinesisSource: _of_kinesis,
    FilesSource: _of_files,
    IcebergSource: _of_iceberg,
    DeltaSource: _of_delta,
}
"""What a new checkpoint begins with; other sources keep no earlier rows."""
